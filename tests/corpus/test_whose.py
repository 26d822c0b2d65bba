"""A corpus knows whose text it holds, and notices when it is changed."""

import json
import shutil

import pytest

from tacit.corpus import people, store
from tacit.corpus.builtin import load_corpus
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest, ingest_records
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.store import Corpus
from tests.corpus.writing import write

ROWS = [(f"user {i}", f"text {j} of {i}") for i in range(40) for j in range(3)]


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, "chats.csv", ROWS)


def test_a_second_ingest_is_of_the_same_people(path, tmp_path):
    one, two = (ingest(path, tmp_path / name) for name in "ab")
    assert one.identity == two.identity
    assert one.split_identity != two.split_identity  # the salts differ, and parts go by them
    assert (one.info()["known_people"], two.info()["known_people"]) == (False, True)


@pytest.mark.parametrize("how", ["copy", "grown", "sample", "pickier", "exported"])
def test_the_same_people_in_another_form_are_recognised(path, tmp_path, how):
    first = ingest(path, tmp_path / "a")
    if how == "copy":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        second = Corpus.open(tmp_path / "b")
    elif how == "grown":
        more = [*ROWS, *((f"other {i}", "hello") for i in range(30))]
        second = ingest(write(tmp_path, "b.jsonl", more), tmp_path / "b")
    elif how == "sample":
        second = ingest(write(tmp_path, "b.csv", ROWS[:9]), tmp_path / "b")
    elif how == "pickier":
        second = ingest(path, tmp_path / "b", options=UserOptions(max_texts=1))
    else:
        hashed = [(first.user_id(i), first.texts(i)) for i in range(len(first))]
        second = ingest_records(hashed, tmp_path / "b")
    assert second.identity == first.identity


def test_others_are_others_and_an_overlap_is_written_down(path, tmp_path):
    first = ingest(path, tmp_path / "a")
    mixed = [(f"user {i}", "hi") for i in range(36, 76)]
    second = ingest(write(tmp_path, "b.csv", mixed), tmp_path / "b")
    assert second.identity != first.identity
    assert second.info()["overlaps"] == [[first.identity, 0.1]]


def test_declared_new_people_have_an_identity_of_their_own(path, tmp_path):
    first = ingest(path, tmp_path / "a")
    second = ingest(path, tmp_path / "b", new_people=True)
    assert second.identity != first.identity
    assert second.info()["new_people"] == first.identity
    assert first.info()["new_people"] is None


def test_the_identity_follows_a_merge(tmp_path, monkeypatch):
    one, two = (
        ingest_records([(f"{name} {i}", ["x"]) for i in range(9)], tmp_path / name) for name in "ab"
    )
    both = [(f"{name} {i}", ["x"]) for name in "ab" for i in range(9)]
    assert one.identity != two.identity
    merged = []
    monkeypatch.setattr(people, "_merge_ledgers", lambda *ids: merged.append(ids))
    whole = ingest_records(both, tmp_path / "c")
    assert len(merged) == 1
    assert one.identity == two.identity == whole.identity == Corpus.open(tmp_path / "b").identity


def test_a_copied_corpus_keeps_its_identity_where_nobody_is_known(path, tmp_path, monkeypatch):
    first = ingest(path, tmp_path / "a")
    identity = first.identity
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))
    assert Corpus.open(tmp_path / "a").identity == identity
    assert not (tmp_path / "elsewhere").exists()  # opening a corpus writes nothing
    assert people.folder(identity).is_dir()


def test_a_generated_corpus_is_about_nobody_in_memory_and_on_disk(tmp_path):
    generated = load_corpus("synthetic:users=30")
    stored = [
        ingest_records(generated.records(), tmp_path / name, about_people=False) for name in "ab"
    ]
    assert not generated.about_people
    assert not any(corpus.about_people for corpus in stored)
    assert stored[0].identity == stored[1].identity
    assert not stored[1].info()["known_people"]
    assert ingest_records(generated.records(), tmp_path / "c").about_people


def test_an_ingest_that_fails_late_leaves_no_corpus_and_people_who_have_spent_nothing(
    path, tmp_path, monkeypatch
):
    """The other way round, a kill in between would leave a corpus of forgotten people."""

    def fails(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.corpus.ingest.CorpusWriter.finish", fails)
        with pytest.raises(KeyboardInterrupt):
            ingest(path, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    made = ingest(path, tmp_path / "b")
    assert made.info()["known_people"]
    assert not PeopleLedger(people.folder(made.identity)).runs()


def test_a_corpus_whose_people_could_not_be_remembered_is_not_left(path, tmp_path, monkeypatch):
    def fails(*arguments):
        raise ValueError("no room")

    monkeypatch.setattr(people, "_write", fails)
    with pytest.raises(ValueError, match="no room"):
        ingest(path, tmp_path / "made" / "a")
    assert not (tmp_path / "made").exists()


def test_people_are_remembered_before_the_corpus_is_put_in_place(path, tmp_path, monkeypatch):
    seen, recognise, out = [], people.recognise, tmp_path / "a"
    monkeypatch.setattr(
        people, "recognise", lambda *a, **k: seen.append(out.exists()) or recognise(*a, **k)
    )
    ingest(path, out)
    assert seen == [False]


@pytest.mark.parametrize("name", [store.USERS, store.TEXTS, store.LINES])
def test_a_byte_changed_in_place_is_noticed(path, tmp_path, name):
    corpus = ingest(path, tmp_path / "a")
    corpus.verify()
    data = bytearray((corpus.path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (corpus.path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name}' was changed since it was ingested") as error:
        Corpus.open(corpus.path).verify()
    assert "\n" not in str(error.value)


def test_verify_says_how_far_it_is(path, tmp_path):
    seen = []
    ingest(path, tmp_path / "a").verify(lambda *step: seen.append(step))
    assert seen[-1][0] == seen[-1][1] > 0
    load_corpus("synthetic").verify()


def test_the_commitment_changes_with_text_split_and_salt(tmp_path):
    def made(name, text="hello", salt="00" * 16, **options):
        records = [("ann", [text]), ("bob", ["two"])]
        options = UserOptions(**options)
        return ingest_records(records, tmp_path / name, salt=salt, options=options).commitment

    base = made("a")
    assert made("b") == base
    others = [made("c", text="hallo"), made("d", salt="01" * 16), made("e", test_fraction=1)]
    assert len({base, *others}) == 4
    one, two = (load_corpus(f"synthetic:users={n}").commitment for n in (10, 11))
    assert one != two


def test_an_older_corpus_is_refused(path, tmp_path):
    corpus = ingest(path, tmp_path / "a")
    meta = json.loads((corpus.path / store.META).read_text())
    (corpus.path / store.META).write_text(json.dumps(meta | {"version": 1}))
    with pytest.raises(ValueError, match=r"has format version 1; this tacit reads version 2"):
        Corpus.open(corpus.path)


def test_a_corpus_without_all_digests_is_damaged(path, tmp_path):
    corpus = ingest(path, tmp_path / "a")
    meta = json.loads((corpus.path / store.META).read_text())
    del meta["digests"][store.TEXTS]
    (corpus.path / store.META).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="is damaged"):
        Corpus.open(corpus.path)


def test_inputs_are_written_down_by_name_and_digest(path, tmp_path):
    [file] = ingest(path, tmp_path / "a").info()["inputs"]
    assert file["name"] == "chats.csv"
    assert len(file["sha256"]) == 64


@pytest.mark.parametrize(
    ("names", "count"),
    [(["ann", "bob"], 0), (["ann", "Ann", "bob"], 2), (["a b", " A  B ", "ab", "x", "X"], 5)],
)
def test_ids_that_differ_in_case_or_blanks_only_are_counted(tmp_path, names, count):
    corpus = ingest_records([(name, ["hello"]) for name in names], tmp_path / "out")
    assert corpus.info()["input"]["lookalike_ids"] == count
