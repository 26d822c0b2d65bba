"""The best strategy of a kind for a number of rounds and a participation.

What is minimised is the error of the running sums, as a root mean square over the rounds or at its
largest, times the sensitivity to the worst pattern of one user: the error at a noise multiplier of
1.  Both factors are functions of the coefficients of a Toeplitz strategy with a known gradient, so
a quasi-Newton method finds the least in some hundred steps (Denisov et al. 2022, arXiv 2202.08312;
McMahan et al. 2024, arXiv 2408.08868, for buffers).

Neither matters to the guarantee: whatever is found, its sensitivity is worked out by `strategies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import fftconvolve

from tacit.mechanisms.participation import Participation
from tacit.mechanisms.strategies import (
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
    Strategy,
    pattern_sum,
)
from tacit.privacy import checks

Vector = NDArray[np.float64]
Bounds = list[tuple[float | None, float | None]]
Objective = Literal["mean", "largest"]
"""The running sum's error, as a root mean square over the rounds, or in its noisiest round."""

KINDS = ("blt", "banded", "square-root", "tree")

_STEPS = 400  # of the search; most need less than a hundred
_SHORT = 1024  # terms up to which the plain product is faster than that by Fourier transforms
_SLOWEST = (0.01, 0.1, 0.5)  # shares of the rounds that the first buffer is tried with
_DECAYS = 1 - np.geomspace(1e-4, 0.98, 60)  # that a further buffer is tried with
_SEEN = 1e-6  # relative to the error: nobody sees less


def best(
    kind: str,
    rounds: int,
    participation: Participation,
    *,
    bands: int | None = None,
    buffers: int = 4,
    objective: Objective = "mean",
) -> Strategy:
    """The strategy of this kind with the least error at the same cost.

    Args:
        kind: one of `KINDS`.
        rounds: of the horizon; fewer cost less, and more cost more than was optimised for.
        participation: how often, and how close together, one user may take part.
        bands: of `banded` and `square-root`; by default as many as the separation, so that no two
            turns of a user share noise.
        buffers: of `blt`, at most.
        objective: which error.
    """
    checks.whole("rounds", rounds, at_least=1)
    if bands is None:
        bands = participation.separation
    bands = min(checks.whole("bands", bands, at_least=1), rounds)
    match kind:
        case "blt":
            return _best_buffers(rounds, participation, buffers, objective)
        case "banded":
            return _best_bands(rounds, participation, bands, objective)
        case "square-root":
            return SquareRootToeplitz(bands)
        case "tree":
            return BinaryTree()
    raise ValueError(f"noise must be correlated by one of {', '.join(KINDS)}, got {kind!r}")


def _best_bands(
    rounds: int, participation: Participation, bands: int, objective: Objective
) -> BandedToeplitz:
    """Any coefficients where turns share no noise; else those that never rise, from 1 to 0.

    Falling coefficients are sums of steps, c_j = sum of d_i >= 0 over i >= j.
    """
    falls = bands > participation.separation

    def column_of(values: Vector) -> Vector:
        band = np.cumsum(values[::-1])[::-1] if falls else values
        return np.concatenate([band, np.zeros(rounds - bands)])

    def pull_back(values: Vector, gradient: Vector) -> Vector:
        gradient = gradient[:bands]
        return np.cumsum(gradient) if falls else gradient

    start = SquareRootToeplitz(bands).coefficients(rounds)[:bands]
    if falls:
        start = start - np.append(start[1:], 0.0)
    free: Bounds = [(1e-9, None), *[(None, None)] * (bands - 1)]
    bounds: Bounds = [(0.0, None)] * bands if falls else free
    cost = _Cost(rounds, participation, objective)
    found = _descend(cost, start, column_of, pull_back, bounds)
    band = column_of(found)[:bands]
    return BandedToeplitz(tuple((band / band[0]).tolist()))


def _best_buffers(
    rounds: int, participation: Participation, buffers: int, objective: Objective
) -> BufferedToeplitz:
    """Decays between 0 and 1, scales that sum to less than 1: one buffer, and more while they help.

    Both are searched for without bounds, as the logistic function of a number and as shares of a
    whole (softmax) in which something is always left over.  A new buffer gets the decay at which
    the cost falls most, and all are searched for again.  Without any such decay there are fewer
    buffers than were asked for: each takes as much memory as the model, and none would help.
    """
    checks.whole("buffers", buffers, at_least=1)
    powers = np.arange(max(rounds - 1, 0), dtype=np.float64)
    cost = _Cost(rounds, participation, objective)

    def parts(values: Vector) -> tuple[Vector, Vector]:
        logits, scales = np.split(values, 2)
        largest = max(0.0, scales.max())
        shares = np.exp(scales - largest)
        return 1 / (1 + np.exp(-logits)), shares / (shares.sum() + math.exp(-largest))

    def column_of(values: Vector) -> Vector:
        decays, scales = parts(values)
        return np.concatenate([[1.0], scales @ decays[:, None] ** powers])

    def pull_back(values: Vector, gradient: Vector) -> Vector:
        decays, scales = parts(values)
        table = decays[:, None] ** powers
        by_scale = table @ gradient[1:]
        slopes = np.zeros_like(table)
        slopes[:, 1:] = table[:, :-1] * powers[1:]
        by_decay = scales * (slopes @ gradient[1:])
        return np.concatenate(
            [by_decay * decays * (1 - decays), scales * (by_scale - scales @ by_scale)]
        )

    def improved(start: Vector) -> tuple[float, Vector]:
        found = _descend(cost, start, column_of, pull_back, None)
        return cost(column_of(found))[0], found

    starts = [_one_buffer(max(2.0, share * rounds)) for share in _SLOWEST]
    least, found = min(map(improved, starts), key=lambda one: one[0])
    for _ in range(buffers - 1):
        _, gradient = cost(column_of(found))
        later, wider = improved(_with_buffer(found, _steepest(gradient[1:], powers)))
        if not later < least - _SEEN:
            break
        least, found = later, wider
    decays, scales = parts(found)
    decays = np.clip(decays, 1e-12, 1 - 1e-12)
    order = np.argsort(-decays)
    scales = scales[order] / max(1.0, math.fsum(scales))
    return BufferedToeplitz(tuple(decays[order].tolist()), tuple(scales.tolist()))


def _one_buffer(length: float) -> Vector:
    """The logits of a decay of 1 - 1 / length, and of a scale of one half."""
    return np.array([math.log(length - 1), 0.0])


def _with_buffer(values: Vector, decay: float) -> Vector:
    """The same buffers and a faint one."""
    logits, scales = np.split(values, 2)
    return np.concatenate([logits, [math.log(decay / (1 - decay))], scales, [math.log(0.01)]])


def _steepest(gradient: Vector, powers: Vector) -> float:
    """The decay of which a buffer would lower the cost most: by sum_j gradient_j decay^j each."""
    slopes = [float(gradient @ decay**powers) for decay in _DECAYS]
    return float(_DECAYS[int(np.argmin(slopes))])


class _Cost:
    """log(error x sensitivity) of the coefficients c, and its gradient; scaling c changes nothing.

    The noise of running sum t has variance sum_(j <= t) s_j^2 with s the series 1 / ((1 - x) c(x)).
    So the error's square is sum_j w_j s_j^2 with w_j the share of running sums that s_j is in, or 1
    for the last and noisiest one.  A change of c_i moves s by -x^i s(x) / c(x).
    """

    def __init__(self, rounds: int, participation: Participation, objective: Objective) -> None:
        j = np.arange(rounds)
        self._shares = (rounds - j) / rounds if objective == "mean" else np.ones(rounds)
        self._separation = participation.separation
        self._times = participation.times(rounds)

    def __call__(self, column: Vector) -> tuple[float, Vector]:
        inverse = _inverse(column)
        series = np.cumsum(inverse)
        weighted = self._shares * series
        error = float(weighted @ series)
        moved = _product(series, inverse)
        by_error = -_product(weighted[::-1], moved)[::-1] / error
        pattern = pattern_sum(column, self._separation, self._times)
        squared = float(pattern @ pattern)
        by_pattern = pattern_sum(pattern[::-1], self._separation, self._times)[::-1] / squared
        return 0.5 * math.log(error) + 0.5 * math.log(squared), by_error + by_pattern


def _descend(
    cost: _Cost,
    start: Vector,
    column_of: Callable[[Vector], Vector],
    pull_back: Callable[[Vector, Vector], Vector],
    bounds: Bounds | None,
) -> Vector:
    """Where the cost is least, by L-BFGS."""

    def value_and_gradient(values: Vector) -> tuple[float, Vector]:
        value, gradient = cost(column_of(values))
        return value, pull_back(values, gradient)

    found = minimize(
        value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _STEPS, "ftol": 1e-12, "gtol": 1e-9},
    )
    result: Vector = found.x
    return result


def _product(left: Vector, right: Vector) -> Vector:
    """The product of two power series, as far as the first is known."""
    multiply = np.convolve if len(left) <= _SHORT else fftconvolve
    product: Vector = multiply(left, right)[: len(left)]
    return product


def _inverse(series: Vector) -> Vector:
    """1 / series, by Newton's method: every step doubles the number of terms that are right."""
    inverse = np.array([1 / series[0]])
    while len(inverse) < len(series):
        size = min(2 * len(inverse), len(series))
        longer = np.zeros(size)
        longer[: len(inverse)] = inverse
        residual = -_product(series[:size], longer)
        residual[0] += 2
        inverse = _product(longer, residual)
    return inverse
