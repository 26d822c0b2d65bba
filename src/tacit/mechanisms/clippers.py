"""Bounding what one user can contribute (McMahan et al. 2018, section 2, equation 1).

Guarantee: the exact L2 norm of a clipped update is at most the clip norm S, not merely up to
round-off, and stays so when the update is later multiplied by a weight of at most 1 in float64 and
truncated to a grid.  The norm is summed in float64, where the relative error for n values is below
n * 2^-52, and is raised by that and a few units more before it is compared with S.  (In float32,
a sum over a million values can come out low enough to exceed S visibly.)

An update with a NaN or an infinity anywhere becomes zero as a whole.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.parts import Part
from tacit.privacy import checks

Vector = NDArray[np.float64]

# Beyond these a float64 sum of squares would lose the bound above to underflow or overflow.
SMALLEST_CLIP_NORM = 1e-30
LARGEST_CLIP_NORM = 1e30

# Units of 2^-52 by which a norm is raised beyond its own error: they pay for the rounding of the
# factor, of the scaled values, of their product with a weight, and of S = sqrt(sum S_j^2).
_SPARE_UNITS = 8


@dataclass(frozen=True)
class Clipped:
    """A bounded update.  `values` may be the caller's own array: it is not to be written to.

    `within` has one bit per norm, in the order of the clipper's `norms`: was it within the bound
    before clipping?
    """

    values: Vector
    within: tuple[bool, ...]


@dataclass(frozen=True)
class Clipper(Part, abc.ABC):
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

    @property
    def total_norm(self) -> float:
        """S, the bound on the norm of the whole update."""
        return total_norm(self.norms)


@dataclass(frozen=True)
class FlatClip(Clipper):
    """The whole update at once: update * min(1, S / |update|)."""

    clip_norm: float
    kind: ClassVar[str] = "flat-clip"

    def __post_init__(self) -> None:
        check_clip_norm("clip_norm", self.clip_norm)

    @property
    def norms(self) -> tuple[float, ...]:
        return (self.clip_norm,)

    def with_norms(self, norms: tuple[float, ...]) -> Self:
        [norm] = norms
        return replace(self, clip_norm=norm)

    def clip(self, update: NDArray[Any], layers: Sequence[int] | None = None) -> Clipped:
        return _clip_blocks(update, (update.size,), self.norms)


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
        if layers is None or len(layers) != len(self.clip_norms):
            given = "none" if layers is None else len(layers)
            raise ValueError(
                f"layers must have the sizes of {len(self.clip_norms)} layers, one for each of"
                f" clip_norms, got {given}"
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
        values = _flat_vector(update)
        if not np.isfinite(values).all():
            values = np.zeros_like(values)
        return Clipped(values, ())


def clip_(values: Vector, clip_norm: float) -> Vector:
    """What `FlatClip` does, in the vector's place: for large ones that nobody else holds."""
    bound = _norm_bound(values)
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


def check_clip_norm(name: str, value: float) -> float:
    """A norm between the smallest and the largest that the guarantee of this module covers."""
    if not SMALLEST_CLIP_NORM <= value <= LARGEST_CLIP_NORM:
        raise ValueError(
            f"{name} must be between {SMALLEST_CLIP_NORM:g} and {LARGEST_CLIP_NORM:g}, got {value}"
        )
    return value


def _flat_vector(update: NDArray[Any]) -> Vector:
    """The update in float64: the one copy that a float32 update needs."""
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
    bounds = [_norm_bound(values[block]) for block in blocks]
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
        bound = _norm_bound(block)
    block *= clip_norm / bound


def _norm_bound(block: Vector) -> float:
    """An upper bound on the exact norm."""
    return norm_bound(square_of(block), block.size)


def square_of(block: Vector) -> float:
    """The sum of the squares.

    `einsum` rather than a BLAS product: its order of summation does not depend on threads, and a
    resumed round has to reproduce every bit.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at what is not finite
        return float(np.einsum("i,i->", block, block))


def norm_bound(square: float, size: int) -> float:
    """What the exact norm of so many values is below, by the computed sum of their squares."""
    return math.sqrt(square) * (1 + (size + _SPARE_UNITS) * 2.0**-52)
