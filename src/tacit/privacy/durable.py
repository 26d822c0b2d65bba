"""Files and folders that exist whole or not at all, and that survive a crash once they exist.

Everything that a guarantee rests on (keys, ledgers, checkpoints) and everything that is shared
(reports, bundles, tokenizers) is written by this module.  New content is made under a hidden name
beside its path, synced, and then renamed, so a reader sees the old content or the new, never a
part.  The hidden name is fixed, so what a killed process left behind is removed by the next
writer; in return, each path has one writer at a time, and concurrent writers need a lock.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK = 1 << 16  # bytes that are read at once from the end of a file


def user_folder(kind: str) -> Path:
    """The user's folder of tacit for a `cache` or for `state`; nothing is made.

    It is `$TACIT_CACHE` or `$TACIT_STATE`, or else `tacit` in the folder that `$XDG_CACHE_HOME` or
    `$XDG_STATE_HOME` names, by default `~/.cache` and `~/.local/state`.
    """
    if own := os.environ.get(f"TACIT_{kind.upper()}"):
        return Path(own)
    usual = {"cache": ".cache", "state": ".local/state"}
    return Path(os.environ.get(f"XDG_{kind.upper()}_HOME") or Path.home() / usual[kind]) / "tacit"


@functools.cache
def temporary_folder() -> Path:
    """A folder of this process alone, for when the cache cannot be written to."""
    folder = Path(tempfile.mkdtemp(prefix="tacit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def partial_path(path: Path) -> Path:
    """The hidden name under which the content of `path` is made before it is renamed."""
    return path.with_name(f".{path.name}.partial")


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(
    path: Path, *, wait: bool = True, shared: bool = False, flags: int = os.O_RDWR | os.O_CREAT
) -> Iterator[int]:
    """Hold a lock on the file at `path`, and give its descriptor.

    The lock excludes every other holder, or with `shared` only those that are not.  The system
    releases it if the process dies.  Without `wait`, `BlockingIOError` if it cannot be had now.
    """
    descriptor = os.open(path, flags, 0o600)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def append(descriptor: int, data: bytes) -> None:
    """Write at the end of a file that is open for appending; on return it is on the disk.

    If that fails, a part may have been written: `cut_back` drops it.
    """
    written = os.write(descriptor, data)
    if written != len(data):
        what = f"only {written} of {len(data)} bytes could be written"
        raise OSError(errno.ENOSPC, f"No space left on device: {what}")
    os.fsync(descriptor)


def cut_back(descriptor: int, size: int) -> bool:
    """Drop what lies beyond `size`; returns whether that succeeded and is on the disk."""
    try:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
    except OSError:
        return False
    return True


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """An open file that becomes `path` when the block ends, or vanishes if the block raises.

    It takes the place of a file that exists.  It has its `mode` (less the umask) from its first
    byte on, so a secret is never readable to others.
    """
    partial = partial_path(path)
    partial.unlink(missing_ok=True)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, new: bool = False) -> None:
    """Write a file whole and synced, in the place of one that exists.

    With `new`, a file that exists raises `FileExistsError` instead.
    """
    if new and path.exists():
        raise FileExistsError(f"{path} exists already")
    with whole_file(path, mode=mode) as file:
        file.write(data)


@contextmanager
def whole_folder(path: Path, *, mode: int = 0o777, replace: bool = False) -> Iterator[Path]:
    """A folder to fill that becomes `path` when the block ends, or vanishes if the block raises.

    An empty folder at `path` is replaced; anything else there makes the renaming fail with
    `OSError`, unless `replace` allows to remove it once the new folder is ready.
    """
    partial, old = partial_path(path), path.with_name(f".{path.name}.old")
    _remove(partial)
    _remove(old)
    partial.mkdir(mode=mode)
    try:
        yield partial
        sync(partial)
        if replace and os.path.lexists(path):
            path.rename(old)
        partial.rename(path)
    finally:
        _remove(partial)
        _remove(old)
    sync(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# JSON Lines: each append is synced, and a last line without its end counts as never written.


def append_line(path: Path, row: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Add a row to a JSON Lines file, which is made if it is missing, and sync it.

    What a crash left behind the last whole line is dropped first.  Each file has one writer.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            sync(path.parent)
        elif os.pread(descriptor, 1, size - 1) != b"\n":
            size = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        try:
            append(descriptor, _json_line(row))
        except BaseException:
            cut_back(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete rows of a JSON Lines file; none if the file does not exist."""
    return list(each_line(path))


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """The same rows one after the other, so that a long file is never in memory as a whole."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError:
                raise ValueError(
                    f"line {number} of {path} is not JSON: the file is damaged"
                ) from None


def last_line(path: Path) -> dict[str, Any] | None:
    """The last complete row of a JSON Lines file, or None; it is read from the file's end."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        start, tail = file.seek(0, os.SEEK_END), b""
        while start and tail.count(b"\n") < 2:  # the end of the row, and that of the one above
            start = max(start - max(_BLOCK, len(tail)), 0)
            file.seek(start)
            tail = file.read()
    *lines, _ = tail.split(b"\n")
    if not lines:
        return None
    try:
        row: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise ValueError(f"the last line of {path} is not JSON: the file is damaged") from None
    return row


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the rows for which `keep` is false, and an incomplete last line."""
    if path.exists():
        kept = b"".join(_json_line(row) for row in each_line(path) if keep(row))
        if kept != path.read_bytes():
            write_whole(path, kept)


def _json_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"
