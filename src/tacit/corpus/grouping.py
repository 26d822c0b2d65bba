"""Grouping by user, out of core: rows go to disk and come back sorted, whole users at once.

Rows are sorted by (user's key, the order column, the record's draw, position in the record).  In
the order column numbers come first, by value, then everything else as text, then what is missing.
All of it depends on the row alone, so that neither the order of the input nor any other user
changes the order of a user's texts.  Caps are applied to one user at a time for the same reason.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tacit.corpus import hashing
from tacit.corpus.sentences import sentences
from tacit.privacy import checks

_ROWS_PER_CHUNK = 1 << 16
_CHUNK_BYTES = 1 << 25
_REMEMBERED_USERS = 1 << 17
_SORT_MEMORY = 10  # memory that it takes to sort, for each byte that is sorted
_MOST_BUCKET_BITS = 9  # that many files (2^9) are open at once
_ID_BYTES = 16 + 8  # the hashed id, and behind it the folded one, which costs no column that way

_SCHEMA = pa.schema(
    [
        ("key_head", pa.uint64()),
        ("key_tail", pa.uint64()),
        ("id", pa.binary(_ID_BYTES)),
        ("number", pa.float64()),
        ("word", pa.string()),
        ("draw", pa.uint64()),
        ("position", pa.uint32()),
        ("words", pa.uint32()),
        ("held_out", pa.bool_()),
        ("text", pa.large_string()),
    ]
)
_ORDER = [(name, "ascending") for name in _SCHEMA.names[:2] + _SCHEMA.names[3:7] + ["text"]]


@dataclass(frozen=True)
class UserOptions:
    """Splits and caps; each is applied to a user by itself, so that no user affects another.

    sentences: each text is cut into sentences, which are the user's texts in all that follows.
    test_fraction: this part of the users, by hash of the user id, is for testing.
    held_out_fraction: this part of each user's texts, by hash of user and text, is held out.
    min_texts, min_words: users with less than this in the input are left out.
    max_texts, max_words: only the first N are kept; a text that goes past max_words is cut after
        the last word that fits.
    """

    test_fraction: float = 0.1
    held_out_fraction: float = 0.1
    min_texts: int = 1
    max_texts: int | None = None
    min_words: int = 0
    max_words: int | None = None
    sentences: bool = False

    def __post_init__(self) -> None:
        for name in ("test_fraction", "held_out_fraction"):
            checks.closed_unit(name, getattr(self, name))
        for unit in ("texts", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            checks.whole(f"min_{unit}", least)
            if most is not None and checks.whole(f"max_{unit}", most, at_least=1) < least:
                raise ValueError(
                    f"{checks.argument(f'max_{unit}')} must be at least"
                    f" {checks.argument(f'min_{unit}')} = {least}, got {most}"
                )


class Block(NamedTuple):
    """Some whole users: one row per user, and their texts one after the other."""

    keys: npt.NDArray[np.uint64]  # two numbers each, without salt: fingerprinted and not stored
    ids: bytes  # 16 for each user
    folded: npt.NDArray[np.uint64]  # the same for ids that differ in case or blanks only
    text_counts: npt.NDArray[np.int64]
    word_counts: npt.NDArray[np.int64]
    text: pa.Buffer  # all texts in UTF-8
    text_ends: npt.NDArray[np.int64]  # where each of them ends
    held_out: npt.NDArray[np.bool_]


class Spool:
    """Takes records in any order, keeps them on disk, and gives them back as whole users.

    Raw ids do not reach the disk.  `add` all records, `close`, then iterate over `users`.

    scratch: a folder for its files.
    salt: what user ids are hashed with.
    memory_limit: the memory to sort in, such as '2GiB'; the rest goes to `scratch`.
    """

    def __init__(self, scratch: Path, salt: bytes, options: UserOptions, memory_limit: str) -> None:
        self._memory = _parse_size(memory_limit)
        self._scratch, self._salt, self._options = scratch, salt, options
        self._held_out_below = hashing.threshold(options.held_out_fraction)
        self._path = scratch / "rows.parquet"
        self._writer = pq.ParquetWriter(
            self._path, _SCHEMA, compression="lz4", use_dictionary=False, write_statistics=False
        )
        self._hashes = functools.lru_cache(_REMEMBERED_USERS)(self._hash_user)
        self._chunk: list[tuple[Any, ...]] = []
        self._chunk_bytes = 0
        self.rows = self.bytes = 0

    def add(self, user: str, texts: Sequence[str], order: str | None) -> None:
        """Keep a record: one text, or several that stay in this order."""
        key, head, tail, hashed = self._hashes(user)
        if self._options.sentences:
            texts = [sentence for text in texts for sentence in sentences(text)]
        encoded = [text.encode() for text in texts]
        draw = _record_draw(key, encoded)
        number = None if order is None else _number(order)
        below = self._held_out_below
        for position, (text, data) in enumerate(zip(texts, encoded, strict=True)):
            held_out = below > 0 and hashing.held_out_draw(key, data) < below
            words = len(text.split())
            row = (head, tail, hashed, number, order, draw, position, words, held_out, text)
            self._chunk.append(row)
            self._chunk_bytes += len(data)
        if self._chunk_bytes > _CHUNK_BYTES or len(self._chunk) >= _ROWS_PER_CHUNK:
            self._flush()

    def close(self) -> None:
        """Write what is left; no more records may be added."""
        self._flush()
        self._writer.close()

    def _hash_user(self, user: str) -> tuple[bytes, int, int, bytes]:
        """The user's key, its two halves as numbers, and the hashed and folded id."""
        key = hashing.user_key(user)
        head, tail = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
        hashed = hmac.digest(self._salt, user.encode(), "sha256")[:16]  # all that is stored of it
        return key, head, tail, hashed + _folded_id(user)

    def _flush(self) -> None:
        """Write the records collected so far as one row group."""
        if not self._chunk:
            return
        columns = zip(*self._chunk, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
        batch = pa.record_batch(arrays, schema=_SCHEMA)
        self._writer.write_batch(batch, row_group_size=len(batch))
        self.rows += len(batch)
        self.bytes += batch.nbytes
        self._chunk = []
        self._chunk_bytes = 0

    def users(self) -> Iterator[tuple[Block, int]]:
        """Whole users in ascending order of their keys, capped, and the rows they were made of."""
        for bucket in self._buckets():
            if len(bucket):
                rows = bucket.combine_chunks()
                order = pc.sort_indices(rows, sort_keys=_ORDER)  # what is missing comes last
                yield _block(rows.take(order), self._options), len(rows)

    def _buckets(self) -> Iterator[pa.Table]:
        """The rows in parts that can be sorted in memory, by ascending ranges of the key.

        Rows are dealt to files by the head of their user's key, so a part holds whole users.  What
        has been dealt or read is removed from the disk, which may be small.
        """
        count = -(-self.bytes * _SORT_MEMORY // self._memory)
        bits = min(_MOST_BUCKET_BITS, max(0, count - 1).bit_length())
        if not bits:
            rows = pq.read_table(self._path)
            self._path.unlink()
            yield rows
            return
        paths = [self._scratch / f"bucket-{number:03}" for number in range(1 << bits)]
        compressed = pa.ipc.IpcWriteOptions(compression="lz4")
        with ExitStack() as stack:
            spooled = stack.enter_context(pq.ParquetFile(self._path))
            files = [stack.enter_context(pa.OSFile(str(path), "wb")) for path in paths]
            writers = [
                stack.enter_context(pa.ipc.new_stream(file, _SCHEMA, options=compressed))
                for file in files
            ]
            for group in range(spooled.num_row_groups):
                table = spooled.read_row_group(group)
                bucket = table.column("key_head").to_numpy() >> np.uint64(64 - bits)
                order = np.argsort(bucket, kind="stable")
                table = table.take(pa.array(order))
                ends = np.searchsorted(bucket[order], np.arange((1 << bits) + 1))
                for writer, (start, end) in zip(writers, pairwise(ends.tolist()), strict=True):
                    if end > start:
                        writer.write_table(table.slice(start, end - start))
        self._path.unlink()
        for path in paths:
            with pa.OSFile(str(path)) as file:
                bucket = pa.ipc.open_stream(file).read_all()
            path.unlink()
            yield bucket


def _number(order: str) -> float | None:
    """The value of an order column as a number, or None if it is none."""
    try:
        value = float(order)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _parse_size(memory_limit: str) -> int:
    """The bytes of a size such as '2GiB'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", memory_limit)
    if match is None:
        name = checks.argument("memory_limit")
        raise ValueError(f"{name} must be a size such as '2GiB', got {memory_limit!r}")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" KMGT".index(unit)))


def _folded_id(raw_id: str) -> bytes:
    """8 bytes that are the same for ids that differ in case or in blanks only."""
    same = "".join(raw_id.split()).casefold()
    return hashlib.blake2b(same.encode(), digest_size=8).digest()


def _record_draw(key: bytes, texts: Sequence[bytes]) -> int:
    """64 bits from (user, record), by which a user's records are ordered.

    Records come in no order of their own, and an order by alphabet would make "the first n" of a
    cap a biased choice; this order depends on nothing but the user and the record.
    """
    sized = [part for text in texts for part in (len(text).to_bytes(8, "big"), text)]
    digest = hashlib.sha256(b"".join([b"tacit corpus texts\0", key, *sized])).digest()
    return int.from_bytes(digest[:8], "big")


def _starts(table: pa.Table) -> npt.NDArray[np.int64]:
    """The first row of each user."""
    head, tail = (table.column(i).to_numpy() for i in (0, 1))
    changes = (head[1:] != head[:-1]) | (tail[1:] != tail[:-1])
    # If a user's rows were apart, they would become two users: the order is not taken on trust.
    assert bool((head[1:] >= head[:-1]).all()), "rows are not sorted"
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _block(table: pa.Table, options: UserOptions) -> Block:
    """Sorted rows of whole users as a block, with the least and the most per user applied.

    Every figure here is within one user: users below the least are left out, and of the others the
    first texts are kept up to the most texts and the most words, the last of them cut.
    """
    most_texts = options.max_texts or sys.maxsize
    most_words = options.max_words or sys.maxsize
    starts = _starts(table)
    sizes = np.diff(np.append(starts, len(table)))
    owner = np.repeat(np.arange(len(starts)), sizes)
    words = table.column("words").to_numpy().astype(np.int64)
    rank = np.arange(len(table)) - starts[owner]
    # The running total of words restarts at each user: subtract what came before the user.
    before = np.cumsum(words) - words
    before -= before[starts][owner]
    totals = np.add.reduceat(words, starts)
    enough = (sizes >= options.min_texts) & (totals >= options.min_words)
    keep = enough[owner] & (rank < most_texts) & (before < most_words)
    cut = keep & (before + words > most_words)
    texts = table.column("text").combine_chunks()
    if isinstance(texts, pa.ChunkedArray):
        texts = pa.concat_arrays(texts.chunks)
    if cut.any():
        rows = np.flatnonzero(cut)
        shorter = [_first_words(texts[int(r)].as_py(), int(most_words - before[r])) for r in rows]
        texts = pc.replace_with_mask(texts, pa.array(cut), pa.array(shorter, texts.type))
        words = np.where(cut, most_words - before, words)
    users = np.flatnonzero(enough)
    first = pa.array(starts[users])
    head, tail = (table.column(name).take(first).to_numpy() for name in ("key_head", "key_tail"))
    ids = b"".join(table.column("id").take(first).to_pylist())
    parts = np.frombuffer(ids, np.uint8).reshape(-1, _ID_BYTES)
    text, text_ends = _text_bytes(texts.filter(pa.array(keep)))
    return Block(
        keys=np.stack([head, tail], axis=1),
        ids=parts[:, :16].tobytes(),
        folded=np.frombuffer(parts[:, 16:].tobytes(), np.uint64),
        text_counts=np.bincount(owner[keep], minlength=len(starts))[users],
        word_counts=np.bincount(owner, np.where(keep, words, 0), len(starts))[users].astype(int),
        text=text,
        text_ends=text_ends,
        held_out=table.column("held_out").to_numpy()[keep].astype(np.bool_),
    )


def _first_words(text: str, count: int) -> str:
    """The text up to the end of its count-th word; words are divided as by `str.split`."""
    last = next(islice(re.finditer(r"\S+", text), count - 1, count), None)
    return text if last is None else text[: last.end()]


def _text_bytes(texts: pa.Array) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Texts one after the other in UTF-8, and where each of them ends."""
    texts = texts.cast(pa.large_string())
    ends = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    return texts.buffers()[2][int(ends[0]) : int(ends[-1])], ends[1:] - ends[0]
