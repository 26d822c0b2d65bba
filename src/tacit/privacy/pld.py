"""Epsilon and delta of a composition from its privacy loss distribution, tight at any sampling.

Plain Gaussians merge into one before anything else, since their losses are normal and add up, and a
composition of nothing else has a closed form (Balle and Wang 2018).  For the rest, each release's
loss is put on a grid by connecting the dots of its profile (Doroshenko et al. 2022), which can only
overstate delta.  The distribution of the summed loss is a product of Fourier transforms (Koskela et
al. 2020).  A plain transform has an absolute error of about 1e-16 per round, which at a million
rounds and delta = 1e-10 is larger than the answer: there dp-accounting 0.6.0 understates epsilon by
up to 1.3% on some grids.  So each distribution is first tilted, p(l) e^{theta l}, with the theta
that centres the sum on the losses near epsilon: the error is then relative to delta itself.

Guarantee: `epsilon` and `delta` return upper bounds.  The grid is pessimistic; mass beyond its ends
counts as an infinite loss; mass that the transform's window wraps from below only adds to higher
losses, and what it loses above is bounded by Chernoff and added; so is an allowance for the
transform's own round-off; that of the profiles, of relative order 1e-9, is covered by solving for a
delta smaller by 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr

from tacit.privacy.events import Composition, Event, Gaussian, PoissonGaussian, PureDP
from tacit.privacy.profiles import Array, Profile, Remove, profiles_of

# Grid points per unit of a single round's loss scale.  The error falls with the square.
DEFAULT_RESOLUTION = 20.0
PRECISE_RESOLUTION = 150.0

_MAX_POINTS = 1 << 24  # of a grid: about a gigabyte in all while composing
_ROUND_OFF = 1e-6  # of delta, kept back for the round-off of the profiles
_INFINITE_SHARE = 1e-7  # of delta, that the tails of all rounds together may weigh
_OUTSIDE = 1e-12  # of the tilted mass, that may lie on either side of the window
_COARSER = 15  # times the step: the grid that a tilt and a window are chosen by,
_COARSE_POINTS = 200  # which must have about this many points
_NOISE = 1e-15  # of the largest probability and per round: the transform's round-off
_LEAST_DELTA = 1e-250  # below it, floats end
_LARGEST_STEP = 30.0  # a grid this coarse belongs to an epsilon in the millions: no bound is given

_Rounds = Sequence[tuple[Profile, int]]


def epsilon(
    composition: Composition, delta: float, resolution: float = DEFAULT_RESOLUTION
) -> float:
    """An upper bound on the epsilon of a composition at `delta`, by `resolution`'s grid.

    The composition must have events that `profiles_of` knows, none of them free.
    """
    deviation, sampled = _split(composition)
    if not sampled.counts:
        return gaussian_epsilon(deviation, delta)
    if _is_hopeless(sampled):
        return math.inf
    directions = _directions(deviation, sampled)
    return max(epsilon_of_rounds(rounds, delta, resolution) for rounds in directions)


def delta(
    composition: Composition, epsilon: float, resolution: float = DEFAULT_RESOLUTION
) -> float:
    """An upper bound on the delta of a composition at `epsilon`, by `resolution`'s grid."""
    deviation, sampled = _split(composition)
    if not sampled.counts:
        return _gaussian_delta(deviation, epsilon)
    if _is_hopeless(sampled):
        return 1.0
    directions = _directions(deviation, sampled)
    return max(_delta_of_rounds(rounds, epsilon, resolution) for rounds in directions)


def _split(composition: Composition) -> tuple[float, Composition]:
    """All plain Gaussians as one (the standard deviation of its loss), and everything else."""
    square = 0.0
    others: list[tuple[Event, int]] = []
    for event, count in composition.counts:
        match event:
            case Gaussian(noise_multiplier=m):
                square += count / m**2
            case PoissonGaussian(sampling_prob=q, noise_multiplier=m) if q == 1:
                square += count / m**2
            case PureDP(epsilon=epsilon) if epsilon == 0:
                pass
            case _:
                others.append((event, count))
    return math.sqrt(square), Composition(tuple(others))


def _is_hopeless(sampled: Composition) -> bool:
    """Noise so small that a round's loss is of order 1/(2 z^2) > 10^5: not worth a grid."""
    return any(getattr(event, "noise_multiplier", 1.0) < 2e-3 for event, _ in sampled.counts)


def _directions(deviation: float, sampled: Composition) -> list[list[tuple[Profile, int]]]:
    """The composition with a user removed and with a user added, each as profiles with counts."""
    pairs = [(profiles_of(event), count) for event, count in sampled.counts]
    common: list[tuple[Profile, int]] = [(Remove(1.0, 1 / deviation), 1)] if deviation else []
    ways = max(len(profiles) for profiles, _ in pairs)
    return [[(p[min(way, len(p) - 1)], n) for p, n in pairs] + common for way in range(ways)]


def _gaussian_delta(deviation: float, epsilon: float) -> float:
    """The exact delta of a Gaussian whose loss has this deviation (Balle and Wang 2018)."""
    if deviation == 0:
        return 0.0
    log_upper = float(log_ndtr(deviation / 2 - epsilon / deviation))
    log_lower = epsilon + float(log_ndtr(-deviation / 2 - epsilon / deviation))
    return math.exp(log_upper) * -math.expm1(min(log_lower - log_upper, 0.0))


def gaussian_epsilon(deviation: float, delta: float) -> float:
    """The exact epsilon of such a Gaussian, rounded up in the last bits."""
    if _gaussian_delta(deviation, 0.0) <= delta:
        return 0.0
    high = deviation**2 / 2 + deviation * math.sqrt(2 * math.log(1 / delta)) + 1.0
    # delta underflows to 0 far out, so the search runs on whether it is still above the target.
    root = brentq(
        lambda e: _gaussian_delta(deviation, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-14
    )
    return float(root) * (1 + 1e-12) + 1e-12


@dataclass(frozen=True)
class _Grid:
    """A loss distribution on multiples of `step`, starting at `first`, and an infinite rest."""

    step: float
    first: int
    probs: Array
    infinite: float

    def losses(self) -> Array:
        return np.asarray((np.arange(self.probs.size) + self.first) * self.step)

    def weights(self, order: float) -> tuple[Array, float]:
        """e^{order L - peak} at each loss, and the peak, which keeps them from overflowing."""
        exponents = order * self.losses()
        peak = float(exponents[self.probs > 0].max())
        return np.exp(np.minimum(exponents - peak, 0.0)), peak  # where probs are 0 it could be more

    @cached_property
    def mean(self) -> float:
        return float(self.probs @ self.losses())

    @property
    def variance(self) -> float:
        return float(self.probs @ (self.losses() - self.mean) ** 2)


_Grids = list[tuple[_Grid, int]]


def epsilon_of_rounds(rounds: _Rounds, delta: float, resolution: float) -> float:
    """An upper bound on the epsilon of one direction of the composed rounds, at least 0."""
    step, coarse = _grids(rounds, delta, resolution)
    if not coarse:
        return math.inf
    # The order at which Chernoff's bound on epsilon is least.
    tilt = _minimise(lambda t: (_log_mgf(coarse, t) - math.log(delta)) / t)
    composed = _compose(_discretised(rounds, delta, step), tilt, coarse)
    return composed.epsilon(delta * (1 - _ROUND_OFF))


def _delta_of_rounds(rounds: _Rounds, epsilon: float, resolution: float) -> float:
    """An upper bound on the delta of one direction of the composed rounds at `epsilon`."""
    guess = 1e-6
    while True:  # the grid's tails are cut in proportion to delta, so a small delta is refined
        step, coarse = _grids(rounds, guess, resolution)
        if not coarse:
            return 1.0
        tilt = _minimise(lambda t: _log_mgf(coarse, t) - t * epsilon)  # noqa: B023
        composed = _compose(_discretised(rounds, guess, step), tilt, coarse)
        bound = composed.delta(epsilon)
        if bound >= 1e-2 * guess or guess < _LEAST_DELTA:
            return min(bound * (1 + _ROUND_OFF), 1.0)
        guess = max(bound, 1e-6 * guess)


def _grids(rounds: _Rounds, delta: float, resolution: float) -> tuple[float, _Grids]:
    """The step of the grid, and coarser distributions that are enough to choose a tilt by.

    The step is a fraction of a typical round's loss, unless that needs too many points.  Where even
    those would be hopelessly coarse there are no grids.
    """
    total = sum(count for _, count in rounds)
    square = sum(count * profile.scale**2 for profile, count in rounds)
    ranges = [profile.loss_range(_INFINITE_SHARE * delta / total) for profile, _ in rounds]
    widths = [high - low for low, high in ranges]
    # The sum spreads over about this many standard deviations of its own.
    spread = 4 * math.sqrt(square * math.log(1 / delta)) + square
    step = math.sqrt(square / total) / resolution
    step = max(step, (max(widths) + spread) / (_MAX_POINTS / 2))
    if not step < _LARGEST_STEP:
        return step, []
    coarser = max(1, min(_COARSER, math.floor(min(widths) / (_COARSE_POINTS * step))))
    return step, _discretised(rounds, delta, coarser * step)


def _discretised(rounds: _Rounds, delta: float, step: float) -> _Grids:
    tail = _INFINITE_SHARE * delta / sum(count for _, count in rounds)
    return [(_connect_the_dots(profile, step, tail), count) for profile, count in rounds]


def _connect_the_dots(profile: Profile, step: float, tail_mass: float) -> _Grid:
    """The least pessimistic distribution on the grid (Doroshenko et al. 2022, Algorithm 1).

    Its delta equals the profile's at every grid point and connects them linearly in e^epsilon.
    """
    low, high = profile.loss_range(tail_mass)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    deltas = profile.delta(np.arange(first, last + 1, dtype=np.float64) * step)
    slopes = np.diff(deltas) / math.expm1(step)
    probs = np.empty_like(deltas)
    probs[0] = 1 - deltas[0] + slopes[0]
    probs[1:-1] = slopes[1:] - math.exp(step) * slopes[:-1]
    probs[-1] = -math.exp(step) * slopes[-1]
    return _Grid(step, first, np.maximum(probs, 0.0), float(deltas[-1]))


def _log_mgf(grids: _Grids, order: float) -> float:
    """log E[e^{order L}] of the sum, finite losses only."""
    total = 0.0
    for grid, count in grids:
        weights, peak = grid.weights(order)
        total += count * (peak + math.log(float(grid.probs @ weights)))
    return total


def _minimise(objective: Callable[[float], float]) -> float:
    """The positive argument, over many orders of magnitude, at which `objective` is least."""
    minimum = minimize_scalar(
        lambda log_t: objective(math.exp(log_t)),
        bounds=(math.log(1e-4), math.log(1e9)),
        method="bounded",
        options={"xatol": 1e-2},
    )
    return math.exp(float(minimum.x))


def _tilted(grids: _Grids, tilt: float) -> tuple[_Grids, float]:
    """Each distribution times e^{tilt L}, normalised, and the log of all normalisers together."""
    tilted, log_scale = [], 0.0
    for grid, count in grids:
        weights, peak = grid.weights(tilt)
        probs = grid.probs * weights
        mass = float(probs.sum())
        log_scale += count * (peak + math.log(mass))
        tilted.append((_Grid(grid.step, grid.first, probs / mass, grid.infinite), count))
    return tilted, log_scale


def _compose(grids: _Grids, tilt: float, coarse: _Grids) -> _Tilted:
    """The tilted distribution of the sum of all rounds' losses, in a window around its mean."""
    step = grids[0][0].step
    tilted, log_scale = _tilted(grids, tilt)
    low, high = _window(tilted, _tilted(coarse, tilt)[0])
    start = math.floor(low / step)
    points = max(math.ceil(high / step) - start + 2, *(grid.probs.size for grid, _ in grids))
    size = next_fast_len(points, real=True)

    log_abs, angle = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    offset = 0
    for grid, count in tilted:
        # Centring each round keeps the phases small, and their product by `count` accurate.
        centre = round(grid.mean / step)
        wrapped = np.zeros(size)
        wrapped[(np.arange(grid.probs.size) + (grid.first - centre)) % size] = grid.probs
        transform = rfft(wrapped)
        with np.errstate(divide="ignore"):
            log_abs += count * np.log(np.abs(transform))
        angle += count * np.angle(transform)
        offset += count * centre
    summed = irfft(np.exp(log_abs) * np.exp(1j * angle), size)
    # The transform's own noise is added rather than ignored, so that even a tilt that puts the
    # answer where the noise is could only overstate it.
    noise = _NOISE * sum(count for _, count in grids) * float(summed.max())
    summed = np.roll(np.maximum(summed, 0.0) + noise, offset - start)

    infinite = -math.expm1(sum(n * math.log1p(-grid.infinite) for grid, n in grids))
    lost = _OUTSIDE * math.exp(min(log_scale - tilt * (start + size) * step, 0.0))
    return _Tilted(step, start, summed, infinite + lost, tilt, log_scale)


def _window(tilted: _Grids, coarse: _Grids) -> tuple[float, float]:
    """Losses outside which the sum has a mass of at most `_OUTSIDE` each way, by Chernoff.

    The coarse grids find the best order; the fine ones then make the bound hold.
    """
    mean = sum(count * grid.mean for grid, count in coarse)
    deviation = math.sqrt(sum(count * grid.variance for grid, count in coarse))
    ladder = [2.0**power / max(deviation, coarse[0][0].step) for power in range(-9, 7)]

    def bound(grids: _Grids, order: float) -> float:
        """A loss beyond which (above for a positive order, below otherwise) there is little."""
        return (_log_mgf(grids, order) - math.log(_OUTSIDE)) / order

    above = min(ladder, key=lambda order: bound(coarse, order))
    below = min(ladder, key=lambda order: -bound(coarse, -order))
    return min(bound(tilted, -below), mean), max(bound(tilted, above), mean)


@dataclass(frozen=True)
class _Tilted:
    """The sum's distribution: p(l) = probs(l) e^{log_scale - tilt l}."""

    step: float
    start: int
    probs: Array
    infinite: float
    tilt: float
    log_scale: float

    def _relevant(self, delta: float) -> tuple[Array, Array]:
        """Losses of at least 0 and their untilted probabilities, without what cannot matter."""
        losses = (np.arange(self.probs.size, dtype=np.float64) + self.start) * self.step
        log_factor = np.minimum(self.log_scale - self.tilt * losses, 700.0)
        probs = np.minimum(self.probs * np.exp(log_factor), 1.0)
        first = min(max(-self.start, 0), probs.size - 1)
        # Together the dropped probabilities are far below what the round-off allowance covers.
        kept = np.flatnonzero(probs > 1e-3 * _ROUND_OFF * delta / probs.size)
        last = max(int(kept[-1]) if kept.size else 0, first)
        return losses[first : last + 1], probs[first : last + 1]

    def delta(self, epsilon: float) -> float:
        losses, probs = self._relevant(_LEAST_DELTA)
        return min(self.infinite + _hockey_stick(losses, probs, epsilon), 1.0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon of at least 0 with delta(epsilon) <= delta."""
        if self.infinite >= delta:
            return math.inf
        losses, probs = self._relevant(delta)
        finite = delta - self.infinite
        low, high = 0, losses.size - 1
        if _hockey_stick(losses, probs, losses[0]) <= finite:
            return max(float(losses[0]), 0.0)
        while high - low > 1:  # delta is above the target at low, and at most the target at high
            middle = (low + high) // 2
            if _hockey_stick(losses[middle:], probs[middle:], losses[middle]) > finite:
                low = middle
            else:
                high = middle
        # Between two grid points delta = sum of probs - e^epsilon (sum of probs e^-loss).
        losses, probs = losses[high:], probs[high:]
        excess = float(probs.sum()) - finite
        weight = float(np.exp(losses[0] - losses) @ probs)
        solved = losses[0] + math.log(excess / weight) if excess > 0 and weight > 0 else losses[0]
        return float(np.clip(solved, losses[0] - self.step, losses[0]))


def _hockey_stick(losses: Array, probs: Array, epsilon: float) -> float:
    """The sum over losses above epsilon of p (1 - e^{epsilon - loss})."""
    return float(-np.expm1(np.minimum(epsilon - losses, 0.0)) @ probs)
