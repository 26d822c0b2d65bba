"""An Arrow file of one record batch, mapped into memory, and read in pieces here and there."""

from __future__ import annotations

import mmap
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from tacit.corpus.source import Counts

VALUES, DATA = 1, 2  # Arrow's buffers: 0 marks nulls; text has its ends in 1 and its bytes in 2


class Table:
    """The columns of a file, opened at a cost that does not depend on its size."""

    def __init__(self, path: Path, size: int, schema: pa.Schema) -> None:
        found = path.stat().st_size if path.exists() else 0
        if found != size:
            raise ValueError(
                f"{str(path)!r} is damaged: it has {found:,} bytes instead of {size:,}"
            )
        self._file = path.open("rb")
        # Not pyarrow's own memory map: that one asks the system to read ahead all of the file.
        mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        try:
            self._batch = pa.ipc.open_file(mapped).get_batch(0)
            if self._batch.schema != schema:
                raise pa.ArrowInvalid("other columns")
        except (pa.ArrowInvalid, ValueError):
            raise ValueError(f"{str(path)!r} is damaged: it does not hold its table") from None
        self._starts = {
            (name, number): buffer.address - mapped.address
            for name, column in zip(schema.names, self._batch.columns, strict=True)
            for number, buffer in enumerate(column.buffers())
            if buffer is not None
        }

    def __len__(self) -> int:
        return len(self._batch)

    def column(self, name: str) -> Counts:
        """A whole column of numbers."""
        values = self._batch.column(name).to_numpy()
        return np.asarray(values, dtype=np.int64)

    def read(self, name: str, start: int, size: int, buffer: int = VALUES) -> bytes:
        """Some bytes of a column.

        Read from the file and not through the mapping: a user is on pages that nobody else
        touched, and a page fault costs several times what this call does.
        """
        return os.pread(self._file.fileno(), size, self._starts[name, buffer] + start)

    def numbers(self, name: str, start: int, count: int) -> list[int]:
        """Some values of a column of 64-bit numbers, or ends of texts."""
        return list(struct.unpack(f"<{count}q", self.read(name, 8 * start, 8 * count)))

    def texts(self, name: str, start: int, count: int) -> list[str]:
        """Some values of a column of text."""
        ends = self.numbers(name, start, count + 1)
        first = ends[0]
        data = self.read(name, first, ends[-1] - first, DATA)
        return [data[start - first : end - first].decode() for start, end in pairwise(ends)]
