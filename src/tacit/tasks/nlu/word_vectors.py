"""Word vectors from a file in FastText's text format (Bojanowski et al. 2017), perhaps gzipped.

    2 3                  how many words, and how many numbers each has
    the 0.1 -0.2 0.03
    to 0.04 0.5 -0.06

Vectors learnt from public text cost no privacy; those learnt from people's text are not for here.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.files import opened


def read_word_vectors(
    path: str | Path, words: Collection[str], size: int
) -> dict[str, NDArray[np.float32]]:
    """The vectors of those of the words that the file has; each must have `size` numbers.

    A word in lower case that the file only has with capitals gets that vector, the first such one:
    files are in order of frequency.  Whatever else is in the file takes no memory.

    Raises:
        ValueError: naming file and line, if the file is cut off, damaged or in another format.
    """
    path, asked = Path(path), frozenset(words)
    exact: dict[str, NDArray[np.float32]] = {}
    lowered: dict[str, NDArray[np.float32]] = {}
    number, count = 1, 0
    with opened(path) as file:
        for number, line in enumerate(file.lines(), 1):
            try:
                if number == 1:
                    count = _count(line, size)
                    continue
                word, _, numbers = line.rstrip(" \r\n").partition(" ")
                if numbers.count(" ") != size - 1 or not word or not numbers:
                    raise ValueError(
                        f"expected a word and {size} numbers with one space between, got"
                        f" {_shown(line)}"
                    )
                if word in asked and word not in exact:
                    exact[word] = _vector(word, numbers)
                elif (lower := word.lower()) in asked and not (lower in exact or lower in lowered):
                    lowered[lower] = _vector(word, numbers)
            except ValueError as problem:
                raise ValueError(f"line {number} of {str(path)!r}: {problem}") from None
    if number - 1 != count:
        raise ValueError(
            f"{str(path)!r} ends after {number - 1} words, and its first line says {count}"
        )
    return lowered | exact


def _count(header: str, size: int) -> int:
    """The number of words that the first line promises, if they are of the model's size."""
    parts = header.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(
            f"expected how many words there are and how many numbers each has, got {_shown(header)}"
        )
    count, stored_size = map(int, parts)
    if stored_size != size:
        raise ValueError(
            f"its vectors have {stored_size} numbers, and the model's words have {size}: set"
            f" word_size to {stored_size}, or take other vectors"
        )
    return count


def _vector(word: str, numbers: str) -> NDArray[np.float32]:
    """The numbers of one line as float32, if all of them are finite numbers."""
    try:
        with np.errstate(over="ignore"):  # what overflows is refused below
            vector = np.array(numbers.split(" "), dtype=np.float64).astype(np.float32)
    except ValueError:
        raise ValueError(f"the vector of {word!r} has something in it that is no number") from None
    if not np.isfinite(vector).all():
        raise ValueError(f"the vector of {word!r} is not finite")
    return vector


def _shown(line: str) -> str:
    """The beginning of a line, for an error message."""
    text = line.rstrip()
    return repr(text if len(text) <= 40 else text[:40] + "...")
