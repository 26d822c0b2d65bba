"""One user after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tacit.engines.engine import Progress
from tacit.federated.cohort import CohortSum, Job, Task, sum_over
from tacit.kernels.local_sgd import LocalSGD


class SerialEngine:
    """The engine that all others have to agree with, bit for bit."""

    def __init__(self, sgd: LocalSGD) -> None:
        self._sgd = sgd

    @property
    def kernel(self) -> str:
        return f"torch {torch.__version__}, {getattr(self._sgd, 'name', 'autograd')}"

    def sum(
        self, task: Task, job: Job, users: Sequence[int], progress: Progress | None = None
    ) -> CohortSum:
        return sum_over(task, job, (int(user) for user in users), self._sgd, progress)

    def close(self) -> None:
        pass
