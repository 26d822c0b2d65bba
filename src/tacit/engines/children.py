"""Processes on this machine that work for this one, and end with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tacit.engines.ranks import Ranks, WorkerLost, group_of_file


class Children:
    """`workers` processes in all: this one is rank 0, and the others are started here.

    They import what they need while this process goes on, and are waited for by `ranks`.  Each
    holds one end of a pipe to this process, so that however it ends, they do too.
    """

    def __init__(self, workers: int) -> None:
        if not workers >= 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._folder = tempfile.TemporaryDirectory(prefix="tacit-")  # mode 0700
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, workers):
                self.processes.append(self._started(rank, workers))
        except BaseException:
            self.end()
            raise

    def _started(self, rank: int, size: int) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tacit.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1"},
        )
        assert child.stdin is not None
        told = {"store": self._store, "rank": rank, "size": size}
        with contextlib.suppress(BrokenPipeError):  # it ended already; `ranks` will say so
            child.stdin.write(json.dumps(told).encode() + b"\n")
            child.stdin.flush()
        return child

    @property
    def _store(self) -> str:
        return str(Path(self._folder.name) / "store")

    def ranks(self) -> Ranks:
        """All of them, once they are there."""
        size = 1 + len(self.processes)
        for child in self.processes:
            assert child.stdout is not None
            if not child.stdout.readline():  # it ended, and said why where errors go
                child.wait(timeout=10)
                self.check()
        return Ranks(group_of_file(self._store, 0, size), 0, size, self.check)

    def check(self) -> None:
        """Raises if one of them has ended."""
        codes = [child.poll() for child in self.processes]
        ended = [(code, rank) for rank, code in enumerate(codes, start=1) if code is not None]
        if ended:
            code, rank = min(ended)  # one that was killed, before those that ended for its sake
            raise WorkerLost(
                f"worker process {rank} of {len(codes)} ended ({_why(code)}); the run is whole: go"
                " on with it by --resume"
            )

    def end(self) -> None:
        """End all of them, whatever they are doing."""
        for child in self.processes:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        deadline = time.monotonic() + 5
        for child in self.processes:
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdout is not None
            child.stdout.close()
        self._folder.cleanup()


def _search_path() -> str:
    """What this process imports from, and nothing else: modules of the user's own included."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def _why(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return name + (", perhaps for lack of memory" if -code == signal.SIGKILL else "")
