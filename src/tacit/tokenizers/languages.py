"""Public lists of a language's words with their frequencies, from the package wordfreq.

wordfreq (Speer 2022) counts words in books, subtitles, news, the web and more, in 42 languages.
Its words are not quite those of our tokenizers, so that the lists are fitted to them:

    numbers       the list has one entry for all numbers of as many digits ("0000"); it is divided
                  over the numbers themselves as wordfreq divides it (years are frequent)
    case folding  wordfreq writes "ss" for "ß" and "σ" for "ς": a German word with "ss" is listed
                  in both spellings, since either may be right, and a Greek one ends in "ς"
    punctuation   the lists have none: marks get a share that is typical of prose

Chinese, Japanese and Korean text is not divided into the words of these lists by spaces, so no
dictionary can be made of them; BPE and characters can.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

DEFAULT = "en"
UNSPACED = {"zh": "Chinese", "ja": "Japanese", "ko": "Korean"}
"""Languages whose lists have words that are not divided by spaces in a text."""

_PACKAGE = "wordfreq"
_MOST_WORDS = 100_000  # of a language, far more than any dictionary here has

# Shares of all tokens, rounded, as in English prose; other marks are as frequent as a rare word.
_MARKS = {".": 0.05, ",": 0.05, '"': 0.01, "-": 0.01, "?": 0.008, "!": 0.004, "'": 0.004} | {
    ":": 0.004, ";": 0.002, "(": 0.002, ")": 0.002, "…": 5e-4, "“": 5e-4, "”": 5e-4, "—": 5e-4,
}  # fmt: skip
_OTHER_MARKS = (
    "!#$%&*+/<=>@[\\]^_`{|}~„‘«»‹›–·•¿¡§°€£¥×→"  # Latin, Greek and Cyrillic script
    "،؟؛۔।׳״־"  # Arabic, Hindi, Hebrew
    "；『』（）《》～・"  # Chinese and Japanese
)
_UNSPACED_MARKS = {"。": 0.04, "，": 0.04, "、": 0.02, "？": 0.005, "！": 0.005} | {
    "：": 0.002, "「": 0.002, "」": 0.002,
}  # fmt: skip


def language_in(name: str) -> str | None:
    """The language of a name such as "wordfreq:de"; "wordfreq" is English; None of other names.

    Raises `ValueError` with the languages that there are if there is no list of this one.
    """
    package, colon, language = name.partition(":")
    if package != _PACKAGE:
        return None
    language = language if colon else DEFAULT
    if language not in known():
        raise ValueError(
            f"wordfreq has no list of words for {language!r}; it has {', '.join(known())}"
        )
    return language


@lru_cache(1)
def known() -> tuple[str, ...]:
    """The codes of all languages that there is a list of."""
    import wordfreq

    return tuple(sorted(wordfreq.available_languages("small")))


def common_words(language: str, count: int) -> list[str]:
    """The most frequent words of a language as wordfreq writes them; quickly."""
    import wordfreq

    return wordfreq.top_n_list(language, count, "small")


@lru_cache(4)
def word_frequencies(language: str) -> dict[str, float]:
    """A language's words and marks with their shares of a text, the most frequent first.

    The shares have four digits, so that they are the same on every machine.
    """
    import wordfreq
    from wordfreq.numbers import digit_freq, has_digit_sequence

    marks = _MARKS | _UNSPACED_MARKS if language in UNSPACED else _MARKS
    shares = {mark: 1e-5 for mark in _OTHER_MARKS} | marks
    listed = wordfreq.get_frequency_dict(language, "best")  # the most frequent come first
    for word, share in islice(listed.items(), _MOST_WORDS):
        if not has_digit_sequence(word):
            spelled = _spellings(word, share, language)
        elif set(word) == {"0"} and len(word) <= 4:
            numbers = (f"{number:0{len(word)}}" for number in range(10 ** len(word)))
            spelled = {number: share * digit_freq(number) for number in numbers}
        else:
            continue
        for spelling, part in spelled.items():
            shares[spelling] = shares.get(spelling, 0.0) + part
    ordered = sorted(shares, key=lambda word: (-shares[word], word))
    return {word: float(f"{shares[word]:.3e}") for word in ordered}


def _spellings(word: str, share: float, language: str) -> dict[str, float]:
    """How people write a word of the list, which is case-folded, and the share of each way."""
    if language == "de" and "ss" in word:
        return {word: share / 2, word.replace("ss", "ß"): share / 2}
    if language == "el" and word.endswith("σ") and len(word) > 1:
        return {word[:-1] + "ς": share}
    return {word: share}
