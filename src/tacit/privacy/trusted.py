"""What may be read and what may be run, by what it is and whose it is.

A file that somebody names may be a pipe that never ends or a device; a cache may be shared with
people who are not trusted.  Both are found out before a byte is read.
"""

from __future__ import annotations

import io
import os
import stat
from contextlib import suppress
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_irregular(path: Path) -> None:
    """Refuse what is no regular file, which might be read for ever; what is missing passes."""
    try:
        _check_regular(path, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return


def refuse_irregular_in(folder: Path) -> None:
    """Refuse a folder that holds anything but regular files and folders; what is missing passes."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                refuse_irregular(Path(entry.path))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file to read it; what is no regular file is refused and not waited for."""
    _check_regular(path, path.stat())  # opening a device may already do something
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")  # noqa: SIM115
    try:
        _check_regular(path, os.fstat(file.fileno()))  # it was not exchanged in between
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: Path) -> bytes:
    """All of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """All of a regular file, which is UTF-8."""
    with open_regular(path) as file, io.TextIOWrapper(file, "utf-8") as text:
        return text.read()


def _check_regular(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
        raise ValueError(f"{str(path)!r} is {kind} and no file: name a regular file")


def is_of_this_user_alone(facts: os.stat_result) -> bool:
    """Whether this user, or root, owns something that others may not write to."""
    return facts.st_uid in (os.geteuid(), 0) and not facts.st_mode & 0o022
