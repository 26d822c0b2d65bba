"""eDP-SGD: the mean gradient of a micro-batch is clipped (Dupuy et al. 2021, Algorithm 1).

Each of N micro-batches has one mean gradient.  The gradient's layers are divided by factors
alpha_k, the whole is clipped to C, and the layers are multiplied by alpha_k again; noise is added,
and the N shares are averaged.  There are two variants:

- `PaperEdpSgd` ("edp-sgd-paper") is Algorithm 1 as printed: y/N with y ~ N(0, (C z_t)^2) is added
  by each worker after rescaling, records come in reshuffled epochs, and alpha_k is taken from the
  first gradient.
- `CalibratedEdpSgd` ("edp-sgd", the default) gives the noise that the paper means to give:
  N(0, (C z_t)^2) on the sum of all clipped vectors, in the *scaled* space; alpha_k is public;
  records are drawn by Poisson sampling and pick their micro-batches independently.

Guarantee (calibrated): one record moves the sum of the clipped vectors by at most 2C, so the noise
is z_t / 2 times the sensitivity; `mechanisms.edp_accounting` proves the event.  It needs a
micro-batch's gradient to be a function of its own records, the released model, public constants
and its own stream.  It is about the update: what is released is the sum of integers on a public
grid (clipped vectors, rounded toward zero so that no norm grows, and rounded noise), times public
numbers.  A single worker's share is not protected and must never leave the training process.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import FlatClip, clip_, norm_bound
from tacit.mechanisms.edp_accounting import decaying_events, effective_multiplier
from tacit.mechanisms.fixed_point import IntegerGrid
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import (
    Charge,
    Indices,
    Method,
    PoissonMethod,
    Streams,
    Vector,
    Work,
    reshuffled,
)
from tacit.mechanisms.noise import add_own_noise_, on_grid_
from tacit.mechanisms.parts import PlanPart
from tacit.mechanisms.samplers import PoissonSampler
from tacit.mechanisms.summing import square_of
from tacit.privacy import checks
from tacit.privacy.events import Adjacency, Event, Gaussian, NonPrivate
from tacit.privacy.stream import Stream

FROM_RECORDS = "eDP-SGD as printed takes its scaling factors from people's records"


@dataclass(frozen=True)
class NoiseDecay(PlanPart):
    """How the noise falls over the training: z_t = z_0 d(t) (section 3, "Noise Decay").

        none          d(t) = 1
        linear        d(t) = 1 / (1 + tau t)
        exponential   d(t) = e^(-tau t)

    `rate` is tau.  The paper counts t in epochs.  Under Poisson sampling there are none; a record
    is then drawn once in 1/q steps on average, so t is the step times q.

    Guarantee: d is a public function of t, at most 1 and never rising, so the noise of each step is
    known beforehand and each step has an event of its own.
    """

    shape: str = "none"
    rate: float | None = None
    kind: ClassVar[str] = "noise-decay"

    def __post_init__(self) -> None:
        if self.shape not in ("none", "linear", "exponential"):
            raise ValueError(f"decay must be one of none, linear, exponential, got {self.shape!r}")
        if self.shape == "none":
            if self.rate is not None:
                raise ValueError(f"decay none has no rate, got a rate of {self.rate}")
        elif self.rate is None:
            raise ValueError(f"decay {self.shape} needs a rate, which is the paper's tau")
        else:
            checks.positive("rate", self.rate)

    def factor(self, time: float) -> float:
        """d(t), for a time in epochs, counted from 0."""
        checks.non_negative("time", time)
        tau = self.rate or 0.0
        return math.exp(-tau * time) if self.shape == "exponential" else 1 / (1 + tau * time)


@dataclass(frozen=True)
class _EdpSgd(Method, abc.ABC):
    """The parts of a step that both variants have; `noise_multiplier` is z_0, in clip norms C.

    `micro_batches` is N, by default one for each worker, as in the paper, which has 8 GPUs.  With
    more of them than workers, every `workers`-th is one worker's, one after the other.
    """

    workers: int
    clip_norm: float
    noise_multiplier: float
    scaling: LayerScaling
    decay: NoiseDecay = field(default_factory=NoiseDecay)
    micro_batches: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.whole("workers", self.workers, at_least=1)
        FlatClip(self.clip_norm)  # raises unless clipping to it is exact
        checks.non_negative("noise_multiplier", self.noise_multiplier)
        if self.vectors < self.workers:
            raise ValueError(
                f"micro_batches must be at least the number of workers, {self.workers}, got"
                f" {self.vectors}"
            )

    @property
    def vectors(self) -> int:
        """N, the number of micro-batches and so of clipped vectors in a step's sum."""
        return self.workers if self.micro_batches is None else self.micro_batches

    @property
    def adds_noise(self) -> bool:
        return self.noise_multiplier > 0

    def noise_multiplier_at(self, time: float) -> float:
        """z_t = z_0 d(t)."""
        return self.noise_multiplier * self.decay.factor(time)

    def clipped(self, gradient: NDArray[Any]) -> Vector:
        """min(1, C / |g|) g for the scaled gradient g: a new vector of norm at most C."""
        return clip_(self.scaling.scaled(gradient), self.clip_norm)


@dataclass(frozen=True)
class CalibratedEdpSgd(_EdpSgd, PoissonMethod):
    """`edp-sgd`: noise of C z_t in all on the sum of clipped vectors, before rescaling.

    With more micro-batches the noise (which N does not change) is set against a sum of more clipped
    vectors, and each takes a backward pass: N is a dial from eDP-SGD's speed towards DP-SGD's use
    of noise.

    `steps` is the length of the whole training, which `charges` needs: its noise levels are
    grouped over all of it.
    """

    sampler: PoissonSampler = field(kw_only=True)
    steps: int = field(default=0, kw_only=True)
    name: ClassVar[str] = "edp-sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sampler, PoissonSampler):
            raise ValueError(
                "sampler must be a PoissonSampler for edp-sgd, in which every record joins by"
                f" itself, got {self.sampler!r}"
            )
        if not self.scaling.is_public:
            raise ValueError(
                "scaling must be public for edp-sgd, got factors from private gradients; take them"
                " from a public batch or the architecture, or use edp-sgd-paper"
            )

    @property
    def sensitivity(self) -> float:
        """How far one record, added or removed, can move the sum of the clipped vectors: 2C."""
        return 2 * self.clip_norm

    def noise_stddev(self, step: int) -> float:
        """The standard deviation of the noise on the sum, from all workers together: C z_t."""
        return self.clip_norm * self._multiplier(step)

    def grid(self, step: int) -> IntegerGrid | None:
        """Grid for this step's int32 shares (their sum is exact), or None without noise."""
        z = self._multiplier(step)
        return IntegerGrid.for_int32(self.clip_norm, self.vectors, z) if z > 0 else None

    def clipped_on(self, grid: IntegerGrid | None, gradient: NDArray[Any]) -> NDArray[Any]:
        """The clipped gradient, rounded toward zero to units of the grid, as int32."""
        if grid is None:
            return self.clipped(gradient)
        pieces = self.scaling.scaled_pieces
        bound = norm_bound(sum(square_of(values) for _, values in pieces(gradient)), gradient.size)
        units = np.empty(gradient.size, np.int32)
        if not math.isfinite(bound):
            return grid.quantise(self.clipped(gradient), out=units)
        factor = self.clip_norm / bound if bound > self.clip_norm else 1.0
        for piece, values in pieces(gradient, factor):
            grid.quantise(values, out=units[piece])
        return units

    def multipliers(self, steps: int) -> list[float]:
        """Noise stddev / sensitivity of each of the first `steps` steps."""
        return [self.noise_stddev(step) / self.sensitivity for step in range(steps)]

    def share(self, work: Work) -> Vector:
        """The sum of the clipped vectors of this worker's micro-batches: every `workers`-th."""
        grid = self.grid(work.step)
        clipped = (
            self.clipped_on(grid, work.gradients.mean(batch))
            for batch in work.batches[work.worker :: self.workers]
            if len(batch)
        )
        total = next(clipped, None)  # most often the only one
        if total is None:
            return self.clipped_on(grid, np.zeros(self.scaling.size, np.float32))
        for vector in clipped:
            total += vector
        return total

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        """This worker's coordinates get noise of C z_t, in units of the grid."""
        grid = self.grid(step)
        if grid is None:
            return share
        stddev = self.noise_stddev(step) / grid.step
        return add_own_noise_(share, stddev, worker, self.workers, stream)

    def update(self, step: int, total: Vector) -> Vector:
        """The sum of the shares, rescaled, over the public number N."""
        grid = self.grid(step)
        unit = 1.0 if grid is None else grid.step
        update = np.empty(total.size, np.float64 if grid is None else np.float32)
        return self.scaling.rescale_to(update, total, unit / self.vectors)

    def charges(self, steps: range) -> list[Charge]:
        """Each step's own event, from noise levels that are grouped over the whole training."""
        return [(step, self._events[step]) for step in steps]

    @cached_property
    def _events(self) -> list[Event]:
        return decaying_events(self.sampler, self.multipliers(self.steps))

    def _multiplier(self, step: int) -> float:
        """z_t at a step; an epoch of decay is 1/q steps."""
        return self.noise_multiplier_at(step * self.sampler.sampling_prob)


@dataclass(frozen=True)
class PaperEdpSgd(_EdpSgd):
    """`edp-sgd-paper`: Algorithm 1 as printed, over reshuffled epochs of `units` units.

    Not for privacy: its factors alpha_k are usually taken from people's records.  An epoch's last
    batch is left out if it has fewer records than there are micro-batches.
    """

    batch_size: int = field(default=1, kw_only=True)
    units: int = field(default=1, kw_only=True)
    name: ClassVar[str] = "edp-sgd-paper"

    def steps_of_epoch(self, units: int) -> int:
        """Whole batches, and one more if the rest has a record for each micro-batch."""
        whole, rest = divmod(units, self.batch_size)
        return whole + (rest >= self.vectors)

    def draws(self, steps: range, units: int, streams: Streams) -> Iterator[list[Indices]]:
        """Batches of reshuffled epochs, each split evenly and in order."""
        in_epoch = self.steps_of_epoch(units)
        for batch in reshuffled(steps, units, self.batch_size, in_epoch, streams):
            yield self.split(batch)

    def split(self, batch: Indices) -> list[Indices]:
        """The batch in one contiguous piece per micro-batch, of sizes that differ by at most 1."""
        if len(batch) < self.vectors:
            raise ValueError(
                f"a batch must have at least one record for each of {self.vectors}"
                f" {'workers' if self.micro_batches is None else 'micro-batches'}, got {len(batch)}"
            )
        return np.array_split(batch, self.vectors)

    def share(self, work: Work) -> Vector:
        """The sum of the clipped and rescaled mean gradients of the worker's micro-batches."""
        total: Vector | None = None
        for batch in work.batches[work.worker :: self.workers]:
            clipped = self.clipped(work.gradients.mean(batch))
            rescaled = self.scaling.rescale_to(clipped, clipped, 1.0)
            total = rescaled if total is None else total + rescaled
        assert total is not None, "each worker has a micro-batch"
        return total

    def noise_(self, share: Vector, step: int, worker: int, stream: Stream) -> Vector:
        """The share plus y/N for each of the worker's micro-batches, in place."""
        stddev = self.clip_norm * self.noise_multiplier_at(self._epoch(step))
        if stddev > 0:
            own = len(range(worker, self.vectors, self.workers))
            noise = stream.normal(share.size)
            noise *= stddev * math.sqrt(own) / self.vectors  # `own` draws, which add up to one
            share += noise
        return share

    def update(self, step: int, total: Vector) -> Vector:
        """The sum of the shares over N, which is first rounded to a public grid.

        Each of N clipped vectors has a norm of at most C max alpha_k, and their sum has noise of
        C z_t / sqrt(N).
        Rounding comes after the noise, so it changes no guarantee; without it the low-order bits of
        a float could betray what was summed.
        """
        bound = self.clip_norm * self.scaling.largest
        relative_noise = self.noise_multiplier_at(self._epoch(step)) / (
            math.sqrt(self.vectors) * self.scaling.largest
        )
        total = on_grid_(total, bound, self.vectors, relative_noise)
        total /= self.vectors
        return total

    def charges(self, steps: range) -> list[Charge]:
        """One release for a whole epoch, in which a record is in one step only."""
        if not self.scaling.is_public:
            return [(steps.start, NonPrivate(FROM_RECORDS))]
        z = self.noise_multiplier_at(self._epoch(steps.start))
        if z == 0:
            return [(steps.start, NonPrivate("eDP-SGD without noise"))]
        m = effective_multiplier(z, self.vectors, self.scaling.largest)
        return [(steps.start, Gaussian(m, Adjacency.REPLACE))]

    def _epoch(self, step: int) -> int:
        """t, which the printed algorithm counts in epochs."""
        return step // self.steps_of_epoch(self.units)
