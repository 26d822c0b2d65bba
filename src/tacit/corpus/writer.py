"""Writing a corpus directory from users that arrive in order, a block of them at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tacit.corpus import layout
from tacit.corpus.files import sha256_of
from tacit.corpus.lines import LineSketch
from tacit.privacy import durable

_RAW = ("id", "offset", "texts", "words", "text_ends", "text", "held_out")
_HASHED = ("keys", "sizes", "lengths", "texts", "held_out")


class Block(NamedTuple):
    """Some whole users: one row per user, and their texts one after the other."""

    keys: npt.NDArray[np.uint64]  # two numbers each, without salt: fingerprinted and not stored
    ids: bytes  # 16 for each user
    folded: npt.NDArray[np.uint64]  # the same for ids that differ in case or blanks only
    text_counts: npt.NDArray[np.int64]
    word_counts: npt.NDArray[np.int64]
    texts: pa.Array
    held_out: npt.NDArray[np.bool_]


class CorpusWriter:
    """Appends users to one raw file per column; `finish` makes the two tables of them.

    A table of one record batch has to be written at once.  Its columns are mapped into memory for
    that, not read: what they take of it the system can have back at any time.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)  # people's text: nobody else's business
        scratch.mkdir()
        self._scratch = scratch
        self._raw = {name: (scratch / name).open("wb") for name in _RAW}
        self._raw["text_ends"].write(bytes(8))
        self._text_bytes = 0
        self.counts = {"users": 0, "texts": 0, "held_out_texts": 0, "words": 0}
        # One digest per column, so that the fingerprint does not depend on how blocks are cut.
        self._digests = {name: hashlib.sha256() for name in _HASHED}

    def append(self, block: Block) -> None:
        """Write a block."""
        if not len(block.keys):
            return
        data, ends = text_bytes(block.texts)
        first = np.cumsum(block.text_counts) - block.text_counts + self.counts["texts"]
        held_out = block.held_out.astype(np.uint8)
        columns: dict[str, Any] = {
            "id": block.ids,
            "offset": first.astype(np.uint64),
            "texts": block.text_counts.astype(np.uint32),
            "words": block.word_counts.astype(np.uint64),
            "text_ends": ends + self._text_bytes,
            "text": data,
            "held_out": held_out,
        }
        for name, column in columns.items():
            self._raw[name].write(column)
        hashed: dict[str, Any] = {
            "keys": block.keys.astype(">u8"),
            "sizes": block.text_counts.astype("<i8"),
            "lengths": np.diff(ends, prepend=0).astype("<i8"),
            "texts": data,
            "held_out": held_out,
        }
        for name, column in hashed.items():
            self._digests[name].update(column)
        self._text_bytes += len(data)
        self.counts["users"] += len(block.keys)
        self.counts["texts"] += len(ends)
        self.counts["held_out_texts"] += int(held_out.sum())
        self.counts["words"] += int(block.word_counts.sum())

    def finish(self, meta: Mapping[str, Any], lines: LineSketch) -> None:
        """Write the tables, the lines and then corpus.json, and make all of it durable."""
        self.close()
        users, texts = self.counts["users"], self.counts["texts"]
        ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), users, [None, self._mapped("id")])
        sizes = [
            pa.Array.from_buffers(field.type, users, [None, self._mapped(field.name)])
            for field in list(layout.USERS_SCHEMA)[1:]
        ]
        self._write(layout.USERS, layout.USERS_SCHEMA, [ids, *sizes])
        bits = np.packbits(np.frombuffer(self._mapped("held_out"), np.uint8), bitorder="little")
        held_out = pa.Array.from_buffers(pa.bool_(), texts, [None, pa.py_buffer(bits)])
        text = pa.LargeStringArray.from_buffers(
            texts, self._mapped("text_ends"), self._mapped("text")
        )
        self._write(layout.TEXTS, layout.TEXTS_SCHEMA, [text, held_out])
        sketch = json.dumps(lines.as_json()) + "\n"
        (self.path / layout.LINES).write_text(sketch, encoding="utf-8")
        durable.sync(self.path / layout.LINES)
        whole = {
            "format": layout.FORMAT,
            "version": layout.VERSION,
            **self.counts,
            **meta,
            "fingerprint": self.fingerprint(meta["test_users"]),
            "bytes": {
                name: (self.path / name).stat().st_size for name in (layout.USERS, layout.TEXTS)
            },
            "digests": {
                name: sha256_of(self.path / name)
                for name in (layout.USERS, layout.TEXTS, layout.LINES)
            },
        }
        (self.path / layout.META).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        durable.sync(self.path / layout.META)
        durable.sync(self.path)

    def close(self) -> None:
        """Close the raw files; closing twice does nothing."""
        for file in self._raw.values():
            file.close()

    def fingerprint(self, test_users: int) -> str:
        """The digest of all users and texts so far, and of the split; the salt is not in it."""
        digest = hashlib.sha256(f"{layout.FORMAT} {layout.VERSION}".encode())
        digest.update(json.dumps([self.counts["users"], test_users]).encode())
        for part in self._digests.values():
            digest.update(part.digest())
        return digest.hexdigest()

    def _mapped(self, name: str) -> pa.Buffer:
        return pa.py_buffer(np.memmap(self._scratch / name, np.uint8, "r"))

    def _write(self, name: str, schema: pa.Schema, columns: list[pa.Array]) -> None:
        path = self.path / name
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as table:
            table.write_batch(pa.record_batch(columns, schema=schema))
        durable.sync(path)


def text_bytes(texts: pa.Array) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Texts one after the other in UTF-8, and where each of them ends."""
    texts = texts.cast(pa.large_string())
    ends = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    return texts.buffers()[2][int(ends[0]) : int(ends[-1])], ends[1:] - ends[0]
