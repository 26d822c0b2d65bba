"""Clipping to a quantile of the users' norms, learned privately.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
NeurIPS 2021.  Each user of a cohort adds a bit to its update: was the norm within the bound?  The
noisy fraction of them moves the bound geometrically towards the target quantile.

Guarantee: bits of +-1/2 with noise of standard deviation sigma_b, and an update with noise z_u
times its sensitivity, are together one Gaussian release with multiplier z, where under
add/remove-one

    z^-2 = z_u^-2 + m (2 sigma_b)^-2        (m bits: one, or one for each layer)

so the update gets a little more noise than without the bits, and the round costs the same.  The
next bound is computed from released values only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.mechanisms.clippers import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from tacit.mechanisms.parts import Part
from tacit.privacy import checks
from tacit.privacy.events import Adjacency


@dataclass(frozen=True)
class QuantileClip(Part):
    """S <- S exp(-learning_rate (b - target_quantile)), b the noisy fraction of norms within S.

    The first S is that of the plan's clipper.  Without `bit_noise_stddev` the plan takes a
    twentieth of the expected cohort, as the paper does.
    """

    target_quantile: float = 0.5
    learning_rate: float = 0.2
    bit_noise_stddev: float | None = None
    kind: ClassVar[str] = "quantile-clip"

    def __post_init__(self) -> None:
        checks.open_unit("target_quantile", self.target_quantile)
        checks.positive("learning_rate", self.learning_rate)
        if self.bit_noise_stddev is not None:
            checks.positive("bit_noise_stddev", self.bit_noise_stddev)

    def noise_stddev(self, expected_cohort: float) -> float:
        """sigma_b, on the sum of the bits."""
        return self.bit_noise_stddev or expected_cohort / 20

    def next_norms(
        self, norms: Sequence[float], bit_sums: Iterable[float], expected_cohort: float
    ) -> tuple[float, ...]:
        """The next bounds from the noisy sums of +-1/2 bits, over the public expected cohort."""
        fractions = [bits / expected_cohort + 0.5 for bits in bit_sums]
        return tuple(
            self._next(norm, fraction) for norm, fraction in zip(norms, fractions, strict=True)
        )

    def _next(self, norm: float, fraction: float) -> float:
        # The noise can be large; neither exp nor the clipper's range may overflow from it.
        exponent = min(max(-self.learning_rate * (fraction - self.target_quantile), -50.0), 50.0)
        return min(max(norm * math.exp(exponent), SMALLEST_CLIP_NORM), LARGEST_CLIP_NORM)


def bit_sensitivity(adjacency: Adjacency) -> float:
    """How far one user moves a sum of +-1/2 bits: its bit appears, or changes sign."""
    return 0.5 if adjacency is Adjacency.ADD_REMOVE else 1.0


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


def joint_noise_multiplier(noise_multipliers: Sequence[float]) -> float:
    """Gaussian releases about the same cohort as one: (sum of z_i^-2)^(-1/2)."""
    if len(noise_multipliers) == 1:
        return noise_multipliers[0]
    return 1 / math.hypot(*(1 / z for z in noise_multipliers))
