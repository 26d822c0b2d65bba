"""Tokenizers made of privately learnt words: private, of any kind, and faithful to the counts."""

from __future__ import annotations

import math
import string
from collections import Counter

import pytest

from tacit.privacy.events import PureDP
from tacit.tokenizers import build, provenance, word_counts
from tacit.tokenizers.word_counts import WordCounts
from tests.tokenizers.fakes import KINDS, FakeSource

COUNTS = {"the": 900.0, "court": 300.5, "statute": 120.0, "statutes": 60.0, "petitioner": 33.3}
FOUND = WordCounts(COUNTS, (PureDP(8.0),), "heavy hitters (a test)")


@pytest.fixture
def few_occurrences(monkeypatch):
    """Fewer words to learn from: faster, and nothing else."""
    monkeypatch.setattr(build, "_OCCURRENCES", 20_000)


@pytest.mark.usefixtures("few_occurrences")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_private_and_lets_a_guarantee_stand(kind):
    tokenizer = FOUND.tokenizer(kind, 400)
    assert tokenizer.kind == kind
    assert tokenizer.provenance == "private: heavy hitters (a test)"
    assert tokenizer.why_void is None


def test_a_dictionary_has_the_most_frequent_words_and_last_the_punctuation():
    tokenizer = FOUND.tokenizer("word", 3 + 32 + 2)
    words = [tokenizer.token(id) for id in range(3, tokenizer.vocab_size)]
    assert words == ["the", "court", *string.punctuation]
    more = WordCounts(COUNTS | {",": 10_000.0}, FOUND.events, FOUND.how).tokenizer("word", 1000)
    words = [more.token(id) for id in range(3, more.vocab_size)]
    assert words[:3] == [",", "the", "court"]
    assert sorted(words[6:]) == sorted(set(string.punctuation) - {","})


@pytest.mark.usefixtures("few_occurrences")
def test_bpe_learns_the_words_with_the_space_before_them():
    tokenizer = FOUND.tokenizer("bpe", 600)
    text = "in the court the petitioner"
    tokens = [tokenizer.token(id) for id in tokenizer.encode(text)[1:-1]]
    assert tokens[-4:] == ["Ġthe", "Ġcourt", "Ġthe", "Ġpetitioner"]
    assert tokenizer.decode(tokenizer.encode("naïve, unseen: words!")) == "naïve, unseen: words!"


def test_texts_have_each_word_as_often_as_its_share_and_at_least_once():
    texts = list(build.texts_of(COUNTS | {"rarest": 1e-6}, 100_000))
    words = Counter(" ".join(texts).split(" "))
    total = sum(COUNTS.values())
    for word, count in COUNTS.items():
        assert words[word] == pytest.approx(1e6 * count / total, abs=1)
    assert words["rarest"] == 1
    assert max(len(text.split()) for text in texts) == 100_000
    assert len(texts) == math.ceil(sum(words.values()) / 100_000)


@pytest.mark.usefixtures("few_occurrences")
def test_wordpiece_knows_the_words():
    tokenizer = FOUND.tokenizer("wordpiece", 300)
    assert [tokenizer.token(id) for id in tokenizer.encode("the statute")[1:-1]] == [
        "the",
        "statute",
    ]


def test_words_of_another_normalisation_are_refused_by_the_dictionary():
    shouted = WordCounts({"The": 3.0}, FOUND.events, FOUND.how)
    with pytest.raises(ValueError, match="'The' must be one word as the normalisation 'papers'"):
        shouted.tokenizer("word", 100)


def test_private_provenance():
    assert provenance.check("private: x y") == "private: x y"
    assert provenance.why_void(provenance.check("private: x")) is None
    with pytest.raises(ValueError, match="provenance must be one of"):
        provenance.check("private: ")


def test_every_user_has_the_words_of_its_own_texts():
    users = FakeSource((("The the", "naïve’s court"), (), ("",), ("a", "", "b b")))
    found = list(word_counts.words_by_user(users))
    assert found == [["the", "the", "naïve's", "court"], [], [], ["a", "b", "b"]]


# Bad input


def test_no_words_make_no_tokenizer():
    with pytest.raises(ValueError, match=r"no word was found by heavy hitters \(a test\)"):
        WordCounts({}, FOUND.events, FOUND.how).tokenizer("bpe", 400)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("word", 35, "size must be at least 36 for a list of words, got 35"),
        ("word", 36.0, "size must be a whole number, got 36.0"),
        ("bpe", 100, "size must be at least 258 for kind 'bpe'"),
        ("syllable", 100, "kind must be one of word, bpe, wordpiece, char, got 'syllable'"),
    ],
)
def test_bad_sizes_and_kinds_are_refused(kind, size, message):
    with pytest.raises(ValueError, match=message):
        FOUND.tokenizer(kind, size)
    if kind == "word" and isinstance(size, int):
        assert FOUND.tokenizer(kind, size + 1).vocab_size == size + 1


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_counts_must_be_above_0_and_finite(bad):
    with pytest.raises(ValueError, match="the count of 'a' must be a finite number above 0"):
        WordCounts({"a": bad}, FOUND.events, FOUND.how)


@pytest.mark.parametrize("bad", ["", " padded", "two\nlines"])
def test_how_it_was_made_must_be_a_line_of_text(bad):
    with pytest.raises(ValueError, match="provenance must be one of"):
        WordCounts(COUNTS, FOUND.events, bad)


def test_counts_without_a_cost_are_refused():
    with pytest.raises(ValueError, match="events must say what the counts cost, got none"):
        WordCounts(COUNTS, (), FOUND.how)
