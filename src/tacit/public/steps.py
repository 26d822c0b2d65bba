"""Training on public text, whatever the model: the loop, its settings, and its curve.

A step is a function; what this file knows is when to stop, which rate is due, and when to measure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")
FINAL_SHARE = 0.05  # of the learning rate, at the end of the cosine

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Settings:
    """How to train; the defaults suit the 1.35M LSTM on a few million words."""

    optimizer: str = "adam"
    learning_rate: float = 5e-3
    schedule: str = "cosine"
    warmup_steps: int = 100
    clip_norm: float = 1.0
    batch: int = 32
    unroll: int = 20
    epochs: float = 1.0
    minutes: float | None = None
    measure_every: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name in ("learning_rate", "clip_norm", "epochs", "minutes"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number above 0, got {value}")
        for name, least in (
            ("batch", 1),
            ("unroll", 1),
            ("measure_every", 1),
            ("warmup_steps", 0),
            ("seed", 0),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Progress:
    """Where the training is; given to the caller after every step."""

    step: int
    tokens: int  # targets trained on so far
    seconds: float
    share: float  # of all that is to be done, by tokens or by time, whichever is further
    loss: float  # of this step


@dataclass(frozen=True)
class Point:
    """One point of the curve: the training loss since the point before, and what was measured."""

    step: int
    tokens: int
    seconds: float
    learning_rate: float
    train_loss: float
    measured: Mapping[str, Any]

    def as_row(self) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "learning_rate": self.learning_rate,
            "train_loss": self.train_loss,
            **self.measured,
        }


@dataclass
class _Sums:
    """The training loss since the last point."""

    total: float = 0.0
    count: int = 0

    def add(self, done: Stepped) -> None:
        self.total += done.loss * done.weight
        self.count += done.weight

    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan


@dataclass
class Outcome:
    """What a training did; the model itself was changed in place."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    ran_out_of_time: bool = False
    curve: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class Stepped:
    """What a step did."""

    loss: float  # the mean over its targets, before it
    weight: int  # that the loss has in the curve
    tokens: int


@dataclass(frozen=True)
class Observers:
    """Who is told, and what the time is.

    `measure` is called every `measure_every` steps and at the end, and its figures (held-out
    perplexity, say) become points of the curve; its time does not count as training.  `on_point` is
    given each point as soon as there is one.
    """

    measure: Callable[[], Mapping[str, Any]] | None = None
    progress: Callable[[Progress], None] | None = None
    on_point: Callable[[Point], None] | None = None
    clock: Callable[[], float] = time.monotonic


def run_steps(
    batches: Iterable[Batch],
    step: Callable[[Batch, float], Stepped],
    settings: Settings,
    wanted: int,
    observers: Observers,
) -> Outcome:
    """Step after step, each at the rate that is due, until `wanted` tokens or minutes are over."""
    clock = observers.clock
    outcome, sums, paused, rate = Outcome(), _Sums(), 0.0, 0.0
    began = clock()
    for batch in batches:
        share = _share(outcome, wanted, settings)
        if share >= 1:
            break
        rate = learning_rate(settings, outcome.steps, share)
        with own_randomness(settings.seed, outcome.steps):
            done = step(batch, rate)
        if not math.isfinite(done.loss):
            raise ValueError(
                f"the loss is {done.loss} at step {outcome.steps + 1}: lower the learning rate"
                f" (it is {settings.learning_rate:g})"
            )
        sums.add(done)
        outcome.steps, outcome.tokens = outcome.steps + 1, outcome.tokens + done.tokens
        outcome.seconds = clock() - began - paused
        if observers.progress is not None:
            share = _share(outcome, wanted, settings)
            now = Progress(outcome.steps, outcome.tokens, outcome.seconds, share, done.loss)
            observers.progress(now)
        if outcome.steps % settings.measure_every == 0:
            before = clock()
            _add_point(outcome, rate, sums, observers)
            paused, sums = paused + clock() - before, _Sums()
    outcome.ran_out_of_time = outcome.tokens < wanted
    if sums.count:
        _add_point(outcome, rate, sums, observers)
    return outcome


@contextmanager
def own_randomness(seed: int, step: int) -> Iterator[None]:
    """Dropout by the seed and the step, whatever else draws from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        yield


def learning_rate(settings: Settings, step: int, share: float) -> float:
    """Linear warm-up; then constant, or half a cosine over the share of the work that is done."""
    warm = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    if settings.schedule == "constant":
        return settings.learning_rate * warm
    falling = 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    return settings.learning_rate * warm * (FINAL_SHARE + (1 - FINAL_SHARE) * falling)


def _share(outcome: Outcome, wanted: int, settings: Settings) -> float:
    """How much of the work is done, by tokens or by time."""
    by_time = 0.0 if settings.minutes is None else outcome.seconds / (60 * settings.minutes)
    return max(outcome.tokens / wanted, by_time)


def _add_point(outcome: Outcome, rate: float, sums: _Sums, observers: Observers) -> None:
    measured = observers.measure() if observers.measure is not None else {}
    point = Point(outcome.steps, outcome.tokens, outcome.seconds, rate, sums.mean(), measured)
    outcome.curve.append(point)
    if observers.on_point is not None:
        observers.on_point(point)
