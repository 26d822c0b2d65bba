"""Files that exist whole or not at all, and that survive a crash once they exist."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def create(path: Path, data: bytes, *, mode: int) -> None:
    """Write a new file atomically and sync it; an existing file is refused, never replaced."""
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    partial = partial_of(path)
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def partial_of(path: Path) -> Path:
    """Where `create` writes before it renames: one fixed name, so that a leftover can be found."""
    return path.with_name(f".{path.name}.partial")


def sync_directory(path: Path) -> None:
    """Make a creation, renaming or removal in the directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# JSON Lines that survive a crash: each append is synced, and a torn last line is no line.


def append_line(path: Path, row: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Add one row and return once it is on the disk."""
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    try:
        before = os.fstat(fd).st_size
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, before)
            raise OSError(28, "No space left on device", str(path))
        os.fsync(fd)
    finally:
        os.close(fd)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All rows; a last line without its end was never finished and is left out."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise ValueError(f"line {number} of {path} is not JSON: the file is damaged") from None
    return rows


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the rows that are not wanted, and a torn end."""
    if not path.exists():
        return
    kept = b"".join(
        json.dumps(row, allow_nan=False).encode() + b"\n" for row in read_lines(path) if wanted(row)
    )
    if kept != path.read_bytes():
        replace(path, kept)


def replace(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file in the place of any that was there: whole and synced, or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
