"""What every engine does: the summed contributions of a cohort, the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tacit.federated.cohort import CohortSum, Job, Task

Progress = Callable[[int], None]  # how many users are done


class Engine(Protocol):
    """Computes cohorts, one after the other."""

    @property
    def kernel(self) -> str:
        """Which arithmetic it uses; part of what a release is made from."""
        ...

    def sum(
        self, task: Task, job: Job, users: Sequence[int], progress: Progress | None = None
    ) -> CohortSum:
        """The sum over these users."""
        ...

    def close(self) -> None:
        """Let go of processes, if there are any."""
        ...
