"""A process that does its part of what rank 0 sends, until rank 0 has nothing more for it.

`python -m tacit.engines.worker` is what `engines.teams` starts; under torchrun every process
but rank 0 serves in the same way.  What takes long to import is imported late, so that a worker
whose parent ends meanwhile ends at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.engines.ranks import Assignment, Message, Ranks
    from tacit.federated.cohort import CohortSum, CohortTask
    from tacit.kernels.local_sgd import LocalSGD

SECRET_SIZE = 32  # bytes, which the parent writes to the pipe at once


class Worker:
    """Computes this rank's part of each round; keeps the model and the task that were sent last."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._sgd: LocalSGD | None = None
        self._task: CohortTask | None = None

    def compute(self, message: Message) -> CohortSum:
        """This rank's part of a round.

        Raises `ValueError` if this process computes with another arithmetic than rank 0: the result
        would then depend on who computes whom.
        """
        from tacit.engines.engine import SerialEngine
        from tacit.kernels.local_sgd import local_sgd_for

        sent: Assignment = message.read()
        if sent.model is not None:
            self._sgd = local_sgd_for(sent.model)
        self._task = sent.task or self._task
        assert self._sgd is not None
        assert self._task is not None
        engine = SerialEngine(self._sgd)
        if engine.kernel != sent.kernel:
            raise ValueError(
                f"it computes with {engine.kernel!r} and rank 0 with {sent.kernel!r}, so the result"
                " would depend on who computes whom; install the same on all machines, or set"
                " TACIT_KERNEL=torch for all"
            )
        return engine.sum(self._task, sent.job, sent.parts[self.rank].tolist())


def serve(ranks: Ranks) -> None:
    """Compute until rank 0 says that it is done; `WorkerLost` if that never comes."""
    worker = Worker(ranks.rank)
    while (message := ranks.receive()) is not None:
        if not message.is_cohort:
            message.read().serve(ranks)
            continue
        computed, mistake = None, ""
        try:
            computed = worker.compute(message)
        except Exception as error:  # whatever it is, the others must not wait for us
            mistake = " ".join(str(error).split()) or type(error).__name__
            if not isinstance(error, (ValueError, OSError)):
                mistake = f"{type(error).__name__}: {mistake}"
        ranks.join(computed, message.values, message.bits, mistake)


def _main() -> None:
    """Serve the process that started this one, and end with it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the terminal interrupts all; rank 0 decides
    store, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    secret = os.read(0, SECRET_SIZE)  # all of it, as it was written, or nothing
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Importing torch takes seconds, and nobody should wait for it to end a worker.
    import torch

    from tacit.engines.ranks import Ranks, WorkerLost, dist, join_group

    torch.set_num_threads(1)
    print("ready", flush=True)
    os.dup2(2, 1)  # from now on nobody reads what is printed here
    try:
        meeting = dist.FileStore(store, size)
        group = join_group(meeting, rank, size, one_machine=True, secret=secret)
        serve(Ranks(group, rank, size))
    except WorkerLost:
        sys.exit(1)  # rank 0 is gone: it has said why, or nobody is there to read it


def _end_with_parent() -> None:
    """End this process as soon as its parent has.

    The parent writes nothing more to the pipe, so one that can be read has been closed.
    """
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    _main()
