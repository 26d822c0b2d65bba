"""A cohort over several processes: of this machine, or of all that torchrun started."""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tacit.engines.children import Children
from tacit.engines.engine import Engine, Progress, SerialEngine
from tacit.engines.launch import Launch
from tacit.engines.ranks import Assignment, Ranks
from tacit.engines.torchrun import Torchrun
from tacit.federated.cohort import CohortJob, CohortSum, CohortTask
from tacit.kernels.local_sgd import local_sgd_for

# What a user costs besides its tokens, in tokens: loading the weights, the clip, the integers.
OVERHEAD = 100


class Team(Protocol):
    """Where the other processes come from."""

    def ranks(self) -> Ranks:
        """All of them, once they are there."""
        ...

    def check(self) -> None:
        """Raises if it is known that one has ended."""
        ...

    def end(self) -> None:
        """Let go of them."""
        ...


class ProcessEngine:
    """Rank 0 of several processes, each with one thread and its share of every cohort.

    Guarantee: the same bits as `SerialEngine`, whatever the number of processes.  If one of them
    is lost, `sum` raises, and nothing of the round is left but what a killed run leaves.
    """

    def __init__(self, model: Any, workers: int = 1, *, team: Team | None = None) -> None:
        """With `workers` processes of this machine, this one among them; or with another team."""
        self._model = model
        self._team: Team = Children(workers) if team is None else team
        self._mine = SerialEngine(local_sgd_for(model))
        self._ranks: Ranks | None = None
        self._told_model = False
        self._told_task: CohortTask | None = None

    @property
    def kernel(self) -> str:
        return self._mine.kernel

    def sum(
        self,
        task: CohortTask,
        job: CohortJob,
        users: Sequence[int],
        progress: Progress | None = None,
    ) -> CohortSum:
        if self._ranks is None:
            self._ranks = self._team.ranks()
        ranks = self._ranks
        places = balance([OVERHEAD + len(task.users.tokens(u)) for u in users], ranks.size)
        parts = [np.array([users[place] for place in part], np.int64) for part in places]
        empty = task.plan.empty(len(job.weights))
        values, bits = len(empty.update), len(empty.bits)
        assignment = Assignment(
            kernel=self.kernel,
            model=None if self._told_model else self._model,
            task=None if task is self._told_task else task,
            job=job,
            parts=parts,
        )
        ranks.send(assignment, values, bits)

        def done(count: int) -> None:
            self._team.check()
            if progress is not None:
                progress(min(count * ranks.size, len(users)))

        mine = self._mine.sum(task, job, parts[0].tolist(), done)
        try:
            vector = ranks.join(mine, values, bits)
        except ValueError:  # a process failed, perhaps before it had unpacked what it was told
            self._told_model, self._told_task = False, None
            raise
        self._told_model, self._told_task = True, task
        return ranks.joined(vector, values, bits)

    def close(self) -> None:
        self._team.end()
        self._ranks = None


def engine_for(model: Any, workers: int = 1) -> Engine:
    """What trains the model: under torchrun all of its processes, otherwise so many of our own."""
    if workers == 1 and Launch.of_this_process().size == 1:
        return SerialEngine(local_sgd_for(model))
    return ProcessEngine(model, team=team_for(workers))


def team_for(workers: int) -> Team:
    """Where the processes of a training of any task come from; to be called by rank 0.

    They are those of torchrun if it started this one, else `workers` on this machine.
    """
    return Torchrun() if Launch.of_this_process().size > 1 else Children(workers)


def available_cores() -> int:
    """How many processes this one may keep busy."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Which process computes which users, so that all of them end at about the same time.


def balance(costs: Sequence[float], parts: int) -> list[list[int]]:
    """The places 0..len(costs)-1 in so many parts of about equal cost, each in ascending order.

    The dearest comes first, and each goes to the part that has least so far.  No part then costs
    more than 4/3 - 1/(3 parts) of the best there is (Graham 1969), nor more than the mean by more
    than one user.  It is a function of its arguments: ties go to the earlier place and part.
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    result: list[list[int]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        load, part = loads[0]
        result[part].append(place)
        heapq.heapreplace(loads, (load + costs[place], part))
    return [sorted(part) for part in result]
