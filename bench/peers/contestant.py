"""A process that does a round whenever it is told to, and otherwise stands still.

Waiting is not idle everywhere: Ray's servers and torchrun's agents poll, and a rank in an
all-reduce may spin.  So whoever does not have its turn is stopped, with everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 300.0  # seconds for an answer
SETTLE = 0.3  # seconds in which those who were stopped catch up with their own timers


class Failed(RuntimeError):
    """It ended, or does not answer; the message has its last words."""


class Contestant:
    """Commands go in and answers come out, one JSON object on a line for each."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        # What is imported is what the peer's own environment has, with one thread per process.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        kept |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        for _, name in socket.if_nameindex():
            if name.startswith("lo"):  # processes of one machine need not know its name
                kept["GLOO_SOCKET_IFNAME"] = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=kept | dict(environment or {}),
            start_new_session=True,  # so that it can be ended with all that it started
            bufsize=0,
        )

    def wait_until_ready(self) -> None:
        self._answer()
        self.rest()

    def rest(self) -> None:
        """Stand still, with everything that it started, until it is asked again."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE)

    def ask(self, *words: str) -> None:
        """Tell it what to do; `answer` is when it has done so."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((" ".join(words) + "\n").encode())
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def answer(self) -> dict[str, Any]:
        found = self._answer()
        if not found.get("finite"):
            raise Failed("its model is not finite any more")
        return found

    def end(self) -> None:
        """Let it end by itself, and end what is left of it then."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in _family(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise Failed(f"no answer in {PATIENCE:.0f} s")
        line = self._process.stdout.readline()
        try:
            return dict(json.loads(line))
        except ValueError:
            raise Failed(self._last_words()) from None

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else "it ended without a word"


def _family(eldest: int) -> list[int]:
    """A process and all that descend from it; only itself where there is no /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of a process is in parentheses and may hold anything, so read from its end.
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [eldest]
    for one in found:  # grows as it is read
        found += [child for child, parent in parents.items() if parent == one]
    return found
