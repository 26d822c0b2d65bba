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
from typing import Any

import torch

from tacit.models.base import LanguageModel, State, detached
from tacit.models.loss import loss as summed_loss
from tacit.public.batches import Text, TextBatches, Window
from tacit.public.steps import Observers, Outcome, Point, Progress, Settings, Stepped, run_steps

__all__ = ["Measure", "Outcome", "Point", "Progress", "Settings", "carried", "pretrain"]

Measure = Callable[[LanguageModel], Mapping[str, Any]]


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
    optimizer = _optimizer(model, settings)
    state: State = None
    model.train()

    def step(window: Window, rate: float) -> Stepped:
        nonlocal state
        state = None if window.begins or not model.carries_state else carried(state, window)
        loss, count, state = _step(model, optimizer, rate, window, state, settings.clip_norm)
        return Stepped(loss, count, count)

    return run_steps(
        _windows(batches, settings),
        step,
        settings,
        math.ceil(settings.epochs * batches.targets),
        Observers(None if measure is None else lambda: measure(model), progress, on_point, clock),
    )


def _windows(batches: TextBatches, settings: Settings) -> Iterator[Window]:
    """One epoch after the other."""
    for epoch in range(math.ceil(settings.epochs)):
        yield from batches.epoch(epoch)


def carried(state: State, window: Window) -> State:
    """The state of the rows that are left, without its history."""
    assert state is not None
    return detached(tuple(part[: len(window.inputs)] for part in state))


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
