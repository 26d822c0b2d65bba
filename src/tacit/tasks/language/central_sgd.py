"""Record-level baselines: SGD, momentum and Adam on pooled texts (Thakkar et al. 2020, section 3).

One step takes a batch of records (texts, whoever wrote them), and follows the gradient of the mean
loss over their tokens.  A record is read from a fresh state, whole; of one that is longer than
`unroll` tokens the state is carried from piece to piece without its history (truncated
back-propagation), and all pieces have their part in the batch's one step.

The paper's settings: batches of 32 to 256 records; SGD with a rate of 0.005 at 32 records and

    rate(B) = rate(32) sqrt(2)^log2(B / 32)

(appendix B: "we increase the learning rate by about sqrt(2) for every 2x increase in the batch
size"); momentum of 0.9; Adam with a rate of 1e-4.

Guarantee: none.  This is what private training is compared with.  With the same seed, threads and
machine a training gives the same model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.models.base import LanguageModel, State
from tacit.models.base import loss as summed_loss
from tacit.public.pretrain import windows
from tacit.public.steps import own_randomness
from tacit.tasks.language.records import Order, Records, check_order

Optimizer = Literal["sgd", "momentum", "adam"]

SMALLEST_BATCH = 32  # records: what the paper's learning rate is given at
SGD_RATE, ADAM_RATE, MOMENTUM = 0.005, 1e-4, 0.9


def scaled_rate(rate_at_32: float, batch: int) -> float:
    """The square-root-of-two rule: times sqrt(2) for every doubling of the batch from 32."""
    if not (rate_at_32 > 0 and math.isfinite(rate_at_32)):
        raise ValueError(f"the learning rate must be a finite number above 0, got {rate_at_32}")
    if not batch >= 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return float(rate_at_32 * math.sqrt(batch / SMALLEST_BATCH))


@dataclass(frozen=True)
class RecordTraining:
    """How to train on records; either `epochs` or `steps` says how long."""

    optimizer: Optimizer
    order: Order
    learning_rate: float  # of this batch size: see `scaled_rate`
    batch: int = SMALLEST_BATCH
    epochs: float | None = None
    steps: int | None = None
    momentum: float = MOMENTUM
    unroll: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            known = ", ".join(get_args(Optimizer))
            raise ValueError(f"optimizer must be one of {known}, got {self.optimizer!r}")
        check_order(self.order)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"give either epochs or steps, got epochs {self.epochs} and steps {self.steps}"
            )
        for name in ("learning_rate", "epochs"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number above 0, got {value}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        for name, least in (("batch", 1), ("unroll", 1), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def steps_of(self, records: int) -> int:
        """How many steps it takes; the last batch of an epoch may be a small one."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * math.ceil(records / self.batch)))

    def train(
        self,
        model: LanguageModel,
        records: Records,
        *,
        bos: int,
        progress: Callable[[Progress], None] | None = None,
    ) -> Trained:
        """Train the model in place; it is left ready to be evaluated."""
        optimizer = self._optimizer(model)
        wanted, seen, tokens, mean = self.steps_of(len(records)), 0, 0, math.nan
        model.train()
        for step, chosen in enumerate(self._batches(records, wanted)):
            pieces = [records.record(index) for index in chosen.tolist()]
            pieces.sort(key=len, reverse=True)
            with own_randomness(self.seed, step):
                mean, count = _step(model, optimizer, pieces, self.unroll, bos)
            if not math.isfinite(mean):
                raise ValueError(
                    f"the loss is {mean} at step {step + 1}: lower the learning rate (it is"
                    f" {self.learning_rate:g})"
                )
            seen, tokens = seen + len(pieces), tokens + count
            if progress is not None:
                progress(Progress(step + 1, wanted, mean))
        model.eval()
        return Trained(wanted, seen, tokens, seen / len(records), mean)

    def _batches(self, records: Records, steps: int) -> Iterator[NDArray[np.int64]]:
        """The records of each step, epoch after epoch."""
        done, epoch = 0, 0
        while True:
            order = records.order(self.order, np.random.default_rng([self.seed, epoch]))
            for start in range(0, len(order), self.batch):
                if done == steps:
                    return
                yield order[start : start + self.batch]
                done += 1
            epoch += 1

    def _optimizer(self, model: LanguageModel) -> torch.optim.Optimizer:
        parameters = [values for _, values in model.parameter_vectors()]
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate)
        momentum = self.momentum if self.optimizer == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=momentum)


@dataclass(frozen=True)
class Progress:
    """Where the training is; given to the caller after every step."""

    step: int
    steps: int
    loss: float  # of this step's batch


@dataclass(frozen=True)
class Trained:
    """What a training did; the model itself was changed in place."""

    steps: int
    records: int  # read, each as often as it came
    tokens: int
    epochs: float
    loss: float  # of the last batch


def _step(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    pieces: list[NDArray[np.int64]],
    unroll: int,
    bos: int,
) -> tuple[float, int]:
    """One step on records of falling length; their mean loss before it, over how many tokens."""
    count = sum(int((piece[1:] != bos).sum()) for piece in pieces)
    optimizer.zero_grad()
    total, state = 0.0, None
    for window in windows(pieces, unroll, bos):
        begins: bool = window.begins or not model.carries_state
        before: State = None if begins else window.carry(state)
        logits, state = model(window.inputs, before)
        part, _ = summed_loss(logits, window.targets, window.mask)
        (part / count).backward()  # type: ignore[no-untyped-call]
        total += part.item()
    optimizer.step()
    model.normalise_()
    return total / count, count
