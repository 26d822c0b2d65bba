"""Milliseconds to clip, weigh and quantise a user's update and to add it to the cohort's sum.

`add` does it in two passes over memory; `contribution`, which it equals in every bit, does one step
after the other.  Both take turns, because the machine may be busy; a figure is the best of a few.
Updates are of the 1.35M LSTM: dense, or zero for the words that a sampled softmax left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from tacit.mechanisms.clipping import ClipState, FlatClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler

WORDS, SIZE, OTHERS = 10_000, 97, 386_144  # word vectors with their biases, and all else
CANDIDATES = 1280
REPEATS = 15


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def add_step_by_step(
    plan: RoundPlan, total: Contribution, update: np.ndarray, state: ClipState
) -> None:
    total += plan.contribution(update, 100, state)


def main() -> None:
    plan = RoundPlan(
        population=10_000,
        sampler=PoissonSampler(0.01),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(10_000.0),
        noise=IndependentNoise(1.0),
    )
    state, random = plan.initial_clip_state(), np.random.default_rng(0)
    dense = random.normal(size=WORDS * SIZE + OTHERS).astype(np.float32)
    sampled = dense.copy()
    left_out = random.permutation(WORDS)[CANDIDATES:]
    sampled[: WORDS * SIZE].reshape(WORDS, SIZE)[left_out] = 0.0
    for name, update in (("dense", dense), ("sampled softmax", sampled)):
        total = plan.empty(len(update))

        add = partial(plan.add, total, update, 100, state)
        step_by_step = partial(add_step_by_step, plan, total, update, state)
        add()  # builds what has to be built
        fast, slow = [], []
        for _ in range(REPEATS):
            fast.append(milliseconds(add))
            slow.append(milliseconds(step_by_step))
        print(
            f"{name}: {min(fast):.2f} ms in two passes, {min(slow):.2f} ms step by step, ratio"
            f" {min(slow) / min(fast):.1f}"
        )


if __name__ == "__main__":
    main()
