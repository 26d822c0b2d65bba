"""DP-SGD: every record's gradient is clipped by itself (Abadi et al. 2016).

    sum over the drawn records of min(1, C / |g_i|) g_i, plus N(0, (C z)^2), over the expected batch

Guarantee: a record joins a step independently with probability q and moves the sum by at most C, so
a step is the Poisson-sampled Gaussian of multiplier z, under add/remove-one.  The record's own
gradient is clipped to C / (1 + RESERVE), and the rest of C is for what floating-point sums over the
records let it move besides.  With several workers
each record picks one of them, which changes nothing in the sum, and each coordinate has its noise
from one of them; a single worker's share is not protected and is shown to nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tacit.mechanisms.clippers import FlatClip
from tacit.mechanisms.method import Charge, Indices, Method, Streams, Vector, Work
from tacit.mechanisms.samplers import PoissonSampler
from tacit.mechanisms.shared_noise import add_own_noise_, on_grid_, split_among
from tacit.privacy import checks
from tacit.privacy.events import NonPrivate
from tacit.privacy.randomness import Stream

# The part of a record's clip norm by which the sum over all other records may move when it comes or
# goes, because they are then added up in another order or in batches of other lengths.  A float64
# sum of n vectors of norm C is right to n^2 2^-53 C, so this is enough for 10^6 records in a step.
RESERVE = 2.0**-10


@dataclass(frozen=True)
class DpSgd(Method):
    """`dp-sgd`; `population` is K, so that q K records are expected in a step."""

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

    def steps_of_epoch(self, units: int) -> int:
        return math.ceil(1 / self.sampler.sampling_prob)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        for step in steps:
            cohort = self.sampler.draw(units, streams("cohort", step))
            yield split_among(self.workers, cohort, streams("workers", step))

    def share(self, work: Work) -> Vector:
        return work.gradients.clipped_sum(work.batches[work.worker], self.own_clip_norm)

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        stddev = self.clip_norm * self.noise_multiplier
        return add_own_noise_(share, stddev, worker, self.workers, stream)

    def update(self, step: int, total: Vector) -> Vector:
        total = on_grid_(total, self.clip_norm, self.population, self.noise_multiplier)
        total /= self.sampler.sampling_prob * self.population
        return total

    def charges(self, steps: range) -> list[Charge]:
        if self.noise_multiplier == 0:
            return [(steps.start, NonPrivate("DP-SGD without noise"))]
        event = self.sampler.event(self.noise_multiplier)
        return [(step, event) for step in steps]
