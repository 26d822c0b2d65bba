"""Privacy profiles: the exact hockey-stick divergence delta(epsilon) of one release.

For a dominating pair (P, Q) with privacy loss L = log(P/Q),

    delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon).

Every profile here is a closed form in the normal distribution function, evaluated for a whole
grid of epsilons at once.  Terms are arranged so that what is small stays accurate: with a
sampling probability q, delta is of order q, and is never formed as a difference of two numbers
of order 1.

Sections refer to Koskela et al. 2020 ("Computing tight differential privacy guarantees using FFT")
and Doroshenko et al. 2022 ("Connect the dots"); the pairs are those of Zhu et al. 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from tacit.privacy.events import (
    Event,
    Gaussian,
    PoissonGaussian,
    PureDP,
    TruncatedPoissonGaussian,
)

Array = NDArray[np.float64]

# Above this epsilon, e^epsilon - 1 and e^epsilon are handled in log space.
_LARGE = 1.0

# A coin whose probability is at most so many times the mass that may be cut off anyway is not worth
# a wider range.  `privacy.pld` cuts 1e-7 of delta, so such coins take at most 30% of delta.
_RARE = 3e6


class Profile(Protocol):
    """One direction of one release's dominating pair (P, Q).

    A pair dominates a release if its delta is at least the release's at every epsilon, whatever
    the data; compositions of dominating pairs then dominate compositions of releases (Zhu et al.
    2022, theorem 10).
    """

    def delta(self, epsilons: Array) -> Array:
        """delta at each epsilon, in [0, 1] and non-increasing."""
        ...

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        """Bounds on the loss; each tail beyond them has at most about `tail_mass` under P.

        A grid covers this range only.  What lies above it is counted as an infinite loss, so a
        range that is too narrow makes a bound worse, and never wrong.
        """
        ...

    @property
    def scale(self) -> float:
        """The order of magnitude of the loss, which a grid must resolve."""
        ...


@dataclass(frozen=True)
class _SampledPair:
    """A standard deviation z, and a user who joins with probability q and moves the mean by 1."""

    sampling_prob: float
    noise: float

    @property
    def scale(self) -> float:
        q, z = self.sampling_prob, self.noise
        return min(q * math.sqrt(math.expm1(min(z**-2, 50.0))), 1 / z)

    def _log_ratio(self, x: float) -> float:
        """log(mixture density / base density) at x."""
        q, z = self.sampling_prob, self.noise
        exponent = (2 * x - 1) / (2 * z * z)
        if exponent > _LARGE:
            return math.log(q) + exponent + math.log1p((1 - q) / q * math.exp(-exponent))
        change = q * math.expm1(exponent)
        if change <= -1:  # q is 1, where the ratio is e^exponent, and too small for 1 + change
            return exponent
        return math.log1p(change)

    def _where_ratio_is(self, losses: Array) -> Array:
        """The x at which `_log_ratio` equals each loss; -inf below its infimum log(1 - q)."""
        q, z = self.sampling_prob, self.noise
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.log1p(np.expm1(np.minimum(losses, _LARGE)) / q)
        large = losses > _LARGE
        if large.any():
            high = losses[large]
            exponent[large] = high + np.log1p(-(1 - q) * np.exp(-high)) - math.log(q)
        return np.where(np.isnan(exponent), -np.inf, z * z * exponent + 0.5)

    def _x_range(self, tail_mass: float) -> tuple[float, float]:
        """The x beyond which the base's lower and the mixture's upper tail weigh `tail_mass`."""
        q, z = self.sampling_prob, self.noise
        log_tail = math.log(tail_mass)
        log_stay = math.log1p(-q) if q < 1 else -math.inf

        def upper(x: float) -> float:
            joined = math.log(q) + log_ndtr((1 - x) / z)
            return float(np.logaddexp(joined, log_stay + log_ndtr(-x / z))) - log_tail

        low = brentq(lambda x: float(log_ndtr(x / z)) - log_tail, -60 * z, 0.0)
        return float(low), float(brentq(upper, -60 * z, 60 * z + 1))


@dataclass(frozen=True)
class Remove(_SampledPair):
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2): a user is taken away."""

    def delta(self, epsilons: Array) -> Array:
        q, z = self.sampling_prob, self.noise
        x = self._where_ratio_is(epsilons)
        base, shifted = ndtr(-x / z), ndtr((1 - x) / z)
        delta = q * (shifted - base) - np.expm1(np.minimum(epsilons, _LARGE)) * base
        large = epsilons > _LARGE
        if large.any():
            joined = q * shifted[large] + (1 - q) * base[large]
            delta[large] = joined - np.exp(epsilons[large] + log_ndtr(-x[large] / z))
        return np.minimum.accumulate(np.clip(delta, 0.0, 1.0))

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        low, high = self._x_range(tail_mass)
        return self._log_ratio(low), self._log_ratio(high)


@dataclass(frozen=True)
class _Add(_SampledPair):
    """P = N(0, z^2) against Q = (1-q) N(0, z^2) + q N(1, z^2): a user is added."""

    def delta(self, epsilons: Array) -> Array:
        q, z = self.sampling_prob, self.noise
        x = self._where_ratio_is(-epsilons)
        base, shifted = ndtr(x / z), ndtr((x - 1) / z)
        # The loss never exceeds -log(1-q), and base is 0 beyond it.
        bounded = np.minimum(epsilons, -math.log1p(-q) if q < 1 else 700.0)
        delta = np.exp(bounded) * q * (base - shifted) - np.expm1(bounded) * base
        return np.minimum.accumulate(np.clip(delta, 0.0, 1.0))

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        low, high = self._x_range(tail_mass)
        return -self._log_ratio(high), -self._log_ratio(low)


@dataclass(frozen=True)
class _Replace(_SampledPair):
    """P = (1-q) N(0, z^2) + q N(1, z^2) against the same with N(-1, z^2); symmetric."""

    @property
    def scale(self) -> float:
        return 2 * super().scale

    def delta(self, epsilons: Array) -> Array:
        q, z = self.sampling_prob, self.noise
        # With y = e^{x/z^2} and c = e^{-1/(2 z^2)} the loss is epsilon where
        # qc y^2 - (1-q)(e^epsilon - 1) y - qc e^epsilon = 0; the positive root, in log space.
        log_c = math.log(q) - 1 / (2 * z * z)
        half = np.asarray(epsilons) / 2
        with np.errstate(divide="ignore"):
            # b / (2 qc e^{epsilon/2}) = (1-q) sinh(epsilon/2) / (qc)
            ratio = (1 - q) * np.sinh(np.clip(half, -300, 300)) * math.exp(min(-log_c, 650.0))
        x = z * z * (half + np.arcsinh(ratio))
        up, down = ndtr((1 - x) / z), ndtr((-1 - x) / z)
        lower = (1 - q) * ndtr(-x / z) + q * down
        small = q * (up - down) - np.expm1(np.minimum(epsilons, _LARGE)) * lower
        with np.errstate(divide="ignore", over="ignore"):
            large = q * up + (1 - q) * ndtr(-x / z) - np.exp(epsilons + np.log(lower))
        delta = np.where(epsilons > _LARGE, np.nan_to_num(large), small)
        return np.minimum.accumulate(np.clip(delta, 0.0, 1.0))

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        _, high = self._x_range(tail_mass)
        bound = self._log_ratio(high) - self._log_ratio(-high)
        return -bound, bound


@dataclass(frozen=True)
class _Mixture:
    """With a public coin of probability `weight` the first pair, otherwise the second."""

    weight: float
    first: Profile
    second: Profile

    @property
    def scale(self) -> float:
        w = self.weight
        return math.sqrt(w * self.first.scale**2 + (1 - w) * self.second.scale**2)

    def delta(self, epsilons: Array) -> Array:
        w = self.weight
        return w * self.first.delta(epsilons) + (1 - w) * self.second.delta(epsilons)

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        low, high = self.second.loss_range(tail_mass)
        if self.weight <= _RARE * tail_mass:
            return low, high  # what the first has beyond them then counts as an infinite loss
        other_low, other_high = self.first.loss_range(min(tail_mass / self.weight, 0.4))
        return min(low, other_low), max(high, other_high)


@dataclass(frozen=True)
class _RandomizedResponse:
    """The pair that dominates every epsilon-DP release."""

    epsilon: float

    @property
    def scale(self) -> float:
        return self.epsilon

    def delta(self, epsilons: Array) -> Array:
        bound = self.epsilon
        heads = 1 / (1 + math.exp(-bound))
        inside = -heads * np.expm1(np.minimum(epsilons - bound, 0.0))
        # Below -epsilon both outcomes count.
        return np.where(epsilons < -bound, -np.expm1(np.minimum(epsilons, 0.0)), inside)

    def loss_range(self, tail_mass: float) -> tuple[float, float]:
        del tail_mass
        return -self.epsilon, self.epsilon


def profiles_of(event: Event) -> tuple[Profile, ...]:
    """Both directions of an event's dominating pair, or one where it is symmetric."""
    match event:
        case Gaussian(noise_multiplier=z):
            return (Remove(1.0, z),)
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z):
            return (Remove(q, z),) if q == 1 else (Remove(q, z), _Add(q, z))
        case TruncatedPoissonGaussian():
            return _truncated(event)
        case PureDP(epsilon=epsilon):
            return (_RandomizedResponse(epsilon),)
    raise ValueError(f"no privacy profile is known for {event!r}")


def _truncated(event: TruncatedPoissonGaussian) -> tuple[Profile, ...]:
    """Truncated Poisson sampling, as dp-accounting bounds it (Chua et al. 2025).

    Conditioned on a cut, a user's arrival pushes another user out, so the pair is that of a
    replacement; otherwise it is that of Poisson sampling.
    """
    size, q, cap = event.population, event.sampling_prob, event.max_cohort
    plain = profiles_of(PoissonGaussian(q, event.noise_multiplier))
    cut_given_joined = float(binom.sf(cap - 1, size - 1, q))
    if cut_given_joined == 0.0:
        return plain
    kept_and_cut = float(binom.sf(cap, size, q)) * cap / size
    joined_given_cut = min(kept_and_cut / cut_given_joined, 1.0)
    if joined_given_cut == 0.0:
        return plain
    pushed = _Replace(joined_given_cut, event.noise_multiplier / 2)
    return tuple(_Mixture(cut_given_joined, pushed, direction) for direction in plain)
