"""Where the other processes of a training come from: started here, or by torchrun.

`Children` are processes on this machine that work for this one, and end with it.

`_Torchrun` stands for the processes that torchrun started, on one machine or on many: all run the
same command.  Rank 0 trains; the others serve it until it ends, however many trainings it does.
All of them need the corpus and its token caches at the same paths; the run directory is used by
rank 0 alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

import torch

from tacit.engines.launch import Launch
from tacit.engines.ranks import PATIENCE, Ranks, WorkerLost, dist, join_group
from tacit.engines.worker import SECRET_SIZE, serve
from tacit.privacy import scratch


class Children:
    """`workers` processes in all: this one is rank 0, and the others are started here.

    They import what they need while this process goes on, and are waited for by `ranks`.  Each
    holds one end of a pipe to this process, so that however it ends, they do too.  What comes
    through that pipe first is the secret by which they know each other.
    """

    def __init__(self, workers: int) -> None:
        if not workers >= 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._folder = contextlib.ExitStack()
        self._secret = secrets.token_bytes(SECRET_SIZE)
        self._store = str(self._folder.enter_context(scratch.folder()) / "store")
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, workers):
                self.processes.append(self._start(rank, workers))
        except BaseException:
            self.end()
            raise

    def _start(self, rank: int, size: int) -> subprocess.Popen[bytes]:
        """Start `tacit.engines.worker` as this rank, importing from where this process does."""
        search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        worker = [sys.executable, "-P", "-m", "tacit.engines.worker"]
        child = subprocess.Popen(
            [*worker, self._store, str(rank), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
        )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `ranks` says why
            child.stdin.write(self._secret)
            child.stdin.flush()
        return child

    def ranks(self) -> Ranks:
        """All processes, once they have started."""
        size = 1 + len(self.processes)
        for child in self.processes:
            assert child.stdout is not None
            if not child.stdout.readline():  # it ended, and said why where errors go
                child.wait(timeout=10)
                self.check()
        store = dist.FileStore(self._store, size)
        group = join_group(store, 0, size, one_machine=True, secret=self._secret)
        return Ranks(group, 0, size, self.check)

    def check(self) -> None:
        """Raise `WorkerLost` if one of them has ended."""
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
        self._folder.close()


def _why(code: int) -> str:
    """The exit code of a process in words, or the signal that killed it."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return name + (", perhaps for lack of memory" if -code == signal.SIGKILL else "")


class _Torchrun:
    """The processes that torchrun watches: if one of them fails, it ends the others."""

    def ranks(self) -> Ranks:
        """All processes, once they have met."""
        return _joined()

    def check(self) -> None:
        """Nothing: torchrun looks after the processes."""

    def end(self) -> None:
        """Nothing: they are kept for the next training, and end with this process."""


Team = Children | _Torchrun


def team_for(workers: int) -> Team:
    """The team of a training of any task, as rank 0 uses it.

    Torchrun's processes, if it started this one; else `workers` of our own, this one among them.
    """
    return _Torchrun() if Launch.of_this_process().size > 1 else Children(workers)


def serve_rank_0() -> NoReturn:
    """What every rank but 0 does until rank 0 ends; then this process ends too."""
    torch.set_num_threads(1)
    serve(_joined())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # at once: gloo's threads may be closing, and torch aborts if it finds them so


@functools.cache
def _joined() -> Ranks:
    """The one group that this process is ever in, under torchrun."""
    launch = Launch.of_this_process()
    launch.refuse_open_network()
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    meeting = _publish_meeting(store, size) if rank == 0 else _ask_for_meeting(store, rank)
    one_machine = launch.on_this_machine == launch.size
    group = join_group(dist.PrefixStore(meeting, store), rank, size, one_machine=one_machine)
    if rank > 0:
        return Ranks(group, rank, size)
    ranks = Ranks(group, rank, size, check=lambda: None)  # torchrun looks after the others
    atexit.register(_release, ranks)
    return ranks


def _publish_meeting(store: Any, size: int) -> str:
    """As rank 0: publish a fresh name to meet under, ignoring keys left by dead ranks.

    torchrun may keep its store over a restart, with the addresses of the dead in it, and does not
    tell all machines that there was one.  So each rank asks with a word of its own, and rank 0
    answers every word in the store until all ranks have heard it.
    """
    meeting = f"tacit/{secrets.token_hex(8)}"
    missing = set(range(1, size))
    while missing:
        for rank in missing:
            if store.check([f"tacit/asks/{rank}"]):
                word = store.get(f"tacit/asks/{rank}").decode()
                store.set(f"tacit/answer/{word}", meeting)
        missing = {rank for rank in missing if not store.check([f"{meeting}/heard/{rank}"])}
        time.sleep(0.02)
    return meeting


def _ask_for_meeting(store: Any, rank: int) -> str:
    """The name to meet under, as any rank but 0."""
    word = secrets.token_hex(8)
    store.set(f"tacit/asks/{rank}", word)
    store.wait([f"tacit/answer/{word}"], PATIENCE)
    meeting: str = store.get(f"tacit/answer/{word}").decode()
    store.set(f"{meeting}/heard/{rank}", "")
    return meeting


def _release(ranks: Ranks) -> None:
    """Let the others go; if the group is broken, torchrun ends them."""
    with contextlib.suppress(WorkerLost):
        ranks.send_stop()
