"""The factors alpha_k by which eDP-SGD scales a gradient's layers before it clips the whole.

Without them, layers whose gradients are large would use up the clip norm by themselves (Dupuy et
al. 2021, section 3, "Scaling"): a flat clip to C of the gradient whose layers are divided by
alpha_k leaves each layer up to alpha_k C.  The paper takes alpha_k from the norms of the first
gradient.  If that is a gradient of private records, alpha_k tells about them, and nothing accounts
for it; so a scaling says where its factors came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import Vector
from tacit.mechanisms.parts import PlanPart
from tacit.privacy import checks

Source = Literal["architecture", "public batch", "noisy norms", "private gradients"]

# The least alpha_k, over their root mean square: a layer without a gradient must not be divided
# by 0.
_LEAST_FACTOR = 1e-3

# How many values are scaled at once: 1 MiB, so that the passes over them stay in the cache.
_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class LayerScaling(PlanPart):
    """alpha_k for each layer, the layers' sizes in their order, and where alpha_k came from."""

    factors: tuple[float, ...]
    sizes: tuple[int, ...]
    source: Source
    kind: ClassVar[str] = "layer-scaling"

    def __post_init__(self) -> None:
        if not self.factors or len(self.factors) != len(self.sizes):
            raise ValueError(
                "factors must have one number for each of the layers' sizes, got"
                f" {len(self.factors)} factors and {len(self.sizes)} sizes"
            )
        for factor in self.factors:
            checks.positive("factors", factor)
        for size in self.sizes:
            checks.whole("sizes", size, at_least=1)
        if self.source not in get_args(Source):
            raise ValueError(
                f"source must be one of {', '.join(get_args(Source))}, got {self.source!r}"
            )

    @classmethod
    def none(cls, sizes: Sequence[int]) -> Self:
        """alpha_k = 1: clipping as usual."""
        return cls((1.0,) * len(sizes), tuple(sizes), "architecture")

    @classmethod
    def by_size(cls, sizes: Sequence[int]) -> Self:
        """alpha_k in proportion to the root of a layer's size, as if all coordinates were alike."""
        mean = sum(sizes) / len(sizes)
        return cls(tuple(math.sqrt(size / mean) for size in sizes), tuple(sizes), "architecture")

    @classmethod
    def from_norms(cls, norms: NDArray[Any], sizes: Sequence[int], *, source: Source) -> Self:
        """alpha_k in proportion to the norm of each layer of some gradient; see `from_gradient`."""
        mean = math.sqrt(float(np.mean(norms**2)))
        if not (mean > 0 and math.isfinite(mean)):
            raise ValueError(
                f"the first gradient must be finite and not 0 everywhere, got a norm of {mean}"
            )
        return cls(tuple(np.maximum(norms / mean, _LEAST_FACTOR).tolist()), tuple(sizes), source)

    @classmethod
    def from_gradient(cls, gradient: NDArray[Any], sizes: Sequence[int], *, source: Source) -> Self:
        """alpha_k in proportion to the norm of each layer of a first gradient.

        The paper leaves the proportion open.  Here the root mean square of alpha_k is 1, so that
        this gradient has the same norm in the scaled space, and C keeps its meaning.
        """
        values = gradient.astype(np.float64)
        _check_size(values, sum(sizes))
        return cls.from_norms(layer_norms(values, sizes), sizes, source=source)

    @property
    def is_public(self) -> bool:
        """Whether the factors tell nothing about private records beyond what is accounted for."""
        return self.source != "private gradients"

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def largest(self) -> float:
        """max alpha_k."""
        return max(self.factors)

    def scaled(self, gradient: NDArray[Any]) -> Vector:
        """A new vector whose layers are divided by alpha_k."""
        values = np.empty(self.size)
        for piece, scaled in self.scaled_pieces(gradient):
            values[piece] = scaled
        return values

    def scaled_pieces(
        self, gradient: NDArray[Any], times: float = 1.0
    ) -> Iterator[tuple[slice, Vector]]:
        """The vector of `scaled`, times a number, in pieces; each piece overwrites the one before.

        A float64 vector of millions of values takes longer to write than to compute.
        """
        _check_size(gradient, self.size)
        memory = np.empty(min(_AT_ONCE, max(self.sizes)))
        for piece, factor in self._pieces():
            values = memory[: piece.stop - piece.start]
            values[:] = gradient[piece]
            with np.errstate(over="ignore"):  # an infinity is clipped to 0
                values *= times * (1 / factor)
            yield piece, values

    def rescale_to(self, out: NDArray[Any], values: NDArray[Any], times: float) -> NDArray[Any]:
        """Write `values` to `out`, its layers multiplied by alpha_k and all of it by `times`."""
        for piece, factor in self._pieces():
            np.copyto(out[piece], values[piece], casting="same_kind")
            out[piece] *= factor * times
        return out

    def _pieces(self) -> Iterator[tuple[slice, float]]:
        for block, factor in zip(_blocks(self.sizes), self.factors, strict=True):
            for start in range(block.start, block.stop, _AT_ONCE):
                yield slice(start, min(start + _AT_ONCE, block.stop)), factor


def layer_norms(values: Vector, sizes: Sequence[int]) -> Vector:
    """The norm of each layer."""
    return np.array([np.linalg.norm(values[block]) for block in _blocks(sizes)])


def _blocks(sizes: Sequence[int]) -> list[slice]:
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def _check_size(values: NDArray[Any], size: int) -> None:
    """Refuse anything but one flat vector of the size of all layers together."""
    if values.shape != (size,):
        raise ValueError(
            f"a gradient must be one flat vector of {size} values, as the layers' sizes say,"
            f" got the shape {values.shape}"
        )
