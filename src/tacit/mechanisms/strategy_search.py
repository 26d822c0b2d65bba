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
Objective = Literal["mean", "largest"]
"""The running sum's error, as a root mean square over the rounds, or in its noisiest round."""

KINDS = ("blt", "banded", "square-root", "tree")

_STEPS = 400  # of the search; most need less than a hundred
_SHORT = 1024  # terms up to which the plain product is faster than that by Fourier transforms
_SLOWEST = (0.5, 0.9, 0.99)  # shares of the rounds that the longest buffer is first tried with


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
        buffers: of `blt`.
        objective: which error.
    """
    checks.whole("rounds", rounds, at_least=1)
    bands = min(bands or participation.separation, rounds)
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

    def pull_back(gradient: Vector) -> Vector:
        gradient = gradient[:bands]
        return np.cumsum(gradient) if falls else gradient

    start = SquareRootToeplitz(bands).coefficients(rounds)[:bands]
    if falls:
        start = start - np.append(start[1:], 0.0)
    bounds = [(0.0, None)] * bands if falls else [(1e-9, None), *[(None, None)] * (bands - 1)]
    cost = _Cost(rounds, participation, objective)
    found = _descend(cost, start, column_of, pull_back, bounds)
    band = column_of(found)[:bands]
    return BandedToeplitz(tuple((band / band[0]).tolist()))


def _best_buffers(
    rounds: int, participation: Participation, buffers: int, objective: Objective
) -> BufferedToeplitz:
    """The best of several starts: decays between 0 and 1, scales that sum to less than 1.

    Both are searched for without bounds, as the logistic function of a number and as shares of a
    whole (softmax) in which something is always left over.
    """
    checks.whole("buffers", buffers, at_least=1)
    powers = np.arange(max(rounds - 1, 0), dtype=np.float64)
    cost = _Cost(rounds, participation, objective)

    def parts(values: Vector) -> tuple[Vector, Vector]:
        decays = 1 / (1 + np.exp(-values[:buffers]))
        shares = np.exp(values[buffers:] - max(0.0, values[buffers:].max()))
        rest = math.exp(-max(0.0, values[buffers:].max()))
        return decays, shares / (shares.sum() + rest)

    def column_of(values: Vector) -> Vector:
        decays, scales = parts(values)
        return np.concatenate([[1.0], scales @ decays[:, None] ** powers])

    def pull_back_at(values: Vector, gradient: Vector) -> Vector:
        decays, scales = parts(values)
        table = decays[:, None] ** powers
        by_scale = table @ gradient[1:]
        slopes = np.zeros_like(table)
        slopes[:, 1:] = table[:, :-1] * powers[1:]
        by_decay = scales * (slopes @ gradient[1:])
        return np.concatenate(
            [by_decay * decays * (1 - decays), scales * (by_scale - scales @ by_scale)]
        )

    tried = []
    for share in _SLOWEST:
        start = _first_buffers(max(2.0, share * rounds), buffers)
        found = _descend(cost, start, column_of, pull_back_at, None)
        tried.append((cost(column_of(found))[0], found))
    decays, scales = parts(min(tried, key=lambda one: one[0])[1])
    decays = np.clip(decays, 1e-12, 1 - 1e-12)
    order = np.argsort(-decays)
    scales = scales[order] / max(1.0, math.fsum(scales))
    return BufferedToeplitz(tuple(decays[order].tolist()), tuple(scales.tolist()))


def _first_buffers(longest: float, buffers: int) -> Vector:
    """Memories that grow from one round to the longest by equal factors, half of the noise."""
    lengths = np.geomspace(longest, 1.5, buffers) if buffers > 1 else np.array([longest])
    weights = lengths**-0.5
    scales = 0.5 * weights / weights.sum()
    logits = np.log(lengths - 1)  # the decay is 1 - 1 / length
    return np.concatenate([logits, np.log(scales / (1 - scales.sum()))])


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
    pull_back: Callable[..., Vector],
    bounds: list[tuple[float | None, float | None]] | None,
) -> Vector:
    """Where the cost is least, by L-BFGS."""

    def value_and_gradient(values: Vector) -> tuple[float, Vector]:
        value, gradient = cost(column_of(values))
        back = pull_back(gradient) if bounds is not None else pull_back(values, gradient)
        return value, back

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
