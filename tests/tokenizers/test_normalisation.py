"""What a word is."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.tokenizers import normalisation as normalisations
from tests.tokenizers.fakes import NORMALISATIONS, FakeSource, texts


def words(text: str, normalisation: str = "papers") -> list[str]:
    [found] = normalisations.split_words([text], normalisation)  # type: ignore[arg-type]
    return found


def normal(text: str) -> str:
    [result] = normalisations.normalised([text], "papers")
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("I don’t, you don't", ["i", "don't", ",", "you", "don't"]),
        ("'quoted' rock'n'roll'", ["'", "quoted", "'", "rock'n'roll", "'"]),
        ("snake_case a1 10.5", ["snake_case", "a1", "10", ".", "5"]),
        ("wait...?!", ["wait", ".", ".", ".", "?", "!"]),
        ("re\u0301sume\u0301 x\u0301", ["résumé", "x\u0301"]),
        ("I \N{HEAVY BLACK HEART}\ufe0f it", ["i", "\N{HEAVY BLACK HEART}\ufe0f", "it"]),
        ("a\u3000b\xa0c\u2028d", ["a", "b", "c", "d"]),
        (" \n ", []),
        ("", []),
    ],
)
def test_words_are_split_from_punctuation(text, expected):
    assert words(text) == expected


def test_without_normalisation_words_stay_as_they_are():
    assert words("I don’t, RE\u0301", "none") == ["I", "don’t", ",", "RE\u0301"]


@given(texts)
def test_every_character_belongs_to_one_word_or_is_white_space(text):
    left = "".join(words(text, "none"))
    assert left == "".join(c for c in text if c not in normalisations.WHITE_SPACE)


@given(texts)
@example("J\u030c")  # lower-cased, it has a composed form
def test_normalising_twice_changes_nothing(text):
    assert normal(normal(text)) == normal(text)


@given(texts)
def test_the_papers_words_are_the_words_of_the_normalised_text(text):
    assert words(text) == words(normal(text), "none")


@given(texts)
def test_each_word_is_one_word(text):
    for normalisation in NORMALISATIONS:
        for word in words(text, normalisation):
            assert words(word, normalisation) == [word]


@given(st.text(st.characters(max_codepoint=127)))
def test_the_fast_way_on_ascii_equals_the_expressions_in_tokenizer_json(text):
    split = normalisations.word_split()
    for normalisation in NORMALISATIONS:
        [changed] = normalisations.normalised([text], normalisation)
        assert words(text, normalisation) == [word for word, _ in split.pre_tokenize_str(changed)]


@given(texts)
def test_spaced_words_are_the_words_and_lose_nothing(text):
    pieces = normalisations.word_split(spaced=True).pre_tokenize_str(text)
    assert "".join(piece for piece, _ in pieces) == text
    stripped = [piece.strip(normalisations.WHITE_SPACE) for piece, _ in pieces]
    assert [piece for piece in stripped if piece] == words(text, "none")


def test_counting_does_not_depend_on_the_order():
    counts = normalisations.count_words(["a b", "B c b"], "papers")
    assert counts == {"a": 1, "b": 3, "c": 1}
    assert counts == normalisations.count_words(["B c b", "a b"], "papers")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("one string", "got one: put it into a list"),
        (["fine", 3], "text 1 is int"),
        ([None], "text 0 is NoneType"),
        (["a\ud800"], "text 0 has half of a surrogate pair"),
        (FakeSource((("a",),)), "users' own text makes a tokenizer an `oracle`"),
    ],
)
def test_what_is_not_text_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        list(normalisations.split_words(bad, "papers"))


def test_an_unknown_normalisation_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'papers', 'cased', 'none', got 'paper'"):
        normalisations.normalizer("paper")  # type: ignore[arg-type]


def test_cased_is_the_papers_normalisation_but_for_the_case():
    text = "Der  Hund’s\tNäpfe "
    assert list(normalisations.normalised([text], "cased")) == ["Der Hund's Näpfe"]
    assert list(normalisations.split_words([text, "The Dog"], "cased")) == [
        ["Der", "Hund's", "Näpfe"],
        ["The", "Dog"],
    ]


@pytest.mark.parametrize("rule", ["papers", "cased"])
def test_every_plain_character_is_split_as_the_library_does(rule):
    characters = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]
    plain = [c for c in characters if normalisations._PLAIN.fullmatch(c)]
    assert 2000 < len(plain) < 3000
    assert not {"\u0130", "\u03a3", "\u0301", "\xa0", "\u2028"} & set(plain)
    normalizer, split = normalisations.normalizer(rule), normalisations.word_split()
    for c in plain:
        text = f"a{c}b {c} {c}{c}A{c} 1{c}'{c}a’{c}"
        expected = [word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))]
        assert normalisations.plain_words(text, rule) == expected
