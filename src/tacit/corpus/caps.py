"""The first n words of a text."""

from __future__ import annotations

import re
from itertools import islice

_WORD = re.compile(r"\S+")


def first_words(text: str, count: int) -> str:
    """The text up to the end of its count-th word; words are divided as by `str.split`."""
    if count <= 0:
        return ""
    last = next(islice(_WORD.finditer(text), count - 1, count), None)
    return text if last is None else text[: last.end()]
