"""A way of training on records: what a step draws, what each worker gives, what is applied.

A step goes through these, with N workers side by side (`nlu.steps` has the loop):

    draws    which units take part, and which worker has which of them
    share    what a worker makes of its units: one vector, without noise
    noise_   this worker's part of the noise, added to its share
    update   what the sum of all shares becomes: a gradient for the optimizer
    charges  what the steps of an epoch release

A unit is a record, or a user with all of theirs; `Gradients` knows which.  The methods are `Plain`
here, `dp_sgd.DpSgd`, and both forms of eDP-SGD in `edp_method`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.events import Event, NonPrivate
from tacit.privacy.randomness import Stream

Indices = NDArray[np.int64]
Vector = NDArray[Any]  # float32 or float64, over all trained parameters
Charge = tuple[int, Event]  # the step from which on it counts, and what is released


class Streams(Protocol):
    """Keyed randomness: one stream for each purpose, round (a step or an epoch) and index."""

    def __call__(self, purpose: str, round: int, index: int = 0) -> Stream: ...


class Gradients(Protocol):
    """What a worker computes with its copy of the model; a vector is only valid until the next."""

    def mean(self, units: Indices) -> NDArray[np.float32]:
        """Of the mean loss over all records of the units."""

    def clipped_sum(self, units: Indices, clip_norm: float) -> NDArray[np.float64]:
        """The sum of the gradients of single records, each clipped to the norm."""


@dataclass(frozen=True)
class Work:
    """A worker's part of a step: the units of all workers, and what it computes with."""

    step: int
    worker: int
    batches: Sequence[Indices]
    gradients: Gradients


class Method(abc.ABC):
    """Frozen, and all public; see the module for what a step does with it."""

    name: ClassVar[str]
    workers: int

    @abc.abstractmethod
    def steps_of_epoch(self, units: int) -> int:
        """How many steps an epoch has; `units` is the declared population."""

    @abc.abstractmethod
    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        """For each step the units of each worker, out of so many actual ones."""

    @property
    @abc.abstractmethod
    def adds_noise(self) -> bool:
        """Whether `noise_` does anything."""

    @abc.abstractmethod
    def share(self, work: Work) -> Vector:
        """What this worker contributes, ours to change: not protected by anything yet."""

    @abc.abstractmethod
    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        """The share with this worker's part of the step's noise, in its place.

        The stream is a function of all workers' shares (`nlu.noise_chain`), so that no other sum
        ever has the same noise.
        """

    @abc.abstractmethod
    def update(self, step: int, total: Vector) -> Vector:
        """The gradient that the optimizer is given, from the sum of all shares."""

    @abc.abstractmethod
    def charges(self, steps: range) -> list[Charge]:
        """What the steps of one epoch release."""


@dataclass(frozen=True)
class Plain(Method):
    """SGD, or Adam: the mean gradient of a batch.  Guarantee: none."""

    workers: int
    batch_size: int
    name: ClassVar[str] = "sgd"

    def steps_of_epoch(self, units: int) -> int:
        return math.ceil(units / self.batch_size)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        in_epoch = self.steps_of_epoch(units)
        for batch in reshuffled(steps, units, self.batch_size, in_epoch, streams):
            yield np.array_split(batch, self.workers)

    @property
    def adds_noise(self) -> bool:
        return False

    def share(self, work: Work) -> Vector:
        mine = work.batches[work.worker]
        if not len(mine):  # the last batch of an epoch may be small
            return np.zeros_like(work.gradients.mean(work.batches[0]))
        share = work.gradients.mean(mine)
        share *= len(mine) / sum(map(len, work.batches))
        return share

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        return share

    def update(self, step: int, total: Vector) -> Vector:
        return total

    def charges(self, steps: range) -> list[Charge]:
        return [(steps.start, NonPrivate("SGD adds no noise"))]


def reshuffled(
    steps: range, units: int, batch_size: int, in_epoch: int, streams: Streams
) -> Iterator[NDArray[np.int64]]:
    """Batches of epochs, each in an order of its own; an epoch's last batch may be small."""
    epoch, order = -1, np.empty(0, np.int64)
    for step in steps:
        now, place = divmod(step, in_epoch)
        if now != epoch:
            epoch, order = now, streams("order", now).permutation(units)
        yield order[place * batch_size : (place + 1) * batch_size]
