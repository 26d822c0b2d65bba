"""People's texts as a pool of records, for training that does not know users (Thakkar et al. 2020).

A record is one text.  In the paper's central learning a step takes a batch of records, and it
compares two orders in which an epoch goes through them:

- "iid": all records shuffled, whoever wrote them.
- "non-iid": user by user.  Users come in a random order, and the records of a user follow one
  another as they were written, so that a batch holds the text of one or a few users.

Either way each record comes exactly once in an epoch.  Nothing here protects anybody.

Record-level baselines: SGD, momentum and Adam on pooled texts (Thakkar et al. 2020, section 3).

One step takes a batch of records, and follows the gradient of the mean
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.models.base import LanguageModel, State
from tacit.models.base import loss as summed_loss
from tacit.public.pretrain import own_randomness, windows

Order = Literal["iid", "non-iid"]


@dataclass(frozen=True)
class Records:
    """The records of all users, one user after the other, in one array of tokens."""

    tokens: NDArray[np.integer[Any]]
    starts: NDArray[np.int64]  # of each record in the tokens
    ends: NDArray[np.int64]
    users: NDArray[np.int64]  # the first record of each user, and behind the last user the count

    @classmethod
    def of(cls, users_tokens: Iterable[NDArray[np.integer[Any]]], bos: int) -> Records:
        """Each user's tokens, which are texts that begin with BOS, cut into records.

        What has no token behind its BOS, such as the end of a user's text at a cap, is no record.
        """
        kept, starts, ends, first = [], [], [], [0]
        place, count = 0, 0
        for tokens in users_tokens:
            begins = np.flatnonzero(tokens == bos)
            if len(tokens) and (not len(begins) or begins[0]):
                begins = np.concatenate([[0], begins])  # a text whose BOS is not there
            stops = np.append(begins[1:], len(tokens))[: len(begins)]
            whole = stops - begins > 1
            starts.append(place + begins[whole])
            ends.append(place + stops[whole])
            kept.append(tokens)
            place, count = place + len(tokens), count + int(whole.sum())
            first.append(count)
        if not count:
            raise ValueError("there is nothing to train on: the users have no tokens to predict")
        return cls(
            np.concatenate(kept), np.concatenate(starts), np.concatenate(ends), np.array(first)
        )

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, index: int) -> NDArray[np.int64]:
        """The tokens of one record, with its BOS."""
        found: NDArray[np.int64] = self.tokens[self.starts[index] : self.ends[index]].astype(
            np.int64
        )
        return found

    def order(self, order: Order, rng: np.random.Generator) -> NDArray[np.int64]:
        """All records, in the order of one epoch."""
        check_order(order)
        if order == "iid":
            return rng.permutation(len(self))
        counts = np.diff(self.users)
        chosen = rng.permutation(len(counts))
        counts = counts[chosen]
        # Within each user: 0, 1, 2, ... on top of the user's first record.
        before = np.repeat(np.cumsum(counts) - counts, counts)
        found: NDArray[np.int64] = np.repeat(self.users[:-1][chosen], counts) + (
            np.arange(len(self)) - before
        )
        return found


def check_order(order: str) -> None:
    """One of the two orders."""
    if order not in get_args(Order):
        raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")


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
        progress: Callable[[PooledStep], None] | None = None,
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
                progress(PooledStep(step + 1, wanted, mean))
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
class PooledStep:
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
