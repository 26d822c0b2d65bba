"""Files and folders that exist whole or not at all, and that survive a crash once they exist.

Everything that a guarantee rests on (keys, ledgers, checkpoints) and everything that is shared
(reports, bundles, tokenizers) is written by this module.  New content is made under a hidden name
beside its path, synced, and then renamed, so a reader sees the old content or the new, never a
part.  The hidden name is fixed and locked: what a killed process left behind is removed by the next
writer of the same path, and of two writers at once one is refused.

Guarantee: what is written is for its owner alone, whatever the umask, unless its `mode` says
`SHARED` or `SHARED_FOLDER`; nobody but the owner can ever write to it.  The umask may take rights
from others and never from the owner, who could else not read what was written.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tacit.privacy import documents, trusted
from tacit.privacy.visible import one_line

T = TypeVar("T", bound=Mapping[str, Any])


def user_folder(kind: str) -> Path:
    """The user's folder of tacit for a `cache` or for `state`; nothing is made.

    It is `$TACIT_CACHE` or `$TACIT_STATE`, or else `tacit` in the folder that `$XDG_CACHE_HOME` or
    `$XDG_STATE_HOME` names, by default `~/.cache` and `~/.local/state`.  A user without a home has
    to name one of these.
    """
    if own := os.environ.get(f"TACIT_{kind.upper()}"):
        return Path(own)
    usual = {"cache": ".cache", "state": ".local/state"}
    try:
        folder = os.environ.get(f"XDG_{kind.upper()}_HOME") or Path.home() / usual[kind]
        return Path(folder) / "tacit"
    except RuntimeError:
        variable = f"TACIT_{kind.upper()}"
        raise ValueError(
            f"this user has no home directory: set {variable} to a folder of yours that stays"
        ) from None


PRIVATE, PRIVATE_FOLDER = 0o600, 0o700  # people's text, tokens, keys, weights, and all else
SHARED, SHARED_FOLDER = 0o644, 0o755  # what is made to be handed on: a bundle, a report, a plot


def make_folder(path: Path, *, mode: int = PRIVATE_FOLDER) -> None:
    """Make a folder, and those on the way to it, if they are missing."""
    for folder in (*reversed(path.absolute().parents), path):
        if not folder.is_dir():
            with suppress(FileExistsError):  # another process was faster
                folder.mkdir(mode)
                folder.chmod(_kept_for_owner(folder.stat(), PRIVATE_FOLDER))


def own_folder(path: Path) -> Path:
    """A folder of a cache that nobody else can write to, made if it is missing.

    Any other is refused with `PermissionError`: nobody knows what was left in it.
    """
    make_folder(path)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or not trusted.is_of_this_user_alone(facts):
        raise PermissionError(f"{str(path)!r} belongs to another user, or others may write to it")
    return path


def _kept_for_owner(made: os.stat_result, least: int) -> int:
    """The mode that something was made with, and in it what its owner needs."""
    return stat.S_IMODE(made.st_mode) | least


LONGEST_NAME = 200  # of a folder; systems allow 255 bytes, and a partial one needs some of them


def partial_path(path: Path) -> Path:
    """The hidden name under which the content of `path` is made before it is renamed."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the file, which those of an open one do not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
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
    descriptor = os.open(path, flags, PRIVATE)
    try:
        if flags & os.O_CREAT:
            os.fchmod(descriptor, PRIVATE)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def append(descriptor: int, data: bytes, path: Path) -> None:
    """Write at the end of a file that is open for appending; on return it is on the disk.

    If that fails, a part may have been written: `cut_back` drops it.
    """
    with naming(path):
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
def whole_file(path: Path, *, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """An open file that becomes `path` when the block ends, or vanishes if the block raises.

    It takes the place of a file that exists.  It has its `mode` (less the umask) from its first
    byte on, so a secret is never readable to others.
    """
    trusted.refuse_irregular(path)  # a device would be replaced by a file
    partial = partial_path(path)
    with naming(path), os.fdopen(_claim(partial, mode, path), "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync(path.parent)


def write_whole(path: Path, data: bytes, *, mode: int = PRIVATE, new: bool = False) -> None:
    """Write a file whole and synced, in the place of one that exists.

    With `new`, a file that exists raises `FileExistsError` instead.
    """
    with whole_file(path, mode=mode) as file:
        if new and path.exists():
            raise FileExistsError(f"{path} exists already")
        file.write(data)


@contextmanager
def whole_folder(
    path: Path, *, mode: int = PRIVATE_FOLDER, replace: bool = False
) -> Iterator[Path]:
    """A folder to fill that becomes `path` when the block ends, or vanishes if the block raises.

    Whatever writes into it, all of it gets the rights of the folder itself: `mode`, less the
    umask.  Until it is ready it is for its owner only.

    An empty folder at `path` is replaced; anything else there is refused at the end, unless
    `replace` allows to remove it once the new folder is ready.  Its name will be shown to people,
    so `ValueError` refuses one that is not a line of text.
    """
    one_line("the name of a new folder", path.name, LONGEST_NAME)
    partial, old, lock = _beside(path)
    claim = _claim(lock, PRIVATE, path)
    try:
        _remove(partial)
        _remove(old)
        partial.mkdir(mode)
        asked = _kept_for_owner(partial.stat(), PRIVATE_FOLDER)
        partial.chmod(PRIVATE_FOLDER)
        yield partial
        _permit_all(partial, asked)
        sync(partial)
        if replace and os.path.lexists(path):
            path.rename(old)
        try:
            partial.rename(path)
        except OSError:
            if not os.path.lexists(path):
                raise
            raise ValueError(f"{str(path)!r} was made by another process meanwhile") from None
        sync(path.parent)
    finally:
        _remove(partial)
        _remove(old)
        lock.unlink(missing_ok=True)
        os.close(claim)


def clear_beside(path: Path) -> None:
    """Remove what `whole_folder` left beside a folder if it was killed once that was whole."""
    partial, old, lock = _beside(path.absolute())
    if os.path.lexists(lock):
        claim = _claim(lock, PRIVATE, path)
        _remove(partial)
        _remove(old)
        lock.unlink(missing_ok=True)
        os.close(claim)


def _beside(path: Path) -> tuple[Path, Path, Path]:
    """Where a folder is made, where an older one is put, and who does both."""
    partial = partial_path(path)
    return partial, path.with_name(f".{path.name}.old"), path.with_name(f"{partial.name}.lock")


def _claim(file: Path, mode: int, path: Path) -> int:
    """A new and empty file, held by this process alone while it makes `path`; its descriptor.

    The system gives it up if the process dies.  A file that nobody holds any more is removed first.
    """
    for _ in range(100):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            _remove_unheld(file, path)
            continue
        except OSError as problem:
            what = f"cannot write beside {str(path)!r}: {problem.strerror}"
            raise OSError(problem.errno, what) from None
        try:
            _hold(descriptor, path)
            if _is_still(file, descriptor):  # nobody took it for a dead one before it was held
                os.fchmod(descriptor, _kept_for_owner(os.fstat(descriptor), PRIVATE))
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise ValueError(f"{str(file)!r} is in the way of {str(path)!r}, and cannot be removed")


def _remove_unheld(file: Path, path: Path) -> None:
    """Remove what a dead process left behind; refuse while a process that lives holds it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, or no file of ours
        _remove(file)
        return
    try:
        _hold(descriptor, path)
        if _is_still(file, descriptor):
            file.unlink()
    finally:
        os.close(descriptor)


def _hold(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another process is writing {str(path)!r} at this moment: wait for it to end, or name"
            " something else"
        ) from None


def _is_still(file: Path, descriptor: int) -> bool:
    """Whether the name still stands for the open file."""
    try:
        return os.path.samestat(file.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _permit_all(folder: Path, mode: int) -> None:
    """Give a folder's mode to all that is in it, files without the right to be executed."""
    for inside, _, files in os.walk(folder):
        for name in files:
            if not (file := Path(inside, name)).is_symlink():
                file.chmod(mode & 0o666)
        Path(inside).chmod(mode)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# JSON Lines: each append is synced, and a last line without its end counts as never written.


def append_line(path: Path, row: Mapping[str, Any], *, mode: int = PRIVATE) -> None:
    """Add a row to a JSON Lines file, which is made if it is missing, and sync it.

    What a crash left behind the last whole line is dropped first.  Each file has one writer.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.fchmod(descriptor, _kept_for_owner(os.fstat(descriptor), PRIVATE))
            sync(path.parent)
        elif os.pread(descriptor, 1, size - 1) != b"\n":
            size = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        try:
            append(descriptor, _json_line(row), path)
        except BaseException:
            cut_back(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def keep_lines(path: Path, shape: type[T], keep: Callable[[T], bool]) -> None:
    """Drop the rows for which `keep` is false, and an incomplete last line."""
    if path.exists():
        kept = b"".join(_json_line(row) for row in documents.each_line(path, shape) if keep(row))
        if kept != path.read_bytes():
            write_whole(path, kept)


def _json_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"
