"""The step of eDP-SGD: gradients per worker in, an update out (Dupuy et al. 2021, Algorithm 1).

Each of N workers has one micro-batch and its mean gradient.  The gradient's layers are divided by
factors alpha_k, the whole is clipped to C, and the layers are multiplied by alpha_k again; noise is
added by each worker, and the N shares are averaged.  There are two variants:

- `PaperEdpSgd` ("edp-sgd-paper") is Algorithm 1 as printed: y/N with y ~ N(0, (C z_t)^2) is added
  by each worker after rescaling, records come in reshuffled epochs, and alpha_k is taken from the
  first gradient.
- `CalibratedEdpSgd` ("edp-sgd", the default) gives the noise that the paper means to give:
  N(0, (C z_t)^2) on the sum of all clipped vectors, in the *scaled* space; alpha_k is public;
  records are drawn by Poisson sampling and pick their workers independently.

Guarantee (calibrated): one record moves the sum of the clipped vectors by at most 2C, so the noise
is z_t / 2 times the sensitivity; `mechanisms.edp_accounting` proves the event.  It needs a worker's
gradient to be a function of its own micro-batch, the released model, public constants and its own
stream.  It is about the update: what is released is the sum of integers on a public grid (clipped
vectors, rounded toward zero so that no norm grows, and rounded noise), times public numbers.  A
single worker's share is not protected and must not be shown to anybody.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clippers import FlatClip, Vector, clip_, norm_bound, square_of
from tacit.mechanisms.decay import NoDecay, NoiseDecay
from tacit.mechanisms.edp_accounting import DecayingReleases, PaperFigures, paper_figures
from tacit.mechanisms.fixed_point import Grid
from tacit.mechanisms.layer_scaling import LayerScaling, check_whole
from tacit.mechanisms.samplers import PoissonSampler
from tacit.mechanisms.shared_noise import on_grid_, split_among
from tacit.privacy.randomness import Stream

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _EdpSgd(abc.ABC):
    """What both variants share.  `noise_multiplier` is z_0, in units of the clip norm C."""

    workers: int
    clip_norm: float
    noise_multiplier: float
    scaling: LayerScaling
    decay: NoiseDecay = field(default_factory=NoDecay)

    def __post_init__(self) -> None:
        check_whole("workers", self.workers)
        FlatClip(self.clip_norm)
        if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(
                "noise_multiplier must be a finite number of at least 0,"
                f" got {self.noise_multiplier}"
            )

    def noise_multiplier_at(self, time: float) -> float:
        """z_t = z_0 d(t)."""
        return self.noise_multiplier * self.decay.factor(time)

    def clipped(self, gradient: NDArray[Any]) -> Vector:
        """min(1, C / |g|) g for the scaled gradient g: of norm at most C, and ours to change."""
        return clip_(self.scaling.scaled(gradient), self.clip_norm)


@dataclass(frozen=True)
class CalibratedEdpSgd(_EdpSgd):
    """`edp-sgd`: noise of C z_t in all on the sum of clipped vectors, before rescaling."""

    sampler: PoissonSampler = field(kw_only=True)
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
        """How far one record, added or removed, can move the sum of the clipped vectors."""
        return 2 * self.clip_norm

    def noise_stddev(self, step: int) -> float:
        """Of the noise on the sum, from all workers together: C z_t."""
        return self.clip_norm * self.noise_multiplier_at(self._time(step))

    def grid(self, step: int) -> Grid | None:
        """That of a step's shares, on which their sum is exact; without noise there is none."""
        z = self.noise_multiplier_at(self._time(step))
        return Grid.for_int32(self.clip_norm, self.workers, z) if z > 0 else None

    def clipped_on(self, grid: Grid | None, gradient: NDArray[Any]) -> NDArray[Any]:
        """What `clipped` gives, rounded toward zero to units of the grid, as int32."""
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

    def micro_batches(self, cohort: Indices, stream: Stream) -> list[Indices]:
        """Each worker's records of the cohort that `sampler` drew; a worker may have none.

        Every record picks its worker by itself, so that one that leaves moves no other.
        """
        return split_among(self.workers, cohort, stream)

    def update_of(self, total: Vector, step: int) -> Vector:
        """The sum of the shares, rescaled, over the public number of workers."""
        grid = self.grid(step)
        unit = 1.0 if grid is None else grid.step
        update = np.empty(total.size, np.float64 if grid is None else np.float32)
        return self.scaling.rescale_to(update, total, unit / self.workers)

    def releases(self, steps: int) -> DecayingReleases:
        """What the first `steps` steps cost."""
        stddevs = [self.noise_stddev(step) for step in range(steps)]
        return DecayingReleases(
            self.sampler, tuple(stddev / self.sensitivity for stddev in stddevs)
        )

    def _time(self, step: int) -> float:
        """An epoch of decay is 1/q steps."""
        return step * self.sampler.sampling_prob


@dataclass(frozen=True)
class PaperEdpSgd(_EdpSgd):
    """`edp-sgd-paper`: Algorithm 1 as printed.  Not for privacy: see `figures`."""

    name: ClassVar[str] = "edp-sgd-paper"

    def micro_batches(self, batch: Indices) -> list[Indices]:
        """The batch in one contiguous piece per worker, of sizes that differ by at most 1."""
        if len(batch) < self.workers:
            raise ValueError(
                f"a batch must have at least one record for each of {self.workers} workers,"
                f" got {len(batch)}"
            )
        return np.array_split(batch, self.workers)

    def share(self, gradient: NDArray[Any]) -> Vector:
        """A worker's clipped and rescaled gradient."""
        return self.scaling.rescale_(self.clipped(gradient))

    def noise_(self, share: Vector, epoch: int, stream: Stream) -> Vector:
        """Plus y/N, in its place."""
        stddev = self.clip_norm * self.noise_multiplier_at(epoch)
        if stddev > 0:
            noise = stream.normal(share.size)
            noise *= stddev / self.workers
            share += noise
        return share

    def update_of(self, total: Vector, epoch: int) -> Vector:
        """The mean of the workers' shares, whose sum is first rounded to a public grid.

        Each share has a norm of at most C max alpha_k, and the sum has noise of C z_t / sqrt(N).
        Rounding comes after the noise, so it changes no guarantee; without it the low-order bits of
        a float could betray what was summed.
        """
        bound = self.clip_norm * self.scaling.largest
        relative_noise = self.noise_multiplier_at(epoch) / (
            math.sqrt(self.workers) * self.scaling.largest
        )
        total = on_grid_(total, bound, self.workers, relative_noise)
        total /= self.workers
        return total

    def figures(self, epochs: int, delta: float) -> PaperFigures:
        """The actual epsilon, and beside it two others, each labelled with what it is."""
        return paper_figures(
            [self.noise_multiplier_at(epoch) for epoch in range(epochs)],
            workers=self.workers,
            largest_scale=self.scaling.largest,
            scaling_is_public=self.scaling.is_public,
            delta=delta,
        )
