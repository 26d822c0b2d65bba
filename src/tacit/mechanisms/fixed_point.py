"""Sums that do not depend on their order: updates, weights and clip bits as int64 on public grids.

Integer addition is associative, so a cohort summed by any number of processes in any order gives
the same bits.  All steps are powers of two, derived from public constants alone.

Guarantee: quantising rounds toward zero, coordinate by coordinate, so that no norm grows; and the
quantised weight is the one that multiplies the update *and* enters the denominator.  A sum over
the whole declared population stays below 2^62, so it cannot wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.summing import add_truncated_
from tacit.privacy import checks
from tacit.privacy.stream import LARGEST_NORMAL

Integers = NDArray[np.int64]

# Bits after the binary point of a weight in [0, 1], and of a clip bit of +-1/2.
_WEIGHT_BITS = 30
CLIP_BITS = 4
WHOLE_WEIGHT = 1 << _WEIGHT_BITS
HALF_CLIP_BIT = 1 << (CLIP_BITS - 1)

# Weights of a larger population could overflow.
LARGEST_POPULATION = (1 << 32) - 1

# The largest standard deviation of noise, in steps.  A float64 normal value has a resolution of
# about 2^-53, so on a grid of this many steps a cell's probability is right to about 2^-24.  The
# square of that, over millions of coordinates, is what the accounting of an ideal Gaussian leaves
# out of a round's divergence: below 1e-8.  Sixteen times finer it would be 256 times more.
LARGEST_NOISE = 2.0**28

_LARGEST_SUM_BITS = 62
_FINEST_BITS = 36
_COARSEST_BITS = 8
_UNCLIPPED_STEP = 2.0**-32


@dataclass(frozen=True)
class IntegerGrid:
    """Multiples of `step`.  One user's coordinate has to stay below `limit` steps.

    `bounded` says that a clip ensures the limit; otherwise quantising checks it.
    """

    step: float
    limit: int
    bounded: bool

    @classmethod
    def for_clip(
        cls,
        clip_norm: float,
        population: int,
        relative_noise: float = 0.0,
        *,
        sum_bits: int = _LARGEST_SUM_BITS,
    ) -> Self:
        """2^-36 of the power of two above S; coarser for a huge population, or for the noise.

        `relative_noise` is the standard deviation of the noise in multiples of S.
        """
        checks.positive("clip_norm", clip_norm)
        bits = grid_bits(population, relative_noise, sum_bits)
        exponent = math.frexp(clip_norm)[1]  # S < 2^exponent
        return cls(math.ldexp(1.0, exponent - bits), 1 << bits, bounded=True)

    @classmethod
    def unclipped(cls, largest_cohort: int) -> Self:
        """The declared step of 2^-32 for updates that nothing bounds (non-private plans only)."""
        checks.whole("largest_cohort", largest_cohort, at_least=1)
        return cls(_UNCLIPPED_STEP, (1 << _LARGEST_SUM_BITS) // largest_cohort, bounded=False)

    @classmethod
    def for_int32(cls, clip_norm: float, vectors: int, relative_noise: float) -> Self:
        """A grid on which the sum of `vectors` clipped vectors and the noise stays below 2^31."""
        room = vectors + math.ceil(LARGEST_NORMAL * relative_noise)
        return cls.for_clip(clip_norm, room, sum_bits=31)

    def quantise(
        self,
        values: NDArray[np.float64],
        weight: int = WHOLE_WEIGHT,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """trunc(w * values / step) for a quantised weight w, as `weight` units of 2^-30."""
        factor = self._factor(weight)
        if not self.bounded and values.size:
            self._check(float(np.abs(values).max()), factor)
        units = np.empty(values.shape, np.int64) if out is None else out
        np.multiply(values, factor, out=units, casting="unsafe")  # a cast truncates
        return units

    def add_(
        self, total: Integers, values: NDArray[Any], scale: float, weight: int = WHOLE_WEIGHT
    ) -> None:
        """total += quantise(scale * values, weight), in one pass."""
        assert self.bounded, "without a bound the sum could wrap: quantise checks for that"
        add_truncated_(total, values, scale, self._factor(weight))

    def _factor(self, weight: int) -> float:
        """w / step, which is exact: a weight of at most 31 bits over a power of two."""
        assert 0 <= weight <= WHOLE_WEIGHT, weight
        return math.ldexp(weight, -_WEIGHT_BITS) / self.step

    def _check(self, peak: float, factor: float) -> None:
        """Raise `ValueError` if a coordinate is so large that the sum of a cohort could wrap."""
        if not peak * factor < self.limit:
            raise ValueError(
                f"an unclipped update has a coordinate of {peak:g}, which must be below"
                f" {self.limit * self.step:g} so that a cohort's integer sum cannot overflow; clip"
                " the updates (FlatClip) or lower the learning rate"
            )


def grid_bits(
    population: int, relative_noise: float = 0.0, sum_bits: int = _LARGEST_SUM_BITS
) -> int:
    """How many bits finer than the clip norm the grid is.

    The most, up to 36, for which K * 2^bits stays below 2^sum_bits and the noise within
    `LARGEST_NOISE`.  Raises if fewer than 8 are left.
    """
    checks.whole("population", population, at_least=1)
    checks.non_negative("relative_noise", relative_noise)
    bits = min(_FINEST_BITS, sum_bits - population.bit_length())
    if bits < _COARSEST_BITS:
        raise ValueError(
            f"population must be below 2^{sum_bits - _COARSEST_BITS} for an integer sum of"
            f" at least {_COARSEST_BITS} bits, got {population}"
        )
    if not relative_noise * 2**_COARSEST_BITS <= LARGEST_NOISE:
        raise ValueError(
            f"noise_multiplier must keep the noise below {LARGEST_NOISE / 2**_COARSEST_BITS:.3g}"
            f" clip norms, beyond which nothing is learned, got a noise of {relative_noise:.3g}"
        )
    if relative_noise > 0:
        if not LARGEST_NOISE / relative_noise < math.inf:
            raise ValueError(
                "noise_multiplier must be large enough to compute with, got a noise of"
                f" {relative_noise:.3g} clip norms"
            )
        bits = min(bits, math.floor(math.log2(LARGEST_NOISE / relative_noise)))
    return bits


@dataclass
class Contribution:
    """What one user adds to a round's sum, or the sum of many users: private until released.

    `update` is in steps of the round's grid, `weight` in units of 2^-30, `bits` in units of 2^-4.
    Adding is exact, so that any order and any partition give the same sum.
    """

    update: Integers
    weight: int
    bits: Integers

    @classmethod
    def zero(cls, size: int, bits: int = 0) -> Self:
        """The sum over an empty cohort, which every other sum starts from."""
        return cls(np.zeros(size, np.int64), 0, np.zeros(bits, np.int64))

    def __iadd__(self, other: Contribution) -> Self:
        """Add another; other sizes are refused, to which NumPy would stretch a vector of one."""
        sizes, other_sizes = ((c.update.shape, c.bits.shape) for c in (self, other))
        if sizes != other_sizes:
            raise ValueError(
                f"contributions must have the same sizes of update and bits, {sizes}, got"
                f" {other_sizes}"
            )
        self.update += other.update
        self.weight += other.weight
        self.bits += other.bits
        return self
