"""Public pre-training: any model, on text that is nobody's secret, with plain SGD or Adam.

McMahan et al. 2018, appendix B: "an initial model trained with standard (non-private) algorithms on
the public data ... can then be further refined by continuing with differentially-private training".
Nothing here protects anybody.

Texts of similar length are read side by side, `unroll` tokens a step.  A model that carries a
state keeps it from step to step of a text, without its history (truncated back-propagation); one
that does not sees windows of `unroll` tokens.  Every text begins with a fresh state, and BOS is
never a target: what is trained is what is scored.

With the same seed, threads and machine a run gives the same model, unless it is cut by `minutes`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.central.batches import Text, TextBatches, Window
from tacit.models.base import LanguageModel, State, detached
from tacit.models.loss import loss as summed_loss

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")
FINAL_SHARE = 0.05  # of the learning rate, at the end of the cosine

Measure = Callable[[LanguageModel], Mapping[str, Any]]


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


def pretrain(
    model: LanguageModel,
    texts: Sequence[Text],
    settings: Settings,
    *,
    bos: int,
    measure: Measure | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_point: Callable[[Point], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train the model in place on tokenised texts, each BOS ... EOS.  It is left in training mode.

    `measure` is called every `measure_every` steps and at the end, with the model, and its figures
    (held-out perplexity, say) become points of the curve; its time does not count as training.
    `on_point` is given each point as soon as there is one.
    """
    batches = TextBatches(
        texts,
        batch=settings.batch,
        unroll=settings.unroll,
        seed=settings.seed,
        vocab_size=model.config.vocab_size,
        bos=bos,
    )
    wanted = math.ceil(settings.epochs * batches.targets)
    optimizer = _optimizer(model, settings)
    outcome, sums, paused, rate = Outcome(), _Sums(), 0.0, 0.0
    began = clock()
    state: State = None
    model.train()
    for window in _windows(batches, settings):
        share = _share(outcome, wanted, settings)
        if share >= 1:
            break
        rate = learning_rate(settings, outcome.steps, share)
        state = None if window.begins or not model.carries_state else carried(state, window)
        with own_randomness(settings.seed, outcome.steps):
            loss, count, state = _step(model, optimizer, rate, window, state, settings.clip_norm)
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {outcome.steps + 1}: lower the learning rate"
                f" (it is {settings.learning_rate:g})"
            )
        sums.total, sums.count = sums.total + loss * count, sums.count + count
        outcome.steps, outcome.tokens = outcome.steps + 1, outcome.tokens + count
        outcome.seconds = clock() - began - paused
        if progress is not None:
            share = _share(outcome, wanted, settings)
            progress(Progress(outcome.steps, outcome.tokens, outcome.seconds, share, loss))
        if outcome.steps % settings.measure_every == 0:
            before = clock()
            _add_point(model, outcome, rate, sums, measure, on_point)
            paused, sums = paused + clock() - before, _Sums()
    outcome.ran_out_of_time = outcome.tokens < wanted
    if sums.count:
        _add_point(model, outcome, rate, sums, measure, on_point)
    return outcome


def _windows(batches: TextBatches, settings: Settings) -> Iterator[Window]:
    """One epoch after the other."""
    for epoch in range(math.ceil(settings.epochs)):
        yield from batches.epoch(epoch)


def carried(state: State, window: Window) -> State:
    """The state of the rows that are left, without its history."""
    assert state is not None
    return detached(tuple(part[: len(window.inputs)] for part in state))


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


def _optimizer(model: LanguageModel, settings: Settings) -> torch.optim.Optimizer:
    parameters = [values for _, values in model.parameter_vectors()]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.learning_rate)
    return torch.optim.Adam(parameters, lr=settings.learning_rate)


def _step(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    rate: float,
    window: Window,
    state: State,
    clip_norm: float,
) -> tuple[float, int, State]:
    """One step of the optimizer; the mean loss before it, over how many targets, and the state."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits, state = model(window.inputs, state)
    total, count = summed_loss(logits, window.targets, window.mask)
    mean = total / count.clamp(min=1)
    optimizer.zero_grad()
    mean.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([values for _, values in model.parameter_vectors()], clip_norm)
    optimizer.step()
    model.normalise_()
    return mean.item(), int(count), state


def _add_point(
    model: LanguageModel,
    outcome: Outcome,
    rate: float,
    sums: _Sums,
    measure: Measure | None,
    on_point: Callable[[Point], None] | None,
) -> None:
    measured = measure(model) if measure is not None else {}
    point = Point(outcome.steps, outcome.tokens, outcome.seconds, rate, sums.mean(), measured)
    outcome.curve.append(point)
    if on_point is not None:
        on_point(point)
