r"""What a word is, the same for every kind of tokenizer, so that per-word metrics compare.

The papers say little.  McMahan 2018 (appendix B) takes "the most frequent 10,000 words (after
normalization)" and scores "after some minimal normalization", without saying which; a text is a
sequence between an implicit BOS and EOS.  Thakkar 2020 has "a word-level language model" and does
not describe its words.  Bagdasaryan 2022 (section 5.1) takes HuggingFace's WordLevel and BPE, with
each post between BOS and EOS.  So the choice `papers` is ours, and as small as a dictionary allows:

    lower-case, NFC, ’ becomes ', white space becomes single spaces with none at the ends.

`cased` is the same but keeps the case, and `none` leaves the text exactly as it is.  Under any, a
word is a run of letters, digits, marks and underscores, with apostrophes inside ("don't"), and
every other character that is not white space is a word of its own, together with the combining
marks that follow it.  Therefore every character belongs to exactly one word or is white space.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from tokenizers import Regex, normalizers, pre_tokenizers

Normalisation = Literal["papers", "cased", "none"]

# White space is spelled out, because the classes \s of Python, Rust and Oniguruma differ.
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_SPACE = "".join(f"\\x{{{ord(character):x}}}" for character in WHITE_SPACE)
_START, _INNER = r"\p{L}\p{N}_", r"\p{L}\p{M}\p{N}_"
_WORD = rf"[{_START}][{_INNER}]*(?:['’][{_START}][{_INNER}]*)*"
_SYMBOL = rf"[^{_START}{_SPACE}]\p{{M}}*"
_WORDS = rf"{_WORD}|{_SYMBOL}"
# As in GPT-2, a space goes with the word after it; other white space stands by itself.
_SPACED_WORDS = rf" ?{_WORD}| ?{_SYMBOL}|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
_UNEVEN_SPACE = rf"[{_SPACE}]{{2,}}|(?! )[{_SPACE}]"
# Characters that Python classes and lower-cases as the library does, and that NFC leaves alone:
# Latin and Cyrillic letters, typographic punctuation and emoji.
_PLAIN = re.compile(
    "[\x00-\x84\x86-\x9f\xa1-\u012f\u0131-\u017f\u0400-\u045f\u2010-\u2027\u2030-\u205e€™"
    "\U0001f300-\U0001f3fa\U0001f400-\U0001faff]*"
)
_PLAIN_WORDS = re.compile(rf"\w+(?:'\w+)*|[^\w{WHITE_SPACE}]")
_ASCII_WORDS = re.compile(r"\w+(?:'\w+)*|[^\w\t\n\x0b\x0c\r ]", re.ASCII)


@functools.cache  # compiling takes a millisecond, and some ask for every user anew
def normalizer(normalisation: Normalisation) -> normalizers.Normalizer | None:
    """The normaliser of tokenizer.json; None where the text stays as it is.

    Raises `ValueError` if there is no normalisation of that name.
    """
    if normalisation not in get_args(Normalisation):
        names = ", ".join(map(repr, get_args(Normalisation)))
        raise ValueError(f"normalisation must be one of {names}, got {normalisation!r}")
    if normalisation == "none":
        return None
    lower_case = [normalizers.Lowercase()] if normalisation == "papers" else []
    return normalizers.Sequence(
        [
            *lower_case,
            normalizers.NFC(),  # after lower-casing, which can leave what NFC would compose
            normalizers.Replace("’", "'"),
            normalizers.Replace(Regex(_UNEVEN_SPACE), " "),
            normalizers.Strip(),
        ]
    )


def name_of(document: dict[str, Any]) -> Normalisation | None:
    """The normalisation of a parsed tokenizer.json; None if it is one of another library."""
    for name in get_args(Normalisation):
        rule = normalizer(name)
        if document["normalizer"] == (None if rule is None else json.loads(rule.__getstate__())):
            return name  # type: ignore[no-any-return]
    return None


@functools.cache
def word_split(*, spaced: bool = False) -> pre_tokenizers.PreTokenizer:
    """What splits a text into words; white space is dropped, or if `spaced` goes with the words."""
    if spaced:
        return pre_tokenizers.Split(Regex(_SPACED_WORDS), behavior="isolated")
    return pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)


def normalised(texts: Iterable[str], normalisation: Normalisation) -> Iterator[str]:
    """Each text after the normalisation."""
    rule = normalizer(normalisation)
    for text in strings(texts):
        yield text if rule is None else rule.normalize_str(text)


def split_words(texts: Iterable[str], normalisation: Normalisation) -> Iterator[list[str]]:
    """The normalised words of each text."""
    split, rule = word_split(), normalizer(normalisation)
    for text in strings(texts):
        if (words := plain_words(text, normalisation)) is not None:
            yield words
        else:
            changed = text if rule is None else rule.normalize_str(text)
            yield [word for word, _ in split.pre_tokenize_str(changed)]


def plain_words(text: str, normalisation: Normalisation) -> list[str] | None:
    """The normalised words of a text of plain characters; None if it has others.

    Python's own expressions find them, which is much faster than the library.
    """
    if text.isascii():
        return _ASCII_WORDS.findall(text.lower() if normalisation == "papers" else text)
    if normalisation == "none" or not _PLAIN.fullmatch(text):
        return None
    cased = text.lower() if normalisation == "papers" else text
    return _PLAIN_WORDS.findall(cased.replace("’", "'"))


def is_word_split(document: dict[str, Any]) -> bool:
    """Whether a parsed tokenizer.json splits a text into words as `word_split` does."""
    splitter = document["pre_tokenizer"] or {}
    first = splitter["pretokenizers"][0] if splitter.get("type") == "Sequence" else splitter
    ours = (word_split(spaced=spaced) for spaced in (False, True))
    return any(first == json.loads(split.__getstate__()) for split in ours)


def count_words(texts: Iterable[str], normalisation: Normalisation = "papers") -> Counter[str]:
    """How often each normalised word occurs."""
    counts: Counter[str] = Counter()
    for words in split_words(texts, normalisation):
        counts.update(words)
    return counts


def index_words(
    words: Iterable[str], normalisation: Normalisation = "papers", what: str = "word"
) -> dict[str, int]:
    """The index of each word in a list of words.

    A word that the normalisation would change or split could never be matched, and is refused; so
    is a word that stands in the list twice.
    """
    words = list(strings(words))
    index: dict[str, int] = {}
    for word, split in zip(words, split_words(words, normalisation), strict=True):
        if split != [word]:
            raise ValueError(
                f"the {what} {word!r} must be one word as the normalisation {normalisation!r}"
                f" leaves it, which makes {split} of it"
            )
        if word in index:
            raise ValueError(f"the {what} {word!r} is in the list twice")
        index[word] = len(index)
    return index


def strings(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each checked to be Unicode text.

    A corpus of users is refused: a tokenizer learnt from people's own text is made by `oracle`,
    which marks it as one that voids the guarantee.
    """
    if isinstance(texts, str):
        raise ValueError("texts must be many strings, got one: put it into a list")
    if hasattr(texts, "user_id"):
        raise ValueError("texts must be strings: users' own text makes a tokenizer an `oracle`")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, and text {number} is {type(text).__name__}")
        yield check_unicode(text, number)


def check_unicode(text: str, number: int | None = None) -> str:
    """The text itself if it can be written as UTF-8, which half of a surrogate pair cannot.

    The message names the text by its number and never quotes it, since it may be a user's.
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        name = "a text" if number is None else f"text {number}"
    # Outside of the `except`, whose error holds the text itself.
    raise ValueError(f"{name} has half of a surrogate pair, which is not Unicode")
