"""A tokenizer's folder: whole or not at all, and its history belongs to it."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.events import NonPrivate, PureDP
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import History, LearntTokenizer, _write_words, read_words
from tacit.tokenizers.normalisation import split_words


def history(folder, tokenizer, *events):
    header = Header("words-1", "user", 100, 1e-5, people="a" * 16, part="1/2", split="b" * 16)
    with Ledger.create(folder / "made.jsonl", header) as ledger:
        for event in events:
            ledger.charge([Charge(kind="words", round=0, attempt=0, event=event, plan_hash="0f")])
    return History.of(ledger, ledger.head, tokenizer, "by three words")


@pytest.fixture
def private(tmp_path):
    made = build.word_level(["dog", "cat"], provenance="private: three words")
    words = {"dog": 2.5, "cat": 1.0}
    return LearntTokenizer(made, words, history(tmp_path, made, PureDP(8.0)))


def test_what_is_saved_is_what_is_loaded(private, tmp_path):
    folder = private.save(tmp_path / "made")
    for path in (folder, folder / "tokenizer.json"):
        found = LearntTokenizer.load(path)
        assert found.tokenizer == private.tokenizer
        assert found.words == private.words
        assert found.history.data == private.history.data
        assert found.history.how == "by three words"
        assert found.history.header.part == "1/2"
        assert found.history.ledger.composition().costly() == ((PureDP(8.0), 1),)
        assert found.needs_history
        assert found.why_void is None


def test_only_the_part_of_a_ledger_that_was_learnt_from_is_kept(tmp_path):
    made = build.word_level(["dog", "cat"], provenance="private: three words")
    with Ledger.create(tmp_path / "run.jsonl", Header("run-1", "user", 100, 1e-5)) as ledger:
        head = ledger.charge(
            [Charge(kind="words", round=0, attempt=0, event=PureDP(1.0), plan_hash="0f")]
        )
        ledger.charge([Charge(kind="words", round=1, attempt=0, event=PureDP(2.0), plan_hash="0f")])
    kept = LearntTokenizer(made, None, History.of(ledger, head, made, "early"))
    found = LearntTokenizer.load(kept.save(tmp_path / "made"))
    assert found.history.ledger.composition().costly() == ((PureDP(1.0), 1),)
    assert found.history.ledger.hashes[:-1] == ledger.hashes[:2]


def test_a_history_without_noise_voids_the_guarantee(tmp_path):
    made = build.word_level(["dog"], provenance="post-processing: a model")
    learnt = LearntTokenizer(made, None, history(tmp_path, made, NonPrivate("no noise")))
    assert "without noise" in learnt.why_void


def test_a_folder_that_exists_is_refused_and_stays(private, tmp_path):
    folder = private.save(tmp_path / "made")
    before = (folder / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        private.save(folder)
    assert (folder / "tokenizer.json").read_bytes() == before


def test_the_history_of_another_tokenizer_is_refused(private, tmp_path):
    folder = private.save(tmp_path / "made")
    (folder / "tokenizer.json").unlink()
    other = build.word_level(["bird"], provenance="private: three words")
    other.save(folder / "tokenizer.json")
    with pytest.raises(ValueError, match="about another tokenizer"):
        LearntTokenizer.load(folder)


def test_a_cut_ledger_is_refused(private, tmp_path):
    folder = private.save(tmp_path / "made")
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="does not end with the tokenizer"):
        LearntTokenizer.load(folder)


def test_a_changed_cost_is_refused(private, tmp_path):
    folder = private.save(tmp_path / "made")
    text = (folder / "ledger.jsonl").read_text()
    (folder / "ledger.jsonl").write_text(text.replace("8.0", "0.1"))
    with pytest.raises(ValueError, match="cannot be trusted"):
        LearntTokenizer.load(folder)


def test_a_public_tokenizer_has_no_history(tmp_path):
    made = build.word_level(["dog"], provenance=provenance.public("a list"))
    folder = LearntTokenizer(made).save(tmp_path / "made")
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json"]
    found = LearntTokenizer.load(folder)
    assert (found.words, found.history, found.needs_history) == (None, None, False)


@given(st.lists(st.text(), max_size=20))
def test_any_words_survive_being_written(tmp_path_factory, texts):
    found = {word: 1.0 for words in split_words(map(_whole, texts), "none") for word in words}
    path = tmp_path_factory.mktemp("words") / "words.tsv.gz"
    _write_words(path, found)
    assert read_words(path) == found


def _whole(text):
    return text.encode("utf-8", "ignore").decode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data[:12] + b"x" * 40,
        lambda data: gzip.compress(b"dog 3"),
        lambda data: b"dog\t3",
        lambda data: b"",
    ],
)
def test_damaged_words_are_refused(damage, tmp_path):
    path = tmp_path / "words.tsv.gz"
    _write_words(path, {"dog": 3.0})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"words\.tsv\.gz'? is (cut short|damaged|not gzip|empty)"):
        read_words(path)
