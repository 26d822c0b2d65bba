"""Temporary folders that hold people's text: for their owner only, and gone after a crash too.

A process that is killed cannot clean up.  So each folder has a file that its process holds locked
for as long as it lives, and whoever needs a folder next removes those whose file nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "tacit-scratch-"
_ALIVE = ".alive"  # the file that the living process holds


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder for the time of the block."""
    _clear()
    path, held = _made()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


@functools.cache
def of_this_process() -> Path:
    """A folder for as long as this process lives, for when the cache cannot be used."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(folder())


def _made() -> tuple[Path, int]:
    """A new folder, and the descriptor of the file that says that its process lives."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            path.chmod(0o700)  # an odd umask takes rights from the owner
            held = os.open(path / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            continue  # taken for a dead one before it had its file
        fcntl.flock(held, fcntl.LOCK_EX)
        os.fchmod(held, 0o600)
        if (path / _ALIVE).exists():
            return path, held
        os.close(held)  # taken for a dead one in between, and removed


def _clear() -> None:
    """Remove this user's folders whose processes are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or held by a process that lives
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    """Remove a folder unless its file is held, or it has none and is not empty: `OSError` then.

    An empty one may be somebody's who is just making it, and who then makes another.
    """
    try:
        held = os.open(path / _ALIVE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        path.rmdir()
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)
