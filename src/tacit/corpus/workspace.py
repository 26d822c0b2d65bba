"""A hidden folder beside the output, where work is done and of which nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tacit.privacy import durable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """A folder `.<name>.partial` beside `out`; it is gone at the end, whatever happened.

    What a killed run left under that name is removed first; while another run holds it, this one
    is refused.  Folders made on the way to `out` are removed again if nothing was put there.
    """
    if out.exists() or out.is_symlink():
        raise ValueError(f"{str(out)!r} exists already: choose another output, or remove it first")
    made = _made_parents(out)
    work = out.with_name(f".{out.name}.partial")
    lock = out.with_name(f".{out.name}.partial.lock")
    try:
        with _locked(lock, out):
            if work.exists():
                shutil.rmtree(work)
            work.mkdir(mode=0o700)
            try:
                with _disk_errors(out):
                    yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
                lock.unlink(missing_ok=True)
    finally:
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def move_in(folder: Path, out: Path) -> None:
    """Give a finished folder its name."""
    if out.exists():
        raise ValueError(f"{str(out)!r} was made by somebody else in the meantime")
    folder.rename(out)
    durable.sync(out.parent)


def _made_parents(out: Path) -> list[Path]:
    missing = []
    for folder in out.absolute().parents:
        if folder.exists():
            if not folder.is_dir():
                raise ValueError(f"{str(folder)!r} is a file, so {str(out)!r} cannot be in it")
            break
        missing.append(folder)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(
            f"cannot make the folder of {str(out)!r}: {problem.strerror or problem}"
        ) from None
    return missing


@contextmanager
def _locked(lock: Path, out: Path) -> Iterator[None]:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        raise ValueError(
            f"cannot write beside {str(out)!r}: {problem.strerror or problem}"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ValueError(f"another ingest is writing {str(out)!r} at this moment") from None
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """A full disk in one sentence, whichever library noticed it."""
    full = f"the disk that {str(out)!r} is to be on is full; nothing was left on it"
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except RuntimeError as problem:  # what duckdb makes of Ctrl-C while it runs a query
        if "interrupted" in str(problem):
            raise KeyboardInterrupt from None
        raise
    except duckdb.OutOfMemoryException as problem:
        if _is_full(problem):
            raise ValueError(full) from problem
        raise ValueError("memory_limit is too small for this input: give it more") from problem
    except duckdb.Error as problem:
        if _is_full(problem):
            raise ValueError(full) from problem
        raise ValueError(f"grouping by user failed: {str(problem).splitlines()[0]}") from problem
    except OSError as problem:
        if _is_full(problem):
            raise ValueError(full) from problem
        raise


def _is_full(problem: Exception) -> bool:
    words = ("No space left", "File too large", "quota exceeded", "max_temp_directory_size")
    return getattr(problem, "errno", None) in _FULL or any(w in str(problem) for w in words)
