"""A fuzzer that is root writes nowhere but in its own folders: /dev/null has to stay a device.

A command that is told to write its page to /dev/null may rename a file over it, and root may.  So
a child that is root becomes nobody, and keeps the right to read everything, since Python and what
it imports may lie in root's own folder.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

NOBODY = 65534
_READ_ALL = 2  # CAP_DAC_READ_SEARCH
_KEEP_CAPS, _AMBIENT, _RAISE = 8, 47, 2  # of prctl
_VERSION_3 = 0x20080522  # of capset


def give(folder: Path) -> None:
    """Let a folder that root has made belong to those that `drop` becomes."""
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def drop() -> None:
    """Become nobody if this process is root; it can still read everything, and import it."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    libc.prctl(_KEEP_CAPS, 1, 0, 0, 0)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    bit = 1 << _READ_ALL
    header, data = struct.pack("II", _VERSION_3, 0), struct.pack("6I", bit, bit, bit, 0, 0, 0)
    if libc.capset(header, data) == 0:
        libc.prctl(_AMBIENT, _RAISE, _READ_ALL, 0, 0)  # for processes that are started
