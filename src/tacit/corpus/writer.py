"""Writing a corpus directory, whole or not at all, from users that arrive a block at a time.

The work is done in a hidden folder beside the output (`output_folder`), of which nothing stays
behind if it fails; the finished directory gets its name last.  See `corpus.store` for its files.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tacit.corpus import store
from tacit.corpus.files import sha256_of
from tacit.corpus.grouping import Block
from tacit.corpus.sketches import LineSketch
from tacit.privacy import durable

_RAW = ("id", "offset", "texts", "words", "text_ends", "text", "held_out")
_HASHED = ("keys", "sizes", "lengths", "texts", "held_out")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_WORDS = ("No space left", "File too large", "quota exceeded")


class CorpusWriter:
    """Appends users to one raw file per column; `finish` makes the two tables of them.

    A table of one record batch has to be written at once.  Its columns are mapped into memory for
    that, not read: what they take of it the system can have back at any time.

    path: the corpus directory, which exists and is empty but for `scratch`.
    scratch: a folder for the raw files, to be removed afterwards.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self.path, self._scratch = path, scratch
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
        first = np.cumsum(block.text_counts) - block.text_counts + self.counts["texts"]
        held_out = block.held_out.astype(np.uint8)
        columns: dict[str, Any] = {
            "id": block.ids,
            "offset": first.astype(np.uint64),
            "texts": block.text_counts.astype(np.uint32),
            "words": block.word_counts.astype(np.uint64),
            "text_ends": block.text_ends + self._text_bytes,
            "text": block.text,
            "held_out": held_out,
        }
        for name, column in columns.items():
            self._raw[name].write(column)
        hashed: dict[str, Any] = {
            "keys": block.keys.astype(">u8"),
            "sizes": block.text_counts.astype("<i8"),
            "lengths": np.diff(block.text_ends, prepend=0).astype("<i8"),
            "texts": block.text,
            "held_out": held_out,
        }
        for name, column in hashed.items():
            self._digests[name].update(column)
        self._text_bytes += len(block.text)
        self.counts["users"] += len(block.keys)
        self.counts["texts"] += len(block.text_ends)
        self.counts["held_out_texts"] += int(held_out.sum())
        self.counts["words"] += int(block.word_counts.sum())

    def finish(self, meta: Mapping[str, Any], lines: LineSketch) -> None:
        """Write the tables, the lines and then corpus.json, and make all of it durable.

        `meta` is what corpus.json says besides counts, fingerprint, sizes and digests.
        """
        self.close()
        users, texts = self.counts["users"], self.counts["texts"]
        ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), users, [None, self._mapped("id")])
        sizes = [
            pa.Array.from_buffers(field.type, users, [None, self._mapped(field.name)])
            for field in list(store.USERS_SCHEMA)[1:]
        ]
        self._write_table(store.USERS, store.USERS_SCHEMA, [ids, *sizes])
        bits = np.packbits(np.frombuffer(self._mapped("held_out"), np.uint8), bitorder="little")
        held_out = pa.Array.from_buffers(pa.bool_(), texts, [None, pa.py_buffer(bits)])
        text = pa.LargeStringArray.from_buffers(
            texts, self._mapped("text_ends"), self._mapped("text")
        )
        self._write_table(store.TEXTS, store.TEXTS_SCHEMA, [text, held_out])
        self._write_json(store.LINES, lines.to_json())
        tables = [self.path / name for name in (store.USERS, store.TEXTS)]
        whole = {
            "format": store.FORMAT,
            "version": store.VERSION,
            **self.counts,
            **meta,
            "fingerprint": self.fingerprint(meta["test_users"]),
            "bytes": {path.name: path.stat().st_size for path in tables},
            "digests": {path.name: sha256_of(path) for path in [*tables, self.path / store.LINES]},
        }
        self._write_json(store.META, whole, indent=2)

    def close(self) -> None:
        """Close the raw files; closing twice does nothing."""
        for file in self._raw.values():
            file.close()

    def fingerprint(self, test_users: int) -> str:
        """The digest of all users and texts so far, and of the split; the salt is not in it."""
        digest = hashlib.sha256(f"{store.FORMAT} {store.VERSION}".encode())
        digest.update(json.dumps([self.counts["users"], test_users]).encode())
        for part in self._digests.values():
            digest.update(part.digest())
        return digest.hexdigest()

    def _mapped(self, name: str) -> pa.Buffer:
        """A raw file, mapped into memory."""
        return pa.py_buffer(np.memmap(self._scratch / name, np.uint8, "r"))

    def _write_table(self, name: str, schema: pa.Schema, columns: list[pa.Array]) -> None:
        path = self.path / name
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as table:
            table.write_batch(pa.record_batch(columns, schema=schema))
        durable.sync(path)

    def _write_json(self, name: str, data: Mapping[str, Any], indent: int | None = None) -> None:
        path = self.path / name
        path.write_text(json.dumps(data, indent=indent) + "\n", encoding="utf-8")
        durable.sync(path)


@contextmanager
def output_folder(out: Path) -> Iterator[Path]:
    """A folder `.<name>.partial` to fill, which becomes `out` when the block ends.

    If the block raises, nothing stays behind: folders made on the way to `out` are removed again
    too.  What a killed run left under the hidden name is removed first; while another run holds
    it, this one is refused.
    """
    if out.exists() or out.is_symlink():
        raise ValueError(f"{str(out)!r} exists already: choose another output, or remove it first")
    made = _made_parents(out)
    try:
        with _disk_errors(out), durable.whole_folder(out) as folder:
            yield folder
    finally:
        for parent in made:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def _made_parents(out: Path) -> list[Path]:
    """Make the folders on the way to `out`; returns those that were missing, innermost first."""
    missing = []
    for folder in out.absolute().parents:
        if folder.exists():
            if not folder.is_dir():
                raise ValueError(f"{str(folder)!r} is a file, so {str(out)!r} cannot be in it")
            break
        missing.append(folder)
    try:
        durable.make_folder(out.absolute().parent, mode=durable.SHARED_FOLDER)
    except OSError as problem:
        raise ValueError(
            f"cannot make the folder of {str(out)!r}: {problem.strerror or problem}"
        ) from None
    return missing


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Report a full disk in one sentence, whether Python or Arrow noticed it."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _FULL or any(words in str(problem) for words in _FULL_WORDS):
            raise ValueError(
                f"the disk that {str(out)!r} is to be on is full; nothing was left on it"
            ) from problem
        raise
