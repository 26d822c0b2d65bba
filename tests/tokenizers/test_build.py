"""Tokenizers from words and texts: what is learnt depends on counts and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tacit.tokenizers import build, wordpiece
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.tokenizer import BOS, EOS, UNK
from tests.oracles import byte_pairs
from tests.tokenizers.fakes import KINDS, PUBLIC, FakeSource, texts

each_kind = pytest.mark.parametrize("kind", KINDS)

# Few letters, so that there are many ties.
small_texts = st.lists(st.text("abc d.", max_size=12), max_size=8)


# Determinism


@each_kind
@given(data=st.data(), lines=st.one_of(small_texts, st.lists(texts, max_size=6)))
def test_the_order_of_the_texts_does_not_matter(kind, data, lines):
    shuffled = data.draw(st.permutations(lines))
    assert build.learn(kind, iter(lines), 290) == build.learn(kind, shuffled, 290)


@pytest.mark.parametrize("kind", ["word", "wordpiece", "char"])  # BPE knows how a text starts
@given(lines=small_texts)
def test_a_text_twice_is_as_two_texts(kind, lines):
    doubled = [f"{line} {line}" for line in lines]
    assert build.learn(kind, doubled, 290).to_json() == build.learn(kind, lines * 2, 290).to_json()


def test_another_process_learns_the_same():
    program = (
        "from tacit.tokenizers import build; from tests.tokenizers.fakes import KINDS, PUBLIC;"
        "print(*(build.learn(kind, PUBLIC * 3, 400).fingerprint for kind in KINDS))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])},
        ).stdout.split()
        for seed in range(2)
    ]
    here = [build.learn(kind, PUBLIC * 3, 400).fingerprint for kind in KINDS]
    assert runs == [here, here]


# Words


def test_the_most_frequent_words_come_first_and_ties_go_by_text():
    ours = build.learn("word", ["b a c", "c B", "é z a ."], 8)
    assert [ours.token(id) for id in range(8)] == [BOS, EOS, UNK, "a", "b", "c", ".", "z"]
    assert build.learn("word", ["b a"], 10_000).vocab_size == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["The"], "'The' must be one word .* 'papers' leaves it, which makes \\['the'\\] of it"),
        (["new york"], "makes \\['new', 'york'\\] of it"),
        (["a.m."], "must be one word"),
        ([""], "'' must be one word"),
        ([BOS], "must be one word"),
        (["a", "b", "a"], "'a' is in the list twice"),
        ("a", "got one: put it into a list"),
        ([3], "text 0 is int"),
    ],
)
def test_a_word_that_could_never_be_found_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        build.word_level(words)


def test_case_is_kept_without_normalisation():
    ours = build.word_level(["The", "the"], normalisation="none")
    assert ours.encode("The THE the") == [0, 3, 2, 4, 1]


# BPE and WordPiece against the book


@given(lines=small_texts, size=st.integers(258, 275))
def test_byte_pairs_are_those_of_the_book(lines, size):
    ours = build.learn("bpe", lines, size, normalisation="none")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    splitter = ours._backend.pre_tokenizer  # what counts as a word is tested elsewhere
    words = Counter(tuple(word) for line in lines for word, _ in splitter.pre_tokenize_str(line))
    expected = byte_pairs.learn(words, alphabet, size - 2)
    assert [ours.token(id) for id in range(ours.vocab_size)] == [BOS, EOS, *expected]


@given(lines=st.one_of(small_texts, st.lists(texts, max_size=5)), size=st.integers(5, 60))
@settings(max_examples=100)
def test_word_pieces_are_those_of_the_book(lines, size):
    ours = build.learn("wordpiece", lines, size, normalisation="papers")
    symbols = {
        word: (word[0], *(f"##{character}" for character in word[1:]))
        for word in count_words(lines, "papers")
    }
    counts = count_words(lines, "papers")
    frequency: Counter[str] = Counter()
    for word, count in counts.items():
        for symbol in symbols[word]:
            frequency[symbol] += count
    room = (size - 3 + 1) // 2
    alphabet = sorted(sorted(frequency, key=lambda symbol: (-frequency[symbol], symbol))[:room])
    usable = {
        symbols[word]: count
        for word, count in counts.items()
        if set(symbols[word]) <= set(alphabet)
    }
    expected = byte_pairs.learn(
        usable, alphabet, size - 3, lambda left, right: left + right.removeprefix("##")
    )
    assert [ours.token(id) for id in range(ours.vocab_size)] == [BOS, EOS, UNK, *expected]


def test_a_word_with_a_character_that_is_too_rare_is_unknown():
    ours = build.learn("wordpiece", ["aa ab ba bb"] * 5 + ["cab"], 11)
    assert ours.decode(ours.encode("abba cab")) == f"abba {UNK}"
    assert ours.encode("a" * 101).count(2) == 1


def test_a_long_word_does_not_disturb_the_pieces():
    assert wordpiece.learn_pieces({"ab": 3, "c" * 101: 9}, 4) == ["##b", "a", "ab"]


# Characters


def test_characters_come_by_frequency_and_the_space_is_always_there():
    ours = build.learn("char", ["abb", "B c"], 6)
    assert [ours.token(id) for id in range(6)] == [BOS, EOS, UNK, " ", "b", "a"]
    assert ours.encode("a bc") == [0, 5, 3, 4, 2, 1]
    assert build.learn("char", list("cab"), 1000).token(4) == "a"
    assert build.learn("char", [], 1000).vocab_size == 4


# Sizes and mistakes


@each_kind
@given(size=st.integers(258, 320))
def test_the_size_is_never_exceeded(kind, size):
    assert build.learn(kind, PUBLIC, size).vocab_size <= size


def test_byte_level_bpe_needs_room_for_the_bytes():
    message = r"size must be at least 258 for kind 'bpe' \(BOS, EOS and the 256 bytes\), got 257"
    with pytest.raises(ValueError, match=message):
        build.learn("bpe", PUBLIC, 257)
    assert build.learn("bpe", [], 258).vocab_size == 258


@pytest.mark.parametrize(("kind", "least"), [("word", 4), ("wordpiece", 5), ("char", 4)])
def test_a_size_without_room_is_refused(kind, least):
    build.learn(kind, PUBLIC, least)
    with pytest.raises(ValueError, match=f"size must be at least {least} for kind '{kind}'"):
        build.learn(kind, PUBLIC, least - 1)
    for bad in (-1, 300.5, float("nan")):
        with pytest.raises(ValueError, match="size"):
            build.learn(kind, PUBLIC, bad)  # type: ignore[arg-type]


@each_kind
def test_texts_that_are_not_strings_are_refused(kind):
    for bad in ([3], ["a\ud800"], FakeSource((("a",),))):
        with pytest.raises(ValueError, match="text"):
            build.learn(kind, bad, 300)  # type: ignore[arg-type]


def test_an_unknown_kind_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="one of word, bpe, wordpiece, char, got 'words'"):
        build.learn("words", PUBLIC, 300)  # type: ignore[arg-type]


@each_kind
def test_an_oracle_learns_what_the_users_texts_teach(kind):
    source = FakeSource((tuple(PUBLIC[:2]), (), tuple(PUBLIC[2:])))
    ours = build.oracle(source, kind, 300)
    assert ours.provenance == "oracle"
    assert ours == build.learn(kind, PUBLIC, 300, provenance="oracle")
