"""Folders of arrays that exist whole or not at all, built by one process at a time."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_HEADER = 128  # bytes of the .npy header of any array of numbers with one dimension


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Nobody else is in here for the same folder; the system lets go of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def growing_array(path: Path, dtype: str) -> Iterator[Callable[[npt.NDArray[Any]], object]]:
    """A .npy file whose length nobody knows yet: call what you get with each part in turn."""
    with open(path, "wb") as file:
        file.write(bytes(_HEADER))
        length = 0

        def append(part: npt.NDArray[Any]) -> None:
            nonlocal length
            assert part.dtype == dtype
            assert part.ndim == 1
            file.write(part.data)
            length += len(part)

        yield append
        file.seek(0)
        file.write(_npy_header(dtype, length))
        file.flush()
        os.fsync(file.fileno())


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """A one-dimensional .npy file, synced."""
    with growing_array(path, str(array.dtype)) as append:
        append(array)


def mapped_array(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """The array of a file as those above write it; `ValueError` if its size or header is not so."""
    header = _npy_header(dtype, length)
    size = len(header) + length * np.dtype(dtype).itemsize
    with open(path, "rb") as file:
        if file.read(_HEADER) != header:
            raise ValueError(f"{path.name} does not start like {length} numbers of type {dtype}")
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise ValueError(f"{path.name} has {found} bytes where there should be {size}")
        if length == 0:
            return np.empty(0, dtype)  # nothing can be mapped
        return np.memmap(file, dtype, "r", _HEADER, (length,)).view(np.ndarray)


def _npy_header(dtype: str, length: int) -> bytes:
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": description, "fortran_order": False, "shape": (length,)}
    )
    assert buffer.tell() == _HEADER
    return buffer.getvalue()
