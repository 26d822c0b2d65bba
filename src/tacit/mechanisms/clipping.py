"""Bounding what one user can contribute, and how the bound changes over the rounds.

Clipping (McMahan et al. 2018, section 2, equation 1) projects an update to norm S.

Guarantee: the exact L2 norm of a clipped update is at most the clip norm S, not merely up to
round-off, and stays so when the update is later multiplied by a weight of at most 1 in float64 and
truncated to a grid.  The norm is summed in float64, where the relative error for n values is below
n * 2^-52, and is raised by that and a few units more before it is compared with S.  (In float32,
a sum over a million values can come out low enough to exceed S visibly.)

An update with a NaN or an infinity anywhere becomes zero as a whole.

S may follow a public schedule.  The noise is z times the sensitivity, so lowering S lowers sigma
with it at constant z: every round costs the same (section 3, "Adjusting noise and clipping").

Or S follows a quantile of the users' norms, learned privately (Andrew, Thakkar, McMahan and
Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021).  Each user of a
cohort adds a bit to its update: was the norm within the bound?  The noisy fraction of them moves
the bound geometrically towards the target quantile.

Guarantee: bits of +-1/2 with noise of standard deviation sigma_b, and an update with noise z_u
times its sensitivity, are together one Gaussian release with multiplier z, where under
add/remove-one

    z^-2 = z_u^-2 + m (2 sigma_b)^-2        (m bits: one, or one for each layer)

so the update gets a little more noise than without the bits, and the round costs the same.  The
next bound is computed from released values only.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.parts import PlanPart
from tacit.mechanisms.summing import square_of
from tacit.privacy import checks
from tacit.privacy.events import Adjacency
from tacit.privacy.records import OpenUnit, Positive, Probability, at_least

Vector = NDArray[np.float64]

# Beyond these a float64 sum of squares would lose the bound above to underflow or overflow.
_SMALLEST_CLIP_NORM = 1e-30
LARGEST_CLIP_NORM = 1e30

# Units of 2^-52 by which a norm is raised beyond its own error: they pay for the rounding of the
# factor, of the scaled values, of their product with a weight, and of S = sqrt(sum S_j^2).
_SPARE_UNITS = 8


def check_clip_norm(name: str, value: float) -> float:
    """The value, if it is within the range that the guarantee of this module covers; else raise."""
    if not _SMALLEST_CLIP_NORM <= value <= LARGEST_CLIP_NORM:
        raise ValueError(
            f"{name} must be between {_SMALLEST_CLIP_NORM:g} and {LARGEST_CLIP_NORM:g}, got {value}"
        )
    return value


ClipNorm = Annotated[float, check_clip_norm]


@dataclass(frozen=True)
class Clipped:
    """A bounded update.  `values` may be the caller's own array: it is not to be written to.

    `within` has one bit per norm, in the order of the clipper's `norms`: was it within the bound
    before clipping?
    """

    values: Vector
    within: tuple[bool, ...]


@dataclass(frozen=True)
class Clipper(PlanPart, abc.ABC):
    """Bounds an update."""

    @property
    @abc.abstractmethod
    def norms(self) -> tuple[float, ...]:
        """The bounds: one, or one per layer."""

    @abc.abstractmethod
    def with_norms(self, norms: tuple[float, ...]) -> Self:
        """The same way of clipping with other bounds, as schedules need it."""

    @abc.abstractmethod
    def clip(self, update: NDArray[Any], layers: Sequence[int] | None = None) -> Clipped:
        """The update projected to within the bounds; `layers` are the sizes of its layers."""

    def scale(self, update: NDArray[Any]) -> float | None:
        """The factor that `clip` multiplies the whole update by; None if there is not just one."""
        return None

    @property
    def total_norm(self) -> float:
        """S, the bound on the norm of the whole update."""
        return total_norm(self.norms)


@dataclass(frozen=True)
class FlatClip(Clipper):
    """The whole update at once: update * min(1, S / |update|)."""

    clip_norm: ClipNorm
    kind: ClassVar[str] = "flat-clip"

    @property
    def norms(self) -> tuple[float, ...]:
        return (self.clip_norm,)

    def with_norms(self, norms: tuple[float, ...]) -> Self:
        [norm] = norms
        return replace(self, clip_norm=norm)

    def clip(self, update: NDArray[Any], layers: Sequence[int] | None = None) -> Clipped:
        """The update times min(1, S / |update|); `layers` has no part in it."""
        return _clip_blocks(update, (update.size,), self.norms)

    def scale(self, update: NDArray[Any]) -> float | None:
        """min(1, S / |update|), or None if squares of the update are not finite."""
        bound = norm_bound(square_of(update), update.size)
        if not math.isfinite(bound):
            return None
        return 1.0 if bound <= self.clip_norm else self.clip_norm / bound


@dataclass(frozen=True)
class PerLayerClip(Clipper):
    """Each layer j by itself to S_j, so that the whole has norm at most S = sqrt(sum S_j^2)."""

    clip_norms: tuple[float, ...]
    kind: ClassVar[str] = "per-layer-clip"

    def __post_init__(self) -> None:
        if not self.clip_norms:
            raise ValueError("clip_norms must have one norm per layer, got none; or use FlatClip")
        for layer, norm in enumerate(self.clip_norms):
            check_clip_norm(f"clip_norms[{layer}]", norm)

    @classmethod
    def even(cls, clip_norm: float, layers: int) -> Self:
        """S_j = S / sqrt(m), the choice of the paper."""
        checks.whole("layers", layers, at_least=1)
        return cls((checks.positive("clip_norm", clip_norm) / math.sqrt(layers),) * layers)

    @property
    def norms(self) -> tuple[float, ...]:
        return self.clip_norms

    def with_norms(self, norms: tuple[float, ...]) -> Self:
        return replace(self, clip_norms=norms)

    def clip(self, update: NDArray[Any], layers: Sequence[int] | None = None) -> Clipped:
        """Each layer j of the update times min(1, S_j / |layer|)."""
        if layers is None or len(layers) != len(self.clip_norms):
            raise ValueError(
                f"layers must have the sizes of {len(self.clip_norms)} layers, one for each of"
                f" clip_norms, got {'none' if layers is None else len(layers)}"
            )
        return _clip_blocks(update, layers, self.norms)


@dataclass(frozen=True)
class NoClip(Clipper):
    """Any finite update as it is.  Not for privacy."""

    kind: ClassVar[str] = "no-clip"

    @property
    def norms(self) -> tuple[float, ...]:
        return ()

    def with_norms(self, norms: tuple[float, ...]) -> Self:
        return self

    def clip(self, update: NDArray[Any], layers: Sequence[int] | None = None) -> Clipped:
        """The update itself, or zeros if it is not finite."""
        values = _flat_vector(update)
        if not np.isfinite(values).all():
            values = np.zeros_like(values)
        return Clipped(values, ())


def clip_(values: Vector, clip_norm: float) -> Vector:
    """Clip the vector to `clip_norm` as `FlatClip` does, but in place: for large vectors."""
    bound = norm_bound(square_of(values), values.size)
    if not math.isfinite(bound) and not np.isfinite(values).all():
        values.fill(0.0)
    elif not bound <= clip_norm:
        _scale(values, bound, clip_norm)
    return values


def total_norm(norms: Sequence[float]) -> float:
    """S = sqrt(sum S_j^2); without any bound it is infinite."""
    if len(norms) == 1:
        return float(norms[0])
    return math.hypot(*norms) if norms else math.inf


def _flat_vector(update: NDArray[Any]) -> Vector:
    """The update in float64, which copies a float32 update and no other."""
    if update.ndim != 1 or update.dtype not in (np.float32, np.float64):
        raise ValueError(
            "update must be one flat vector of float32 or float64, got"
            f" {update.ndim} dimensions of {update.dtype}"
        )
    return update.astype(np.float64, copy=False)


def _clip_blocks(update: NDArray[Any], sizes: Sequence[int], norms: Sequence[float]) -> Clipped:
    """Each block of the update, in order, to its norm."""
    values = _flat_vector(update)
    if values.size != sum(sizes):
        raise ValueError(
            f"layers must add up to the update's size, {values.size}, got {sum(sizes)}"
        )
    blocks = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    bounds = [norm_bound(square_of(values[block]), values[block].size) for block in blocks]
    if not all(map(math.isfinite, bounds)) and not np.isfinite(values).all():
        return Clipped(np.zeros_like(values), (True,) * len(norms))
    within = tuple(bound <= norm for bound, norm in zip(bounds, norms, strict=True))
    if not all(within):
        values = update.copy() if values is update else values  # the caller's array stays as it is
        for block, bound, norm in zip(blocks, bounds, norms, strict=True):
            if not bound <= norm:
                _scale(values[block], bound, norm)
    return Clipped(values, within)


def _scale(block: Vector, bound: float, clip_norm: float) -> None:
    """Bring a block, whose norm is at most `bound`, to within `clip_norm`, in place."""
    if not math.isfinite(bound):
        # The squares overflow.  Only the direction matters, so a power of two can be taken out.
        peak = float(np.abs(block).max())
        np.ldexp(block, -math.frexp(peak)[1], out=block)
        bound = norm_bound(square_of(block), block.size)
    block *= clip_norm / bound


def norm_bound(square: float, size: int) -> float:
    """An upper bound on the exact norm of `size` values, from the computed sum of their squares."""
    return math.sqrt(square) * (1 + (size + _SPARE_UNITS) * 2.0**-52)


# Schedules: S as a public function of the round.


@dataclass(frozen=True)
class ClipState:
    """The clip norms of a round: public, being derived from constants and earlier releases."""

    norms: tuple[float, ...]
    round: int = 0

    @property
    def total_norm(self) -> float:
        """S of this round."""
        return total_norm(self.norms)


@dataclass(frozen=True)
class ClipSchedule(PlanPart, abc.ABC):
    """S as a function of the round."""

    @abc.abstractmethod
    def norm(self, initial: float, round: int) -> float:
        """S in `round`, counted from 0, when the plan's clipper starts with `initial`."""

    def state(self, initial: tuple[float, ...], round: int) -> ClipState:
        """The norms of `round`.  Those of several layers keep their proportions."""
        checks.whole("round", round)
        start = total_norm(initial)
        now = self.norm(start, round)
        return ClipState(
            initial if now == start else tuple(norm * (now / start) for norm in initial), round
        )


@dataclass(frozen=True)
class ConstantClip(ClipSchedule):
    """The clipper's own S in every round."""

    kind: ClassVar[str] = "constant"

    def norm(self, initial: float, round: int) -> float:
        """S, whatever the round."""
        return initial


@dataclass(frozen=True)
class GeometricClip(ClipSchedule):
    """S times `factor` each round, but not below `final_norm`."""

    factor: Probability
    final_norm: ClipNorm
    kind: ClassVar[str] = "geometric"

    def norm(self, initial: float, round: int) -> float:
        """max(S factor^round, final_norm), or S itself if it is below that from the start."""
        return max(initial * self.factor**round, min(initial, self.final_norm))


@dataclass(frozen=True)
class LinearClip(ClipSchedule):
    """In equal steps to `final_norm`, which holds from `final_round` on."""

    final_round: Annotated[int, at_least(1)]
    final_norm: ClipNorm
    kind: ClassVar[str] = "linear"

    def norm(self, initial: float, round: int) -> float:
        """S (1 - t) + final_norm t with t = min(round / final_round, 1)."""
        done = min(round / self.final_round, 1.0)
        return initial * (1 - done) + self.final_norm * done


# Adaptive clipping: S from noisy bits of the users.


@dataclass(frozen=True)
class QuantileClip(PlanPart):
    """S <- S exp(-learning_rate (b - target_quantile)), b the noisy fraction of norms within S.

    The first S is that of the plan's clipper.  Without `bit_noise_stddev` the plan takes a
    twentieth of the expected cohort, as the paper does.
    """

    target_quantile: OpenUnit = 0.5
    learning_rate: Positive = 0.2
    bit_noise_stddev: Positive | None = None
    kind: ClassVar[str] = "quantile-clip"

    def noise_stddev(self, expected_cohort: float) -> float:
        """sigma_b, on the sum of the bits."""
        return self.bit_noise_stddev or expected_cohort / 20

    def next_norms(
        self, norms: Sequence[float], bit_sums: Iterable[float], expected_cohort: float
    ) -> tuple[float, ...]:
        """The next bounds from the noisy sums of +-1/2 bits, over the public expected cohort."""
        fractions = np.array([*bit_sums]) / expected_cohort + 0.5
        # The noise can be large; neither exp nor the clipper's range may overflow from it.
        exponents = np.clip(-self.learning_rate * (fractions - self.target_quantile), -50.0, 50.0)
        following = [n * math.exp(e) for n, e in zip(norms, exponents, strict=True)]
        return tuple(np.clip(following, _SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM).tolist())


def split_noise_multiplier(noise_multiplier: float, bit_noise_stddev: float, bits: int) -> float:
    """z_u = (z^-2 - m (2 sigma_b)^-2)^(-1/2)."""
    z, sigma_b = noise_multiplier, bit_noise_stddev
    least = z * math.sqrt(bits) / 2
    if not sigma_b > least:
        raise ValueError(
            f"bit_noise_stddev must be above {least:.6g} (noise_multiplier * sqrt(number of norms)"
            " / 2), so that the clip bits leave room for the update in a round of noise_multiplier"
            f" {z:g}, got {sigma_b:g}; give a larger bit_noise_stddev"
        )
    return z / math.sqrt(1 - (least / sigma_b) ** 2)


def joint_noise_multiplier(z: float, bit_noise_stddev: float, bits: int, by: Adjacency) -> float:
    """Update and bits as one Gaussian release: (z_u^-2 + m (sigma_b / sensitivity)^-2)^(-1/2).

    `z` is the update's multiplier under this adjacency.  One user moves a sum of +-1/2 bits by 1/2
    if its bit appears or disappears, and by 1 if it changes sign.
    """
    if not bits:
        return z
    bit_sensitivity = 0.5 if by is Adjacency.ADD_REMOVE else 1.0
    return 1 / math.hypot(1 / z, *[bit_sensitivity / bit_noise_stddev] * bits)
