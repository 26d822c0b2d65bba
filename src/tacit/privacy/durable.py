"""Files that exist whole or not at all, and that survive a crash once they exist."""

from __future__ import annotations

import os
from pathlib import Path


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
