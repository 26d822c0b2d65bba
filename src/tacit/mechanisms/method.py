"""A way of training on records: what a step draws, what each worker gives, what is applied.

A step goes through these, with N workers side by side (`nlu.steps` has the loop):

    draws    which units take part, and which worker has which of them
    share    what a worker makes of its units: one vector, without noise
    noise_   this worker's part of the noise, added to its share
    update   what the sum of all shares becomes: a gradient for the optimizer
    charges  what the steps of an epoch release

A unit is a record, or a user with all of theirs; `Gradients` knows which.  The methods are `Plain`
and `DpSgd` here, and both forms of eDP-SGD in `edp_sgd`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.noise import add_own_noise_, on_grid_
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy import checks
from tacit.privacy.events import Event, NonPrivate
from tacit.privacy.stream import Stream

Indices = NDArray[np.int64]
Vector = NDArray[Any]  # float32 or float64, over all trained parameters
Charge = tuple[int, Event]  # the step from which on it counts, and what is released
Streams = Callable[[str, int], Stream]  # by purpose and round, which is a step or an epoch


class Gradients(Protocol):
    """What a worker computes with its copy of the model; a vector is only valid until the next."""

    def mean(self, units: Indices) -> NDArray[np.float32]:
        """The gradient of the mean loss over all records of the units."""

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

    @property
    def vectors(self) -> int:
        """How many batches each step is split into; one for each worker unless a method says so."""
        return self.workers

    @abc.abstractmethod
    def steps_of_epoch(self, units: int) -> int:
        """How many steps an epoch has; `units` is the declared population."""

    @abc.abstractmethod
    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        """For each step the units of each worker, as indices below `units`, the actual number."""

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
        """This worker's part of the mean: its own mean times its share of the batch's units."""
        batch = work.batches[work.worker]
        if not len(batch):  # the last batch of an epoch may be small
            return np.zeros_like(work.gradients.mean(work.batches[0]))
        share = work.gradients.mean(batch)
        share *= len(batch) / sum(map(len, work.batches))
        return share

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        return share

    def update(self, step: int, total: Vector) -> Vector:
        return total

    def charges(self, steps: range) -> list[Charge]:
        """One release without noise, which accounts to infinity."""
        return [(steps.start, NonPrivate("SGD adds no noise"))]


def reshuffled(
    steps: range, units: int, batch_size: int, in_epoch: int, streams: Streams
) -> Iterator[NDArray[np.int64]]:
    """Batches of epochs, each in an order of its own; an epoch's last batch may be small."""
    epoch, order = -1, np.empty(0, np.int64)
    for step in steps:
        now, batch = divmod(step, in_epoch)
        if now != epoch:
            epoch, order = now, streams("order", now).permutation(units)
        yield order[batch * batch_size : (batch + 1) * batch_size]


def _split_among(workers: int, cohort: Indices, stream: Stream) -> list[Indices]:
    """Split a cohort among workers: every unit picks its own, so one that leaves moves no other."""
    chosen = stream.integers(workers, len(cohort))
    return [cohort[chosen == worker] for worker in range(workers)]


class PoissonMethod(Method):
    """A method whose units join every step independently with the sampler's probability q."""

    sampler: PoissonSampler

    def steps_of_epoch(self, units: int) -> int:
        """1/q steps, in which a record is drawn once on average, whatever the actual units."""
        return math.ceil(1 / self.sampler.sampling_prob)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        """A Poisson cohort for each step, each record of which picks its batch independently."""
        for step in steps:
            cohort = self.sampler.draw(units, streams("cohort", step))
            yield _split_among(self.vectors, cohort, streams("workers", step))


# The part of a record's clip norm by which the sum over all other records may move when it comes or
# goes, because they are then added up in another order or in batches of other lengths.  A float64
# sum of n vectors of norm C is right to n^2 2^-53 C, so this is enough for 10^6 records in a step.
RESERVE = 2.0**-10


@dataclass(frozen=True)
class DpSgd(PoissonMethod):
    """`dp-sgd`: every record's gradient is clipped by itself (Abadi et al. 2016, Algorithm 1).

    With q the sampling probability and K the declared `population`, a step applies

        (sum over the drawn records of min(1, C / |g_i|) g_i + N(0, (C z)^2)) / (q K)

    Guarantee: a record joins a step independently with probability q and moves the sum by at most
    C, so a step is the Poisson-sampled Gaussian of multiplier z, under add/remove-one.  The
    record's own gradient is clipped to C / (1 + RESERVE); the rest of C is for what floating-point
    sums over the other records may move with it.  With several workers each record picks one of
    them, which changes nothing in the sum, and each coordinate has its noise from one of them; a
    single worker's share is not protected and must never leave the training process.
    """

    workers: int
    clip_norm: float
    noise_multiplier: float
    sampler: PoissonSampler
    population: int
    name: ClassVar[str] = "dp-sgd"

    def __post_init__(self) -> None:
        checks.whole("workers", self.workers, at_least=1)
        checks.whole("population", self.population, at_least=1)
        checks.non_negative("noise_multiplier", self.noise_multiplier)
        FlatClip(self.clip_norm)
        FlatClip(self.own_clip_norm)

    @property
    def own_clip_norm(self) -> float:
        """What a record's own gradient is clipped to."""
        return self.clip_norm / (1 + RESERVE)

    @property
    def adds_noise(self) -> bool:
        return self.noise_multiplier > 0

    def share(self, work: Work) -> Vector:
        """The sum of this worker's records' gradients, each clipped by itself."""
        return work.gradients.clipped_sum(work.batches[work.worker], self.own_clip_norm)

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        """This worker's coordinates get noise of C z."""
        stddev = self.clip_norm * self.noise_multiplier
        return add_own_noise_(share, stddev, worker, self.workers, stream)

    def update(self, step: int, total: Vector) -> Vector:
        """The noisy sum, rounded to a public grid, over the expected batch qK."""
        total = on_grid_(total, self.clip_norm, self.population, self.noise_multiplier)
        total /= self.sampler.sampling_prob * self.population
        return total

    def charges(self, steps: range) -> list[Charge]:
        """The Poisson-sampled Gaussian of multiplier z, once a step."""
        if self.noise_multiplier == 0:
            return [(steps.start, NonPrivate("DP-SGD without noise"))]
        event = self.sampler.event(self.noise_multiplier)
        return [(step, event) for step in steps]
