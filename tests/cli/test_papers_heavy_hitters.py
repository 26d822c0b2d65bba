"""`tacit papers heavy-hitters`: words that users report, what they cost, and what is refused."""

from __future__ import annotations

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.tokenizers.history import LearntTokenizer
from tests.runs.small import WORDS, make_folder

SIZE = 265  # BOS, EOS, the 256 bytes, and a few merges
FEW = ("--epsilon", 100, "--words", 2, "--threshold", 0)


@pytest.fixture
def hitters(command):
    return command("papers heavy-hitters")


@pytest.fixture
def corpus(tmp_path):
    """A corpus whose register no other test looks at, with a public text beside it."""
    folder = make_folder(tmp_path / "users")
    text = "\n".join([" ".join(WORDS)] * 3 + ["zebra and zebra ."])
    (folder / "public.txt").write_text(text)
    return folder / "corpus"


def test_heavy_hitters_are_in_a_ledger_and_in_the_register(hitters, corpus, tmp_path):
    public = ("--candidates", corpus.with_name("public.txt"))
    words = [corpus, *FEW, *public, "--seed", 3, "--size", SIZE]
    row = hitters.json(tmp_path / "first", *words, "--kind", "word")
    made = LearntTokenizer.load(tmp_path / "first")
    assert row["provenance"].startswith("private: heavy hitters (count-mean sketch, local epsilon")
    assert "2 words per user" in row["provenance"]
    # A delta buys a hair of a pure epsilon.
    assert row["released_before"]["epsilon"] == pytest.approx(100, rel=1e-3)
    assert row["released_before"]["population"] == len(load_corpus(corpus).train)
    assert set(made.words) <= {*WORDS, "zebra", "."}
    [known] = PeopleLedger.open(load_corpus(corpus).identity).runs().values()
    assert known.header.simulation is True
    again = hitters.json(tmp_path / "again", *words, "--kind", "word")
    assert again["origin"]["tokenizer"] == row["origin"]["tokenizer"]
    said = hitters.says(tmp_path / "third", *words, "--part", "1/2")
    assert "Its users (part 1/2) have paid epsilon" in said
    assert "the tokenizer costs that much." in said


def test_three_words_of_each_user_are_reported(hitters, corpus, tmp_path):
    public = ("--candidates", corpus.with_name("public.txt"))
    row = hitters.json(tmp_path / "out", corpus, "--epsilon", 150, *public, "--size", SIZE)
    assert "for 3 words per user" in row["provenance"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--words 0", "--words must be at least 1"),
        ("--epsilon 0", "epsilon must be a finite number above 0"),
        ("--delta 2", "delta must be strictly between 0 and 1"),
        ("--seed -1", "seed must be at least 0"),
        ("--threshold -1", "threshold must be a finite number of at least 0"),
        ("--population 0", "population must be at least 1"),
        ("--population 3", "population must be at least the"),
        ("--kind word --size 20", "size must be at least 36 for a list of words"),
        ("--candidates nothing.txt", "is neither a file nor the name of a public text"),
    ],
)
def test_a_mistake_is_one_sentence_and_charges_nobody(hitters, corpus, tmp_path, words, message):
    assert message in hitters.refused(tmp_path / "out", corpus, *words.split())
    assert not (tmp_path / "out").exists()
    assert not PeopleLedger.open(load_corpus(corpus).identity).runs()


def test_what_exists_is_not_overwritten(hitters, corpus, tmp_path):
    assert "exists already; name a new folder" in hitters.refused(tmp_path / "users", corpus)
