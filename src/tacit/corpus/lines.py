"""A keyed sample of the lines of some text, by which the same lines are found again elsewhere.

Lines are divided at newlines, stripped of ASCII blanks, and counted if they have at least five
words: shorter ones ("ok thanks") are everybody's.  Which lines are kept follows from their content
and the key alone: each has a *place*, mixed from its length and eight bytes at its start, middle
and end, and the lines with the lowest places are kept, each as a keyed 128-bit hash of all of it.
A place is cheap enough to compute for every line of a corpus, an array at a time; the hash is
needed for few.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.corpus.shuffle import mixed

SIZE = 4096
LEAST_WORDS = 5
_LEAST_BYTES = 2 * LEAST_WORDS - 1
_BATCH = 1 << 16
_NEWLINE = 10
_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", np.uint8))
_LAST = 2**64 - 1

Places = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lines:
    """Where the lines that may count are in some bytes: stripped, and not too short."""

    octets: npt.NDArray[np.uint8]
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, data: Any, text_ends: Numbers) -> Lines:
        """The lines of texts that lie one after the other in UTF-8, each up to its end."""
        octets = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
        starts, ends = np.concatenate([[0], text_ends[:-1]]), text_ends
        breaks = np.flatnonzero(octets == _NEWLINE)
        if len(breaks):
            starts = np.sort(np.concatenate([starts, breaks + 1]))
            ends = np.sort(np.concatenate([breaks, ends]))
        long = ends - starts >= _LEAST_BYTES
        starts, ends = starts[long], ends[long]
        blank = _BLANK[octets[starts]] | _BLANK[octets[ends - 1]]
        for index in np.flatnonzero(blank).tolist():
            line = octets[starts[index] : ends[index]].tobytes()
            left = line.lstrip()
            starts[index] += len(line) - len(left)
            ends[index] = starts[index] + len(left.rstrip())
        if blank.any():
            long = ends - starts >= _LEAST_BYTES
            starts, ends = starts[long], ends[long]
        return cls(octets, starts, ends)

    def lowest(self, key: bytes, last: int) -> Iterator[tuple[int, bytes]]:
        """The lines of at least five words with places up to `last`, the lowest place first."""
        if not len(self.starts):
            return
        places = self._places(key)
        chosen = np.flatnonzero(places <= np.uint64(last))
        chosen = chosen[np.argsort(places[chosen], kind="stable")]
        for index in chosen.tolist():
            line = self.octets[self.starts[index] : self.ends[index]].tobytes()
            if len(line.split()) >= LEAST_WORDS:
                yield int(places[index]), line

    def _places(self, key: bytes) -> Places:
        """Each line's place: 64 bits that follow from the key and some of its bytes."""
        label = hashlib.blake2b(b"tacit place of a line", digest_size=8, key=key).digest()
        place = mixed((self.ends - self.starts).astype(np.uint64) ^ np.frombuffer(label, "<u8")[0])
        for eight in self._samples:
            place = mixed(place ^ eight)
        return place

    @cached_property
    def _samples(self) -> list[Places]:
        """Eight bytes of each line from its start, its middle and its end."""
        windows = np.lib.stride_tricks.sliding_window_view(self.octets, 8)
        wanted = (self.starts, (self.starts + self.ends) // 2 - 4, self.ends - 8)
        return [np.ascontiguousarray(windows[where]).view("<u8")[:, 0] for where in wanted]


@dataclass(frozen=True)
class LineSketch:
    """The kept lines of some text: from each one's hash to its place."""

    hashes: Mapping[bytes, int]
    size: int = SIZE

    def __len__(self) -> int:
        return len(self.hashes)

    def joined(self, other: LineSketch) -> LineSketch:
        """The sketch of both texts together, which must have been made with one key."""
        return _smallest({**self.hashes, **other.hashes}, max(self.size, other.size))

    def as_json(self) -> dict[str, Any]:
        """As data for JSON."""
        rows = sorted((place, hashed) for hashed, place in self.hashes.items())
        return {
            "size": self.size,
            "places": b"".join(place.to_bytes(8, "big") for place, _ in rows).hex(),
            "hashes": b"".join(hashed for _, hashed in rows).hex(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LineSketch:
        """From what `as_json` gave; anything else is refused."""
        try:
            size = int(data["size"])
            places, hashes = bytes.fromhex(data["places"]), bytes.fromhex(data["hashes"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("a sketch of lines is damaged") from None
        count = len(places) // 8
        if len(places) != 8 * count or len(hashes) != 16 * count or count > size:
            raise ValueError("a sketch of lines is damaged")
        rows = (
            (hashes[16 * i : 16 * i + 16], int.from_bytes(places[8 * i : 8 * i + 8], "big"))
            for i in range(count)
        )
        return cls(dict(rows), size)


class LineSketchMaker:
    """Makes a sketch of texts that come a block at a time, in memory that does not grow."""

    def __init__(self, key: bytes, size: int = SIZE) -> None:
        self._key, self._size = key, size
        self._hashes: dict[bytes, int] = {}
        self._last = _LAST  # no line with a higher place is among the lowest so far

    def add(self, lines: Lines) -> None:
        """Take some lines."""
        new: dict[bytes, int] = {}
        highest = 0
        for place, line in lines.lowest(self._key, self._last):
            # They come in ascending order: no more than `size` can be kept, but for equal places.
            if len(new) >= self._size and place > highest:
                break
            new[_hash(line, self._key)] = highest = place
        self._hashes |= new
        self._prune()

    def finish(self) -> LineSketch:
        """The sketch of all that came."""
        return _smallest(self._hashes, self._size)

    def _prune(self) -> None:
        if len(self._hashes) > self._size:
            self._hashes = dict(_smallest(self._hashes, self._size).hashes)
        if len(self._hashes) == self._size:
            self._last = max(self._hashes.values())


def count_found(samples: Sequence[tuple[LineSketch, bytes]], lines: Iterable[str]) -> list[int]:
    """For each (sketch, its key): how many of the lines kept in it are among the lines given."""
    found: list[set[bytes]] = [set() for _ in samples]
    source = iter(lines)
    while batch := list(islice(source, _BATCH)):
        data = "\n".join(batch).encode(errors="surrogatepass")
        given = Lines.of(data, np.array([len(data)]))
        for (sketch, key), seen in zip(samples, found, strict=True):
            last = max(sketch.hashes.values(), default=0)
            hashes = (_hash(line, key) for _, line in given.lowest(key, last))
            seen.update(hashed for hashed in hashes if hashed in sketch.hashes)
    return list(map(len, found))


def _smallest(hashes: Mapping[bytes, int], size: int) -> LineSketch:
    rows = sorted((place, hashed) for hashed, place in hashes.items())[:size]
    return LineSketch({hashed: place for place, hashed in rows}, size)


def _hash(line: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16, key=key).digest()
