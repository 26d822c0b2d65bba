"""An estimate of epsilon from one training run (Andrew et al. 2023).

A canary client that took no part has a cosine of N(0, 1/n) with the change of the model, where n is
the number of values that directions live in (see `canary_clients`).  Those that took part have
larger ones, which are fitted by N(mean, deviation^2).  The estimate is the epsilon, at the given
delta, of telling these two normal laws apart: the larger of the two directions, in closed form.

For one release of a Gaussian mechanism with noise multiplier z and k = o(n) canaries this tends to
its true epsilon (their section 3): the release has norm sqrt(k + z^2 n) S, so that sqrt(n) times
a cosine tends to N(1/z, 1).  Elsewhere it says what an auditor of this kind sees in the final
model, which may be far below what all releases together give away.  It is an estimate and no bound:
it may lie on either side of the truth, and presumes normal laws.  Anderson and Darling's test of
the cosines is reported with it, and a failure takes the estimate's meaning away.

The deviation decides more than one would think: at delta = 1e-6 the two laws are compared almost
five deviations out, where 2% more of deviation add about 0.5 to epsilon, and 2% is how well 1,000
cosines tell it.  As both signs of the error raise the larger of the two directions, an estimate
with the fitted deviation is too high on average: 1.38 for a true 1 with 1,000 canaries.  So the
fitted deviation is used where it differs from that of the null law by more than chance
(a chi-squared test at 1%), as it does when canaries were drawn a random number of times, and the
null law's own otherwise.  `fitted_estimate` is the figure with the fitted one in any case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtr, chdtrc, log_ndtr

from tacit.privacy import checks

FEWEST = 8  # cosines for which the test of Anderson and Darling has a known law
_SAME_SPREAD = 0.01  # p-values below it say that the deviation is another
_NORMAL = 0.01  # p-values below it say that the cosines are not normal


@dataclass(frozen=True)
class OneShot:
    """The estimate and what it is made from; `mean` and `deviation` are in units of n^(-1/2)."""

    estimate: float
    fitted_estimate: float
    mean: float
    deviation: float
    cosines: int
    spread_p: float
    normality_p: float
    delta: float

    @property
    def is_normal(self) -> bool:
        """Whether the cosines look normal, without which the estimate means little."""
        return self.normality_p >= _NORMAL

    @property
    def uses_fitted_deviation(self) -> bool:
        """Whether the canaries that took part are spread otherwise than those that did not."""
        return self.spread_p < _SAME_SPREAD


def estimate_one_shot(cosines: NDArray[Any], degrees: int, delta: float) -> OneShot:
    """The estimate from the cosines of those canaries that took part; `degrees` is n.

    Raises `ValueError` for fewer than 8 cosines, for cosines that are equal, and for numbers that
    are none.
    """
    checks.whole("degrees", degrees, at_least=2)
    checks.open_unit("delta", delta)
    if cosines.ndim != 1 or len(cosines) < FEWEST:
        raise ValueError(
            f"cosines must be a vector of at least {FEWEST}, one for each canary that took part,"
            f" got shape {list(cosines.shape)}"
        )
    if not (np.abs(cosines) <= 1 + 1e-9).all():  # NaN fails
        raise ValueError("cosines must be between -1 and 1")
    scaled = np.asarray(cosines, np.float64) * math.sqrt(degrees)
    mean, deviation = float(scaled.mean()), float(scaled.std(ddof=1))
    if not deviation > 0:
        raise ValueError("cosines must not all be equal: no normal law fits them")
    squares = (len(scaled) - 1) * deviation**2
    spread_p = 2 * min(chdtr(len(scaled) - 1, squares), chdtrc(len(scaled) - 1, squares))
    fitted = _epsilon_between_normals(mean, deviation, delta)
    plain = _epsilon_between_normals(mean, 1.0, delta)
    return OneShot(
        estimate=fitted if spread_p < _SAME_SPREAD else plain,
        fitted_estimate=fitted,
        mean=mean,
        deviation=deviation,
        cosines=len(scaled),
        spread_p=float(min(spread_p, 1.0)),
        normality_p=_normality_p_value((scaled - mean) / deviation),
        delta=delta,
    )


def _epsilon_between_normals(mean: float, deviation: float, delta: float) -> float:
    """The least epsilon for which N(mean, deviation^2) and N(0, 1) are (epsilon, delta)-close."""
    checks.positive("deviation", deviation)
    checks.open_unit("delta", delta)
    if not math.isfinite(mean):
        raise ValueError(f"mean must be a finite number, got {mean}")

    def excess(epsilon: float) -> float:
        one_way = _log_hockey_stick(mean, deviation, epsilon)
        # The other way round, in units in which the first is N(0, 1).
        other_way = _log_hockey_stick(-mean / deviation, 1 / deviation, epsilon)
        # brentq wants finite numbers; far below any delta all is alike.
        return max(one_way, other_way, -1e4) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-10))


def _log_hockey_stick(mean: float, deviation: float, epsilon: float) -> float:
    """log of sup over sets of P(set) - e^epsilon Q(set), P = N(mean, deviation^2), Q = N(0, 1).

    The set is where log P/Q = a y^2 + b y + c + epsilon exceeds epsilon: outside of the roots of
    a y^2 + b y + c if P is the wider one, between them if it is the narrower one.
    """
    a = (1 - deviation**-2) / 2
    b = mean / deviation**2
    c = -math.log(deviation) - mean**2 / (2 * deviation**2) - epsilon
    square = b * b - 4 * a * c
    if square <= 0:
        return -math.inf  # nowhere; if P is the wider one, c is below 0 and there are roots
    # This form of the roots loses nothing when a is tiny; with a = 0 the first one is infinite.
    q = -(b + math.copysign(math.sqrt(square), b)) / 2
    first = q / a if a else -math.copysign(math.inf, b)
    low, high = sorted((first, c / q))
    outside = a >= 0
    log_p = _log_mass((low - mean) / deviation, (high - mean) / deviation, outside)
    log_q = _log_mass(low, high, outside)
    lost = epsilon + log_q - log_p
    return log_p + math.log(-math.expm1(lost)) if lost < 0 else -math.inf


def _log_mass(low: float, high: float, outside: bool) -> float:
    """log of the mass of N(0, 1) outside of two points or between them, right far out as well."""
    if outside:
        return float(np.logaddexp(log_ndtr(low), log_ndtr(-high)))
    if low > 0:
        low, high = -high, -low
    upper, lower = float(log_ndtr(high)), float(log_ndtr(low))
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf


def _normality_p_value(standardised: NDArray[np.float64]) -> float:
    """The p-value of Anderson and Darling's test, for values less their mean over their deviation.

    The p-value is the approximation of D'Agostino and Stephens 1986 (table 4.9) for a normal law
    with both parameters fitted.
    """
    n = len(standardised)
    ordered = np.sort(standardised)
    weights = 2 * np.arange(1, n + 1) - 1
    logs = log_ndtr(ordered) + log_ndtr(-ordered[::-1])
    x = (-n - float(np.dot(weights, logs)) / n) * (1 + 0.75 / n + 2.25 / n**2)
    if x >= 0.6:
        return math.exp(min(1.2937 - 5.709 * x + 0.0186 * x * x, 0.0)) if x < 13 else 0.0
    if x >= 0.34:
        return math.exp(0.9177 - 4.279 * x - 1.38 * x * x)
    if x >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * x - 59.938 * x * x)
    return 1 - math.exp(-13.436 + 101.14 * x - 223.73 * x * x)
