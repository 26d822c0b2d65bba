"""Gaussian noise on a public grid.

Guarantee: what is released is a function of (statistic + Gaussian noise of the given standard
deviation), so it is as private as that sum.  For an integer statistic, sum + round(noise) equals
round(sum + noise).  On the grid no low-order bits of a float can betray the statistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import LARGEST_NOISE, Integers
from tacit.privacy import checks
from tacit.privacy.randomness import Stream


@dataclass(frozen=True)
class GaussianNoise:
    """Noise with a standard deviation in steps of the grid."""

    stddev: float

    def __post_init__(self) -> None:
        checks.positive("noise stddev on the grid", self.stddev)
        if not self.stddev <= LARGEST_NOISE:
            raise ValueError(
                f"noise stddev on the grid must be at most {LARGEST_NOISE:.3g} steps, so that"
                f" float64 noise has the right law on it, got {self.stddev:.3g}"
            )

    def add(self, statistic: NDArray[Any], stream: Stream) -> Integers:
        """The statistic with independent noise on every coordinate, rounded to the grid."""
        noise = stream.normal(statistic.size)
        noise *= self.stddev
        if statistic.dtype == np.int64:
            return statistic + np.rint(noise, out=noise).astype(np.int64)
        noise += statistic
        return np.rint(noise, out=noise).astype(np.int64)
