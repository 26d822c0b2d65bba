"""What computes a cohort's summed contributions: one process, several, or an accelerator.

All engines compute the same sum, so the choice between them changes the speed and, on an
accelerator, the last bits.  An engine, a device or a number of processes that cannot be used is
refused before anything is opened.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from tacit.engines.launch import Launch
from tacit.engines.ranks import Assignment, Ranks
from tacit.engines.teams import Team, team_for
from tacit.engines.vectorized import VectorizedEngine, usable_device
from tacit.federated.cohort import CohortJob, CohortSum, CohortTask, Progress, sum_over
from tacit.kernels.local_sgd import LocalSGD, local_sgd_for

# What a user costs besides its tokens, in tokens: loading the weights, the clip, the integers.
_OVERHEAD = 100


class Engine(Protocol):
    """Computes cohorts, one after the other."""

    @property
    def kernel(self) -> str:
        """Which arithmetic it uses; part of what a release is made from."""

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum over these users."""

    def close(self) -> None:
        """Let go of processes, if there are any."""


class SerialEngine:
    """One user after the other, in this process: all others have to agree with it, bit for bit."""

    def __init__(self, sgd: LocalSGD) -> None:
        self._sgd = sgd

    @property
    def kernel(self) -> str:
        """The version of torch, and which form of the local steps is used."""
        return f"torch {torch.__version__}, {getattr(self._sgd, 'name', 'autograd')}"

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum over these users, one after the other."""
        return sum_over(task, job, (int(user) for user in users), self._sgd, progress)

    def close(self) -> None:
        """Nothing: there are no other processes."""


class ProcessEngine:
    """Rank 0 of several processes, each with one thread and its share of every cohort.

    A round is one message to the others, with the users of each, and one all-reduce of integers
    that joins the sums.  The model and the task are sent only when they are new.

    Guarantee: the same bits as `SerialEngine`, whatever the number of processes.  If one of them
    is lost, `sum` raises, and nothing of the round is left but what a killed run leaves.
    """

    def __init__(self, model: Any, team: Team) -> None:
        """`team` is where the other processes come from; the engine ends it when it is closed."""
        self._model, self._team = model, team
        self._own = SerialEngine(local_sgd_for(model))
        self._ranks: Ranks | None = None
        self._sent_model = False
        self._sent_task: CohortTask | None = None

    @property
    def kernel(self) -> str:
        """That of this process; a rank with another one refuses its part."""
        return self._own.kernel

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum over these users, each computed by one of the processes.

        Raises:
            ValueError: if a process could not do its part, with its reason.
            WorkerLost: if a process is gone; the engine cannot be used any more.
        """
        if self._ranks is None:
            self._ranks = self._team.ranks()
        ranks = self._ranks
        longest = task.update.tokens_per_round or math.inf
        costs = [_OVERHEAD + min(len(task.users.tokens(user)), longest) for user in users]
        parts = [
            np.array([users[index] for index in part], np.int64)
            for part in balance(costs, ranks.size)
        ]
        empty = task.plan.empty(len(job.weights))
        assignment = Assignment(
            kernel=self.kernel,
            model=None if self._sent_model else self._model,
            task=None if task is self._sent_task else task,
            job=job,
            parts=parts,
        )
        ranks.send(assignment, len(empty.update), len(empty.bits))

        def report(count: int) -> None:
            """Of progress, as if all ranks were as far as this one; notices a lost process."""
            self._team.check()
            if progress is not None:
                progress(min(count * ranks.size, len(users)))

        own = self._own.sum(task, job, parts[0].tolist(), report)
        try:
            total = ranks.join(own, len(empty.update), len(empty.bits))
        except ValueError:  # a process failed, perhaps before it had unpacked what it was sent
            self._sent_model, self._sent_task = False, None
            raise
        self._sent_model, self._sent_task = True, task
        return total

    def close(self) -> None:
        """End the processes, or leave them to torchrun."""
        self._team.end()
        self._ranks = None


def balance(costs: Sequence[float], parts: int) -> list[list[int]]:
    """The indices 0..len(costs)-1 in `parts` parts of about equal cost, each in ascending order.

    The dearest comes first, and each goes to the part that has least so far.  No part then costs
    more than 4/3 - 1/(3 parts) of the best there is (Graham 1969), nor more than the mean by more
    than one user.  It is a function of its arguments: ties go to the earlier index and part.
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    result: list[list[int]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        load, part = loads[0]
        result[part].append(index)
        heapq.heapreplace(loads, (load + costs[index], part))
    return [sorted(part) for part in result]


def choose_engine(name: str, workers: int | None, device: str) -> Callable[[Any], Engine]:
    """How cohorts are computed, from words such as a command line's.

    Args:
        name: processes, vectorized, or empty for what the device is good at.
        workers: how many processes; None for one per core.
        device: cpu, cuda or mps, as torch names it.

    Returns:
        A function that makes an engine for the model of the run.

    Raises:
        ValueError: if these contradict each other, or torch finds no such device.
    """
    name = name or ("processes" if device == "cpu" else "vectorized")
    if name not in ("processes", "vectorized"):
        raise ValueError(f"--engine must be processes or vectorized, got {name!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    if name == "processes":
        if device != "cpu":
            raise ValueError(f"--engine processes computes on the cpu; with {device} leave it out")
        count = workers or available_cores()
        return lambda model: engine_for(model, count)
    if workers not in (None, 1):
        raise ValueError("--workers is for --engine processes; leave it out with vectorized")
    if device.partition(":")[0] not in ("cpu", "cuda", "mps"):
        raise ValueError(f"--device must be cpu, cuda or mps, got {device!r}")
    usable = usable_device(device)
    return lambda model: VectorizedEngine(model, usable)


def engine_for(model: Any, workers: int = 1) -> Engine:
    """The engine for a model on the CPU: torchrun's processes, if it started this one; or our own.

    `workers` counts the processes of our own, this one among them.
    """
    if workers == 1 and Launch.of_this_process().size == 1:
        return SerialEngine(local_sgd_for(model))
    return ProcessEngine(model, team_for(workers))


def available_cores() -> int:
    """How many processes this one may keep busy."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
