"""Rounds of tacit: draw the cohort, train, clip, sum integers, add noise, average, apply.

Arguments: processes, the folder of a token cache, and the users of a round.  A command says which
kind of round: "private", "greedy" (clipped after every local step), "plain" (FedAvg: no clip and no
noise), "sampled" (private, with sampled softmax); or "profile", a private round with clocks in it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import synthetic_users
import torch
from workload import BATCH, CLIP_NORM, NOISE_MULTIPLIER, RATE, UNROLL, VOCABULARY, serve

from tacit.engines.engine import engine_for
from tacit.federated import cohort, server, user_update
from tacit.federated.cohort import CohortJob, CohortTask
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.sampled_softmax import SampledSoftmax
from tacit.mechanisms.clipping import FlatClip, NoClip
from tacit.mechanisms.estimators import FixedDenominator, TrueAverage
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import FixedSizeSampler
from tacit.models.base import to_vector
from tacit.models.registry import build
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream

NEGATIVES = 500  # as in the run that its accuracy is from


class Training:
    """What `tacit.train` keeps between rounds, less its files."""

    def __init__(self, processes: int, cache: Path, size: int) -> None:
        users = synthetic_users.opened(cache)
        sampler = FixedSizeSampler(len(users), size)
        private = RoundPlan(
            population=len(users),
            sampler=sampler,
            clipper=FlatClip(CLIP_NORM),
            estimator=FixedDenominator(float(len(users))),
            noise=IndependentNoise(NOISE_MULTIPLIER),
        )
        plain = RoundPlan(
            population=len(users), sampler=sampler, clipper=NoClip(), estimator=TrueAverage()
        )
        update = user_update.FedAvg(learning_rate=RATE, batch_size=BATCH, unroll=UNROLL)
        greedy = dataclasses.replace(update, clip_each_step=True)
        sampled = dataclasses.replace(update, sampled_softmax=SampledSoftmax(NEGATIVES))
        self.tasks = {
            "private": CohortTask(private, update, 0, users),
            "greedy": CohortTask(private, greedy, 0, users),
            "plain": CohortTask(plain, update, 0, users),
            "sampled": CohortTask(private, sampled, 0, users),
        }
        self.model = build("lstm", VOCABULARY)
        self.weights = to_vector(self.model)
        self.engine = engine_for(self.model, processes)
        self.key, self.round = RunKey.from_seed(0), 0

    def stream(self, purpose: str) -> Stream:
        return self.key.stream(branch="main", round=self.round, attempt=0, purpose=purpose)

    def run(self, kind: str) -> dict[str, object]:
        task = self.tasks[kind]
        state = task.plan.initial_clip_state()
        drawn = task.plan.cohort(len(task.users), self.stream("cohort"))
        job = CohortJob(self.weights, state, self.key, "main", self.round)
        summed = self.engine.sum(task, job, [int(user) for user in drawn])
        release = task.plan.release(summed.total, state, self.stream)
        moved, _ = server.ServerSGD().apply(self.weights, release.average, {})
        self.weights = server.normalised(self.model, moved)
        self.round += 1
        found = summed.diagnostics
        norm = found.norm_sum / max(found.users, 1)
        return {"users": found.users, "finite": found.not_finite == 0, "norm": norm}


@contextmanager
def clocks(taken: dict[str, float]) -> Iterator[None]:
    """Wall time inside the parts of a round; none of them is inside another."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                taken[name] += time.perf_counter() - began

        return run

    parts: list[tuple[str, Any, str]] = [
        ("local steps", HandwrittenSGD, "step"),
        ("copying weights", HandwrittenSGD, "load"),
        ("copying weights", HandwrittenSGD, "weights"),
        ("copying weights", HandwrittenSGD, "update"),
        ("tokens to rows", user_update, "rows_of"),
        ("clip, weigh, add to the sum", RoundPlan, "add"),
        ("diagnostics", cohort, "_diagnosed"),
        ("noise and average", RoundPlan, "release"),
        ("server's step", server.ServerSGD, "apply"),
        ("server's step", server, "normalised"),
    ]
    with ExitStack() as stack:
        for name, owner, attribute in parts:
            wrapped = timed(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, wrapped))
        yield


def resident() -> dict[str, object]:
    """Resident memory in MB, all of it and what is not files; nothing where there is no /proc."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    found = {name: int(kb) / 1024 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", text)}
    return {"resident": found.get("VmRSS"), "anonymous": found.get("RssAnon")}


def command(training: Training, words: list[str]) -> dict[str, object]:
    if words[0] != "profile":
        began = time.perf_counter()
        facts = training.run(words[0])
        return {"seconds": time.perf_counter() - began} | facts | resident()
    taken: dict[str, float] = defaultdict(float)
    began = time.perf_counter()
    with clocks(taken):
        facts = training.run(words[1])
    seconds = time.perf_counter() - began
    taken["everything else"] = seconds - sum(taken.values())
    return {"seconds": seconds, "parts": taken, "kernel": training.engine.kernel} | facts


def main() -> None:
    processes, cache, size = sys.argv[1:]
    torch.set_num_threads(1)
    training = Training(int(processes), Path(cache), int(size))
    try:
        serve(partial(command, training))
    finally:
        training.engine.close()


if __name__ == "__main__":
    main()
