"""Word vectors from a file in FastText's text format (Bojanowski et al. 2017), perhaps gzipped.

    2 3                  how many words, and how many numbers each has
    the 0.1 -0.2 0.03
    to 0.04 0.5 -0.06

Vectors learnt from public text cost no privacy; those learnt from people's text are not for here.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WordVectors:
    """A row for each requested word, and which of them the file has; the others have zeros."""

    values: NDArray[np.float32]
    known: NDArray[np.bool_]


def read_word_vectors(path: str | Path, words: Sequence[str], size: int) -> WordVectors:
    """The vectors of these words, which the file must have in `size` dimensions.

    A word in lower case that the file only has with capitals gets that vector, the first such one:
    files are in order of frequency.  Whatever else is in the file takes no memory.
    """
    path = Path(path)
    rows = {word: row for row, word in enumerate(words)}
    values = np.zeros((len(words), size), np.float32)
    known = np.zeros(len(words), bool)
    exact = np.zeros(len(words), bool)
    for number, word, numbers in _entries(path, size):
        is_exact = word in rows
        row = rows.get(word if is_exact else word.lower())
        if row is None or exact[row] or (known[row] and not is_exact):
            continue
        values[row] = _vector(path, number, word, numbers)
        known[row], exact[row] = True, is_exact
    return WordVectors(values, known)


def _entries(path: Path, size: int) -> Iterator[tuple[int, str, bytes]]:
    """(line number, word, its numbers as text) of each line; raises on any other count of words."""
    lines = enumerate(_lines(path), 1)
    count = _count(path, next(lines, (1, b""))[1], size)
    number = 1
    for number, line in lines:
        name, _, numbers = line.rstrip().partition(b" ")
        if numbers.count(b" ") != size - 1 or not name or not numbers:
            raise ValueError(
                f"{path}, line {number}: expected a word and {size} numbers with one space"
                f" between, got {_shown(line)}"
            )
        try:
            yield number, name.decode(), numbers
        except UnicodeDecodeError:
            raise ValueError(f"{path}, line {number}: the word is not UTF-8") from None
    if number - 1 != count:
        raise ValueError(
            f"{path}, line {number}: the file ends after {number - 1} words, and its first line"
            f" says {count}"
        )


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked on the fly if it begins as a gzip file does.

    A file that cannot be read is a `ValueError`, and so is a damaged gzip file: it names the line.
    """
    number = 0
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            for line in gzip.GzipFile(fileobj=file) if is_packed else file:
                number += 1
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(
            f"{path}, line {number + 1}: the gzip file is cut off or damaged here"
        ) from None
    except OSError as problem:
        raise ValueError(
            f"{path} cannot be read as word vectors: {problem.strerror or problem}"
        ) from None


def _count(path: Path, header: bytes, size: int) -> int:
    """How many words the first line promises, if they are of the wanted size."""
    parts = header.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise ValueError(
            f"{path}, line 1: expected how many words there are and how many numbers each has, got"
            f" {_shown(header)}"
        )
    count, stored_size = map(int, parts)
    if stored_size != size:
        raise ValueError(
            f"{path}, line 1: its vectors have {stored_size} numbers, and the model's words have"
            f" {size}: set word_size to {stored_size}, or take other vectors"
        )
    return count


def _vector(path: Path, number: int, word: str, numbers: bytes) -> NDArray[np.float32]:
    """The numbers of one line as float32, if all of them are finite numbers."""
    try:
        with np.errstate(over="ignore"):  # what overflows is refused below
            vector = np.array(numbers.split(b" "), dtype=np.float64).astype(np.float32)
    except ValueError:
        raise ValueError(
            f"{path}, line {number}: the vector of {word!r} has something in it that is no number"
        ) from None
    if not np.isfinite(vector).all():
        raise ValueError(f"{path}, line {number}: the vector of {word!r} is not finite")
    return vector


def _shown(line: bytes) -> str:
    """The beginning of a line, for an error message."""
    text = line.rstrip().decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")
