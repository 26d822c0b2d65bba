"""What every engine does: the summed contributions of a cohort, the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from tacit.federated.cohort import CohortJob, CohortSum, CohortTask, sum_over
from tacit.kernels.local_sgd import LocalSGD

Progress = Callable[[int], None]  # how many users are done


class Engine(Protocol):
    """Computes cohorts, one after the other."""

    @property
    def kernel(self) -> str:
        """Which arithmetic it uses; part of what a release is made from."""
        ...

    def sum(
        self,
        task: CohortTask,
        job: CohortJob,
        users: Sequence[int],
        progress: Progress | None = None,
    ) -> CohortSum:
        """The sum over these users."""
        ...

    def close(self) -> None:
        """Let go of processes, if there are any."""
        ...


# One user after the other, in this process.


class SerialEngine:
    """The engine that all others have to agree with, bit for bit."""

    def __init__(self, sgd: LocalSGD) -> None:
        self._sgd = sgd

    @property
    def kernel(self) -> str:
        return f"torch {torch.__version__}, {getattr(self._sgd, 'name', 'autograd')}"

    def sum(
        self,
        task: CohortTask,
        job: CohortJob,
        users: Sequence[int],
        progress: Progress | None = None,
    ) -> CohortSum:
        return sum_over(task, job, (int(user) for user in users), self._sgd, progress)

    def close(self) -> None:
        pass
