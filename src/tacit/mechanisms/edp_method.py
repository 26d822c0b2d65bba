"""Both forms of eDP-SGD as methods of training; their mathematics is in `edp_sgd`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from tacit.mechanisms.edp_accounting import effective_multiplier
from tacit.mechanisms.edp_sgd import CalibratedEdpSgd, PaperEdpSgd
from tacit.mechanisms.method import Charge, Indices, Method, Streams, Vector, Work, reshuffled
from tacit.mechanisms.shared_noise import add_own_noise_
from tacit.privacy.events import Adjacency, Event, Gaussian, NonPrivate
from tacit.privacy.randomness import Stream

FROM_RECORDS = "eDP-SGD as printed takes its scaling factors from people's records"


@dataclass(frozen=True)
class EdpMethod(Method):
    """`edp-sgd`: calibrated, Poisson-sampled, with noise that falls from step to step.

    The algorithm's N counts micro-batches.  In the paper each worker has one.  With more of them
    than workers, the noise (which N does not change) is set against a sum of more clipped vectors,
    and each takes a backward pass: N is a dial from eDP-SGD's speed towards DP-SGD's use of noise.
    A worker clips each of its micro-batches, and adds its part of the noise to their sum.
    """

    algorithm: CalibratedEdpSgd
    steps: int  # of the whole training: the groups of its noise levels are formed over all of it
    workers: int
    name: ClassVar[str] = CalibratedEdpSgd.name

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= self.algorithm.workers:
            raise ValueError(
                f"micro_batches must be at least the number of workers, {self.workers}, got"
                f" {self.algorithm.workers}"
            )

    @property
    def adds_noise(self) -> bool:
        return self.algorithm.noise_multiplier > 0

    def steps_of_epoch(self, units: int) -> int:
        return math.ceil(1 / self.algorithm.sampler.sampling_prob)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        for step in steps:
            cohort = self.algorithm.sampler.draw(units, streams("cohort", step))
            yield self.algorithm.micro_batches(cohort, streams("workers", step))

    def share(self, work: Work) -> Vector:
        algorithm = self.algorithm
        grid = algorithm.grid(work.step)
        gradients = (
            work.gradients.mean(mine)
            for mine in work.batches[work.worker :: self.workers]
            if len(mine)
        )
        clipped = (algorithm.clipped_on(grid, gradient) for gradient in gradients)
        total = next(clipped, None)  # most often the only one
        if total is None:
            total = algorithm.clipped_on(grid, np.zeros(algorithm.scaling.size, np.float32))
        for one in clipped:
            total += one
        return total

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        grid = self.algorithm.grid(step)
        if grid is None:
            return share
        stddev = self.algorithm.noise_stddev(step) / grid.step
        return add_own_noise_(share, stddev, worker, self.workers, stream)

    def update(self, step: int, total: Vector) -> Vector:
        return self.algorithm.update_of(total, step)

    def charges(self, steps: range) -> list[Charge]:
        return [(step, self._events[step]) for step in steps]

    @cached_property
    def _events(self) -> list[Event]:
        return self.algorithm.releases(self.steps).events()


@dataclass(frozen=True)
class PaperMethod(Method):
    """`edp-sgd-paper`: Algorithm 1 as printed, over reshuffled epochs.

    An epoch's last batch is left out if it has not a record for each worker.
    """

    algorithm: PaperEdpSgd
    batch_size: int
    units: int
    name: ClassVar[str] = PaperEdpSgd.name

    @property
    def workers(self) -> int:  # type: ignore[override]
        return self.algorithm.workers

    @property
    def adds_noise(self) -> bool:
        return self.algorithm.noise_multiplier > 0

    def steps_of_epoch(self, units: int) -> int:
        whole, left = divmod(units, self.batch_size)
        return whole + (left >= self.workers)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        in_epoch = self.steps_of_epoch(units)
        for batch in reshuffled(steps, units, self.batch_size, in_epoch, streams):
            yield self.algorithm.micro_batches(batch)

    def share(self, work: Work) -> Vector:
        return self.algorithm.share(work.gradients.mean(work.batches[work.worker]))

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        return self.algorithm.noise_(share, self._epoch(step), stream)

    def update(self, step: int, total: Vector) -> Vector:
        return self.algorithm.update_of(total, self._epoch(step))

    def charges(self, steps: range) -> list[Charge]:
        """One release for a whole epoch, in which a record is in one step only."""
        if not self.algorithm.scaling.is_public:
            return [(steps.start, NonPrivate(FROM_RECORDS))]
        z = self.algorithm.noise_multiplier_at(self._epoch(steps.start))
        if z == 0:
            return [(steps.start, NonPrivate("eDP-SGD without noise"))]
        m = effective_multiplier(z, self.workers, self.algorithm.scaling.largest)
        return [(steps.start, Gaussian(m, Adjacency.REPLACE))]

    def _epoch(self, step: int) -> int:
        return step // self.steps_of_epoch(self.units)
