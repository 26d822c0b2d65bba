"""Small keyed samples of large data, by which the same people and the same lines are found again.

Both kinds keep what has the smallest keyed hashes.  Whether a member is kept therefore follows from
the member and the key alone: it is kept, or left out, in every sample alike, so two samples can be
compared.  A sample reveals nothing to a reader who does not know the key.

`Sketch` samples a set, such as the user ids of a corpus.  Let t be the least of the two largest
hashes kept (infinite for a set that is kept whole).  Below t both sketches are complete: of the
smaller set's members there, those that the other has too are a fraction that estimates the share of
the smaller set that is in the other.  With n members below t its standard error is at most
1 / (2 sqrt(n)); a subset gives exactly 1 and a disjoint set exactly 0, whatever n.  If both sets
are kept whole, the share is exact.

`LineSketch` samples the lines of some text.  Lines are divided at newlines, stripped of ASCII
blanks, and counted if they have at least five words: shorter ones ("ok thanks") are everybody's.
Each has a *rank*, mixed from its length and eight bytes at its start, middle and end; the lines
with the lowest ranks are kept, each as a keyed 128-bit hash of all of it.  A rank is cheap enough
to compute for every line of a corpus, an array at a time; the hash is needed for few.
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

from tacit.corpus.hashing import mixed

# Large enough that a hundredth of the people known is still recognised.
_SKETCH_SIZE = 8192
LINES_KEPT = 4096
_LEAST_WORDS = 5
_LEAST_BYTES = 2 * _LEAST_WORDS - 1
_BATCH = 1 << 16
_NEWLINE = 10
_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", np.uint8))
_LAST = 2**64 - 1

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sketch:
    """The smallest keyed hashes of a set, ascending, and how many members the set has."""

    values: Hashes
    count: int
    size: int = _SKETCH_SIZE

    @classmethod
    def of(cls, members: Iterable[bytes], key: bytes, size: int = _SKETCH_SIZE) -> Sketch:
        """The sketch of a set; a member that comes twice counts once."""
        blake, parts, source = hashlib.blake2b, [np.zeros(0, np.uint64)], iter(members)
        while batch := list(islice(source, _BATCH)):
            hashes = b"".join([blake(member, digest_size=8, key=key).digest() for member in batch])
            parts.append(np.frombuffer(hashes, ">u8").astype(np.uint64))
        values = np.unique(np.concatenate(parts))
        return cls(values[:size].copy(), len(values), size)

    def share(self, other: Sketch) -> float:
        """The estimated share of the smaller set that is in the other as well.

        It is 0 for an empty set, and where no member of the smaller set is below the bound: that
        happens if the sets' counts differ by more than a factor of `size`.
        """
        small, large = sorted((self, other), key=lambda sketch: sketch.count)
        bound = min((s.values[-1] for s in (small, large) if s.count > s.size), default=None)
        seen = small.values if bound is None else small.values[small.values <= bound]
        if not len(seen):
            return 0.0
        return float(np.isin(seen, large.values, assume_unique=True).mean())

    def to_json(self) -> dict[str, Any]:
        """As data for JSON."""
        values = self.values.astype(">u8").tobytes().hex()
        return {"size": self.size, "count": self.count, "values": values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sketch:
        """From what `to_json` gave; anything else is refused."""
        try:
            size, count = data["size"], data["count"]
            values = np.frombuffer(bytes.fromhex(data["values"]), ">u8").astype(np.uint64)
            if len(values) != min(size, count) or not bool((values[1:] > values[:-1]).all()):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError("a sketch is damaged") from None
        return cls(values, count, size)


@dataclass(frozen=True)
class _Lines:
    """Where in some bytes the lines are that may count: stripped, and not too short."""

    octets: npt.NDArray[np.uint8]
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, data: Any, text_ends: Numbers) -> _Lines:
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
        """The lines of at least five words with ranks up to `last`, the lowest rank first."""
        if not len(self.starts):
            return
        ranks = self._ranks(key)
        chosen = np.flatnonzero(ranks <= np.uint64(last))
        chosen = chosen[np.argsort(ranks[chosen], kind="stable")]
        for index in chosen.tolist():
            line = self.octets[self.starts[index] : self.ends[index]].tobytes()
            if len(line.split()) >= _LEAST_WORDS:
                yield int(ranks[index]), line

    def _ranks(self, key: bytes) -> Hashes:
        """Each line's rank: 64 bits that follow from the key and some of its bytes."""
        label = hashlib.blake2b(b"tacit place of a line", digest_size=8, key=key).digest()
        rank = mixed((self.ends - self.starts).astype(np.uint64) ^ np.frombuffer(label, "<u8")[0])
        for eight in self._samples:
            rank = mixed(rank ^ eight)
        return rank

    @cached_property
    def _samples(self) -> list[Hashes]:
        """Eight bytes of each line from its start, its middle and its end."""
        windows = np.lib.stride_tricks.sliding_window_view(self.octets, 8)
        offsets = (self.starts, (self.starts + self.ends) // 2 - 4, self.ends - 8)
        return [np.ascontiguousarray(windows[offset]).view("<u8")[:, 0] for offset in offsets]


@dataclass(frozen=True)
class LineSketch:
    """The kept lines of some text: from each one's hash to its rank."""

    hashes: Mapping[bytes, int]
    size: int = LINES_KEPT

    def __len__(self) -> int:
        return len(self.hashes)

    def joined(self, other: LineSketch) -> LineSketch:
        """The sketch of both texts together, which must have been made with one key."""
        size = max(self.size, other.size)
        hashes = {**self.hashes, **other.hashes}
        rows = sorted((rank, hashed) for hashed, rank in hashes.items())[:size]
        return LineSketch({hashed: rank for rank, hashed in rows}, size)

    def to_json(self) -> dict[str, Any]:
        """As data for JSON."""
        rows = sorted((rank, hashed) for hashed, rank in self.hashes.items())
        return {
            "size": self.size,
            "places": b"".join(rank.to_bytes(8, "big") for rank, _ in rows).hex(),
            "hashes": b"".join(hashed for _, hashed in rows).hex(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LineSketch:
        """From what `to_json` gave; anything else is refused."""
        try:
            size = int(data["size"])
            ranks = np.frombuffer(bytes.fromhex(data["places"]), ">u8").tolist()
            hashes = np.frombuffer(bytes.fromhex(data["hashes"]), "V16").tolist()
            if not len(ranks) == len(hashes) <= size:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError("a sketch of lines is damaged") from None
        return cls(dict(zip(hashes, ranks, strict=True)), size)


def add_lines(sketches: dict[bytes, LineSketch], data: Any, text_ends: Numbers) -> None:
    """Let each of some sketches, by their keys, take the lines of more texts.

    The texts lie one after the other in UTF-8, each up to its end.  A sketch never grows beyond its
    size, and the lines are looked for once for all keys.
    """
    lines = _Lines.of(data, text_ends)
    for key, sketch in sketches.items():
        is_full = len(sketch) == sketch.size
        last = max(sketch.hashes.values()) if is_full else _LAST  # no higher rank is kept
        new: dict[bytes, int] = {}
        highest = 0
        for rank, line in lines.lowest(key, last):
            # They come in ascending order: at most `size` can be kept, but for equal ranks.
            if len(new) >= sketch.size and rank > highest:
                break
            new[_hash(line, key)] = highest = rank
        sketches[key] = sketch.joined(LineSketch(new, sketch.size))


def count_found(samples: Sequence[tuple[LineSketch, bytes]], lines: Iterable[str]) -> list[int]:
    """For each (sketch, its key), how many of the lines kept in it are among `lines`."""
    seen: list[set[bytes]] = [set() for _ in samples]
    source = iter(lines)
    while batch := list(islice(source, _BATCH)):
        data = "\n".join(batch).encode(errors="surrogatepass")
        block = _Lines.of(data, np.array([len(data)]))
        for (sketch, key), hits in zip(samples, seen, strict=True):
            last = max(sketch.hashes.values(), default=0)
            hashes = (_hash(line, key) for _, line in block.lowest(key, last))
            hits.update(hashed for hashed in hashes if hashed in sketch.hashes)
    return list(map(len, seen))


def _hash(line: bytes, key: bytes) -> bytes:
    """The keyed hash by which a line is kept."""
    return hashlib.blake2b(line, digest_size=16, key=key).digest()
