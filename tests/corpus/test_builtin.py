"""Corpora by name."""

import itertools
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tacit.corpus import builtin
from tacit.corpus.builtin import SyntheticCorpus, SyntheticOptions, ingest_builtin, load_corpus
from tacit.corpus.ingest import ingest_records
from tacit.corpus.people_ledger import leave_copy
from tacit.corpus.store import Corpus
from tacit.privacy import scratch


def test_chitchat_has_the_people_and_words_that_it_is_known_for(chitchat):
    info = chitchat.info()
    assert info["users"] == 1315
    assert info["words"] == 2_478_488
    assert sum(chitchat.word_counts() >= 100) == 812
    top = np.sort(chitchat.word_counts())[-2:].sum()
    assert top / info["words"] == pytest.approx(0.18, abs=0.01)


@pytest.fixture
def small(monkeypatch):
    """A chitchat that is made in no time."""
    records = {f"user {i}": ["some text"] for i in range(5)}
    monkeypatch.setattr(builtin, "chitchat_records", lambda: records)


@pytest.mark.usefixtures("small")
def test_chitchat_is_made_once_and_again_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    chitchat = load_corpus("chitchat")
    [made] = (tmp_path / "corpora").glob("chitchat*")
    assert load_corpus("chitchat").path == made == chitchat.path
    (made / "texts.arrow").write_bytes(b"")
    again = load_corpus("chitchat")
    assert again.fingerprint == chitchat.fingerprint
    assert list((tmp_path / "corpora").glob("*chitchat*[0-9]")) == [made]


@pytest.mark.usefixtures("small")
def test_chitchat_made_by_two_processes_at_once_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    real, made = builtin.ingest_records, []

    def slower(records, out, **options):
        made.append(out)
        time.sleep(0.2)  # meanwhile the other one asks for it
        return real(records, out, **options)

    monkeypatch.setattr(builtin, "ingest_records", slower)
    with ThreadPoolExecutor() as pool:
        assert [len(corpus) for corpus in pool.map(load_corpus, ["chitchat"] * 2)] == [5, 5]
    assert made == list((tmp_path / "corpora").glob("chitchat*"))


@pytest.mark.usefixtures("small")
def test_chitchat_works_where_nothing_can_be_cached(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch.of_this_process.cache_clear()
    corpus = load_corpus("chitchat")
    assert len(corpus) == 5
    assert tmp_path in corpus.path.parents


def test_a_path_is_opened_and_anything_else_names_the_choices(tmp_path):
    ingest_records([("a", ["b"])], tmp_path / "out")
    assert isinstance(load_corpus(tmp_path / "out"), Corpus)
    with pytest.raises(ValueError, match=r"no corpus 'chitchatt': .* chitchat, synthetic"):
        load_corpus("chitchatt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:people=3", "synthetic takes users, words"),
        ("synthetic:users=many", "has no number, such as users=1000"),
        ("synthetic:users=1.5", "has no number"),
        ("synthetic:users=nan", "has no number"),
        ("synthetic:users=0", "users must be at least 1"),
        ("synthetic:order=9", "order must be from 0 to 5"),
        ("synthetic:test_fraction=2", "test_fraction must be"),
    ],
)
def test_a_wrong_synthetic_name_is_one_sentence(name, message):
    with pytest.raises(ValueError, match=message):
        load_corpus(name)


def test_synthetic_names_are_read():
    corpus = load_corpus("synthetic:users=1e6,words=50,test_fraction=0.2,order=2")
    assert corpus.options == SyntheticOptions(users=10**6, words=50, test_fraction=0.2, order=2)
    assert len(load_corpus("synthetic")) == 1000


def test_a_synthetic_user_depends_on_nothing_but_seed_and_index():
    small, large = (SyntheticCorpus(SyntheticOptions(users=n)) for n in (50, 10**7))
    block = dict(itertools.islice(large.records(), 50))
    for i in (0, 7, 49):
        assert small.texts(i) == large.texts(i) == block[large.raw_id(i)]
        assert small.user_id(i) == large.user_id(i)
    assert SyntheticCorpus(SyntheticOptions(seed=1)).texts(0) != small.texts(0)
    assert len({tuple(small.texts(i)) for i in range(50)}) == 50
    assert len(large.texts(10**7 - 1)) == 10


@pytest.mark.parametrize("words", [1, 9, 10, 25])
def test_synthetic_users_have_the_words_asked_for(words):
    corpus = SyntheticCorpus(SyntheticOptions(users=3, words=words))
    for i in range(3):
        assert sum(len(text.split()) for text in corpus.texts(i)) == words
        assert corpus.text_counts()[i] == len(corpus.texts(i))


def test_synthetic_words_are_zipfian_depend_on_context_and_differ_by_topic():
    corpus = SyntheticCorpus(SyntheticOptions(users=2000, vocabulary=1000))
    ranks = corpus._ranks(np.arange(2000)).reshape(2000, -1)
    counts = np.sort(np.bincount(ranks.ravel(), minlength=1000))[::-1]
    assert counts[0] > 5 * counts[9] > 10 * counts[99]
    pairs = Counter(zip(ranks[:, 0].tolist(), ranks[:, 1].tolist(), strict=True))
    first = Counter(ranks[:, 0].tolist())
    word, seen = first.most_common(1)[0]
    best = max(n for (a, _), n in pairs.items() if a == word) / seen
    plain = SyntheticCorpus(SyntheticOptions(users=2000, vocabulary=1000, topics=1, order=0))
    share = (plain._ranks(np.arange(2000)) == 0).mean()
    assert best > 0
    assert 0.05 < share < 0.2  # 1/H(1000) = 0.13 of all words, by half of the draws at least
    tops = [set(np.argsort(np.bincount(row, minlength=1000))[-20:]) for row in ranks[:50]]
    assert len(set.union(*map(set, tops))) > 60


def test_synthetic_words_are_spelled_apart():
    words = SyntheticCorpus(SyntheticOptions(vocabulary=30_000))._spelling
    assert len(set(words)) == 30_000
    assert words[0] == "ta"


def test_an_ingested_synthetic_corpus_has_the_same_texts_and_splits(tmp_path):
    made = ingest_builtin("synthetic:users=300,words=30", tmp_path / "out")
    assert not made.about_people
    corpus = load_corpus("synthetic:users=300,words=30")
    for part in ("train", "test"):
        one, two = getattr(made, part), getattr(corpus, part)
        assert sorted(one.texts(i) for i in range(len(one))) == sorted(
            two.texts(i) for i in range(len(two))
        )
    assert corpus.info()["test_users"] == made.info()["test_users"]


def test_a_built_in_corpus_in_the_cache_carries_no_ledger_of_its_people(chitchat):
    """The cache is one for all installations of a user: tests and demos must not meet in it."""
    leave_copy(chitchat)
    assert not (chitchat.path / "people").exists()
