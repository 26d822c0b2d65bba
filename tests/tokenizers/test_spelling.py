"""Tokens as bytes and bytes as tokens, for every kind of tokenizer."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tacit.tokenizers import build
from tacit.tokenizers.normalisation import normalised
from tacit.tokenizers.remapping import _Spelling
from tacit.tokenizers.tokenizer import UNK, Tokenizer
from tacit.tokenizers.wordpiece import LONGEST_WORD
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, spelled, texts, token_bytes, tokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)
each_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)


@cache
def spelling(kind, normalisation="papers") -> _Spelling:
    return _Spelling.of(tokenizer(kind, normalisation))


def changed(kind, change) -> Tokenizer:
    """A tokenizer whose file was edited by somebody else."""
    document = json.loads(tokenizer(kind).to_json())
    for name in ("tacit.provenance", "tacit.fingerprint"):
        del document["post_processor"]["special_tokens"][name]
    change(document)
    return Tokenizer.of(document)


def tokens(ours: Tokenizer, ids: list[int]) -> list[str]:
    return [ours.token(id) for id in ids]


# Tokens as bytes


@each_kind
def test_all_but_the_special_tokens_have_bytes_of_their_own(kind):
    ours = tokenizer(kind)
    found = token_bytes(ours)
    special = {ours.bos, ours.eos, ours.unk} - {None}
    assert {id for id, text in enumerate(found) if text is None} == special
    assert len({text for text in found if text is not None}) == ours.vocab_size - len(special)
    assert b"" not in found


@pytest.mark.parametrize(
    ("kind", "token", "text"),
    [
        ("word", "the", b" the"),
        ("word", "café", b" caf\xc3\xa9"),
        ("wordpiece", "the", b" the"),
        ("wordpiece", "##e", b"e"),
        ("wordpiece", "##é", b"\xc3\xa9"),
        ("bpe", "Ġthe", b" the"),
        ("bpe", "e", b"e"),
        ("bpe", "Ã", b"\xc3"),
        ("bpe", "Ċ", b"\n"),
        ("char", "é", b"\xc3\xa9"),
        ("char", " ", b" "),
    ],
)
def test_a_word_owns_the_space_before_it(kind, token, text):
    ours = tokenizer(kind)
    assert token_bytes(ours)[ours.token_id(token)] == text


def test_byte_level_tokens_are_read_in_the_alphabet_of_the_library():
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ours = tokenizer("bpe")
    found = token_bytes(ours)
    # Every byte that occurs in UTF-8 at all: the first code points of each length, and all leads.
    points = [
        *range(0x800),
        *range(0x800, 0xD800, 0x800),
        *(0xE000, 0xF000),
        *range(0x10000, 0x110000, 0x8000),
    ]
    seen = set()
    for point in points:
        [(written, _)] = split.pre_tokenize_str(chr(point))
        single = [found[ours.token_id(character)] for character in written]
        assert b"".join(single) == chr(point).encode()
        seen |= set(single)
    assert len(seen) == 256 - 13  # C0, C1 and F5 to FF occur in no text
    single = {found[ours.token_id(character)] for character in pre_tokenizers.ByteLevel.alphabet()}
    assert single == {bytes([byte]) for byte in range(256)}


@each_kind
@each_normalisation
@given(text=texts)
def test_the_bytes_of_a_texts_tokens_are_the_text(kind, normalisation, text):
    ours = tokenizer(kind, normalisation)
    ids = ours.encode(text)[1:-1]
    if ours.unk in ids:
        return
    found = b"".join(spelling(kind, normalisation).tokens[id] for id in ids)
    [plain] = normalised([text], normalisation)
    words = "".join(f" {word}" for word in ours.words(text))
    assert found.decode() == (plain if kind in ("bpe", "char") else words)


# Bytes as tokens


@each_kind
@each_normalisation
def test_every_token_spells_itself(kind, normalisation):
    ours = spelling(kind, normalisation)
    for id, text in enumerate(ours.tokens):
        if text is not None:
            assert ours.spell(text) == [id]
    some = max(id for id, text in enumerate(ours.tokens) if text is not None)
    assert spelled(tokenizer(kind, normalisation), ours.tokens[some]) == [some]


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
@each_normalisation
@given(text=texts)
def test_a_word_with_its_space_has_the_tokens_that_the_tokenizer_gives_it(
    kind, normalisation, text
):
    ours = tokenizer(kind, normalisation)
    for word in ours.words(text):
        if len(word) <= LONGEST_WORD:
            found = spelling(kind, normalisation).spell(b" " + word.encode())
            assert found == ours.encode(word)[1:-1]


@pytest.mark.parametrize("kind", ["bpe", "char"])
@each_normalisation
@given(text=texts)
def test_a_word_of_bytes_or_characters_has_the_tokens_that_the_tokenizer_gives_it(
    kind, normalisation, text
):
    ours = tokenizer(kind, normalisation)
    for word in ours.words(text):
        found = spelling(kind, normalisation).spell(word.encode())
        # A token that the merges do not reach is still the token of its bytes.
        assert len(found) == 1 or found == ours.encode(word)[1:-1]


@given(st.one_of(st.binary(max_size=20), texts.map(str.encode)))
def test_byte_level_bpe_spells_any_bytes_exactly(text):
    ours = spelling("bpe")
    assert b"".join(ours.tokens[id] for id in ours.spell(text)) == text


@each_kind
@given(text=st.one_of(st.binary(max_size=20), texts.map(str.encode)))
def test_any_bytes_but_none_have_a_spelling(kind, text):
    ours = spelling(kind)
    found = ours.spell(text)
    assert bool(found) == bool(text)
    assert not {0, 1} & set(found)
    assert all(0 <= id < len(ours.tokens) for id in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b" the", ["the"]),
        (b"the", ["the"]),  # at the start of a text
        ("café".encode(), ["café"]),
        (b"caf\xc3", [UNK]),  # half of its last character
        (b" of the", ["of", "the"]),
        (b" often the", [UNK, "the"]),  # not "of" and then something
        (b" the!", ["the", UNK]),
        (b" th", [UNK]),
        (b" ", [UNK]),
    ],
)
def test_words_are_looked_up_whole(text, expected):
    ours = build.word_level(["the", "of", "café"])
    assert tokens(ours, spelled(ours, text)) == expected


def pieces(*entries: str) -> Tokenizer:
    def change(document):
        vocabulary = {token: id for id, token in enumerate([*build.SPECIAL, *entries])}
        document["model"]["vocab"] = vocabulary

    return changed("wordpiece", change)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b" cats", ["cat", "##s"]),
        (b"s", ["##s"]),
        (b"catss", ["cat", "##s", "##s"]),  # nothing continues with "c": a word begins
        (b"as", ["##a", "##s"]),  # both can be; without a space it continues
        (b"i", ["i"]),  # a whole word, and no piece of these bytes
        (b"sa", ["sa"]),  # a whole word before "##s" and "##a"
        (b" as", ["a", "##s"]),
        (b" cat as", ["cat", "a", "##s"]),
        (b"s as", ["##s", "a", "##s"]),
        (b" cath", [UNK]),
        (b" cath cat", [UNK, "cat"]),
        ("é".encode(), ["##é"]),
        (b"\xc3", [UNK]),
        (b"  ", [UNK]),
        (b" ##", ["##"]),  # the prefix by itself continues nothing
    ],
)
def test_pieces_continue_a_word_where_there_is_no_space(text, expected):
    ours = pieces("a", "##a", "cat", "##s", "i", "sa", "##é", "##")
    assert tokens(ours, spelled(ours, text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b" ab", [" ", "a", "b"]),
        ("bé".encode(), ["b", "é"]),
        (b"a\xc3", ["a", UNK]),
        (b"\xa9a", [UNK, "a"]),
        (b"ax", ["a", UNK]),
    ],
)
def test_characters_are_spelled_one_by_one(text, expected):
    ours = build.learn("char", list("abé"), 1000)
    assert tokens(ours, spelled(ours, text)) == expected


def merging(*merges: tuple[str, str], extra: tuple[str, ...] = ()) -> Tokenizer:
    """Byte-level BPE with these merges, in this order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = ["⟨bos⟩", "⟨eos⟩", *alphabet, *(left + right for left, right in merges), *extra]

    def change(document):
        document["model"]["vocab"] = {token: id for id, token in enumerate(entries)}
        document["model"]["merges"] = [list(pair) for pair in merges]

    return changed("bpe", change)


def test_merges_apply_in_their_order_and_an_exact_token_goes_first():
    ours = merging(("b", "c"), ("a", "b"), extra=("abc", "Ã©Ġ"))
    assert tokens(ours, spelled(ours, b"abcd")) == ["a", "bc", "d"]
    assert tokens(ours, spelled(ours, b"abd")) == ["ab", "d"]
    assert tokens(ours, ours.encode("abc")[1:-1]) == ["a", "bc"]  # the merges do not reach it
    assert tokens(ours, spelled(ours, b"abc")) == ["abc"]
    assert tokens(ours, spelled(ours, "é ".encode())) == ["Ã©Ġ"]
    assert tokens(ours, spelled(ours, "é".encode())) == ["Ã", "©"]


# What cannot be spelled


def character_level(document):
    document["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}} | {
        "behavior": "Isolated",
        "invert": False,
    }


def without_a_byte(document):
    vocabulary = document["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last + "x"] = vocabulary.pop("!")
    document["model"]["merges"] = []


def foreign_character(document):
    vocabulary = document["model"]["vocab"]
    vocabulary["<pad me>"] = len(vocabulary)


def marked_ends(document):
    document["model"]["end_of_word_suffix"] = "</w>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (character_level, "tokenizer of 286 tokens is not byte-level"),
        (marked_ends, "is not byte-level"),
        (without_a_byte, "token for each of the 256 bytes, and 1 of them are missing"),
        (foreign_character, "'<pad me>' is not written in the alphabet of byte-level BPE"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_bpe_that_stands_for_no_bytes_is_refused(change, message):
    ours = changed("bpe", change)
    for attempt in (token_bytes, lambda each: spelled(each, b"a")):
        with pytest.raises(ValueError, match=message):
            attempt(ours)
