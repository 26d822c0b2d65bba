"""The workers of a training: processes that go through the same steps side by side (gloo).

Each has the model, the utterances and the run key.  A step's messages are a digest of each share,
so that all know what the noise is to hide, and one all-reduce of the shares with their noise.  Rank
0 is the process that was started by the user.  It alone writes files, and tells the others which
epoch comes next, and as which attempt, or that there is none.

Guarantee: a share by itself is not protected, and it stays on this machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacit.engines.exchange import WorkerLost, group_of_file

STOP = -1
Job = TypeVar("Job")


class Ranks:
    """The group, seen from one of its processes; alone, nothing is ever sent."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group = group

    def sum_(self, values: Tensor) -> None:
        """The sum over all ranks, in the place of each one's own; the same bits for all of them."""
        if self.size > 1:
            self._wait(lambda: self._group.allreduce([values]))

    def exchanged(self, mine: bytes) -> list[bytes]:
        """The 16 bytes that each rank gave, in the order of the ranks."""
        table = torch.zeros(self.size, 2, dtype=torch.int64)
        table[self.rank] = torch.frombuffer(bytearray(mine), dtype=torch.int64)
        self.sum_(table)
        return [row.tobytes() for row in table.numpy()]

    def tell(self, number: int) -> None:
        """As rank 0: what `told` returns to the others."""
        if self.size > 1:
            message = torch.tensor([number])
            self._wait(lambda: self._group.allreduce([message]))

    def told(self) -> int:
        """As one of the others: what rank 0 tells next."""
        message = torch.tensor([0])
        self._wait(lambda: self._group.allreduce([message]))
        return int(message)

    def _wait(self, begin: Callable[[], Any]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            raise WorkerLost(
                "a worker process of this training is gone; the run is whole: go on with it by"
                " --resume"
            ) from error


class Workers:
    """Rank 0's view: `size` processes in all, of which the others are started here."""

    def __init__(self, size: int, serve: Callable[[Job, Ranks], None], job: Job) -> None:
        self._children: list[Any] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tacit-")  # mode 0700
        store = str(Path(self._folder.name) / "store")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(size))
        try:
            context = multiprocessing.get_context("spawn")
            for rank in range(1, size):
                child = context.Process(
                    target=_serve, args=(serve, job, store, rank, size), daemon=True
                )
                child.start()
                self._children.append(child)
            group = group_of_file(store, 0, size) if size > 1 else None
        except BaseException:
            self.end()
            raise
        self.ranks = Ranks(group, 0, size)

    def dismiss(self) -> None:
        """Tell the others that there is nothing more to do, and let them go."""
        self.ranks.tell(STOP)
        for child in self._children:
            child.join(timeout=5)

    def end(self) -> None:
        """End those that are still there, whatever they are doing."""
        for child in self._children:
            if child.is_alive():
                child.kill()
            child.join()
        self._folder.cleanup()
        torch.set_num_threads(self._threads)


def threads_each(size: int) -> int:
    """The cores shared among so many processes; no more than torch would use by itself."""
    return max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)) // size))


def _serve(serve: Callable[[Job, Ranks], None], job: Job, store: str, rank: int, size: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal interrupts all; rank 0 decides
    torch.set_num_threads(threads_each(size))
    try:
        serve(job, Ranks(group_of_file(store, rank, size), rank, size))
    except WorkerLost:
        os._exit(1)  # rank 0 is gone: it has said why, or nobody is there to read it
