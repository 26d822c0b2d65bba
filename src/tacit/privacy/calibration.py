"""From a wished-for epsilon to the noise, the rounds or the cohort that give it.

Guarantee: no search here returns a value whose epsilon, by the accountant that was asked,
exceeds the target.  The last step of each is an evaluation by that very accountant; cheaper
ones only narrow the search.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable

from scipy.optimize import brentq

from tacit.privacy import checks
from tacit.privacy.accountants import Accountant
from tacit.privacy.events import Composition, Event

_LEAST_NOISE, _MOST_NOISE = 1e-3, 2e5
_MOST_ROUNDS = 10**9
_TOLERANCE = 1e-3  # of epsilon


def noise_for_epsilon(
    releases_at: Callable[[float], Composition],
    *,
    delta: float,
    target_epsilon: float,
    accountant: Accountant,
) -> float:
    """The least noise multiplier that keeps all releases within the target, to 0.1% of epsilon.

    Args:
        releases_at: all that is released at a noise multiplier, and all that was before.
        delta: the delta at which the target holds.
        target_epsilon: the most that all releases may cost together.
        accountant: the one whose figure must be within the target.

    Raises `ValueError` where no amount of noise reaches the target.
    """
    checks.positive("target_epsilon", target_epsilon)

    @functools.cache
    def epsilon(z: float, by: Accountant) -> float:
        return by.epsilon(releases_at(z), delta)

    rough = accountant.rough()
    low = high = 1.0
    while epsilon(high, rough) > target_epsilon:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise ValueError(
                f"target_epsilon of {target_epsilon} is out of reach of the {accountant.name}"
                f" accountant, whose epsilon here stays at {epsilon(high, accountant):.4g} or above"
                " however much noise there is; use the pld accountant or a larger delta"
            )
    while epsilon(low, rough) <= target_epsilon:
        low, high = low / 2, low
        if low < _LEAST_NOISE:
            return high

    def excess(log_z: float) -> float:
        value = epsilon(math.exp(log_z), rough)
        return math.log(value / target_epsilon) if value > 0 else -50.0

    root = math.exp(brentq(excess, math.log(low), math.log(high), xtol=1e-3, rtol=1e-3))
    slope = (excess(math.log(1.01 * root)) - excess(math.log(root))) / math.log(1.01)
    return _tightened(lambda z: epsilon(z, accountant), root, slope, target_epsilon)


def _tightened(epsilon: Callable[[float], float], z: float, slope: float, target: float) -> float:
    """From a near solution z, the least z with epsilon(z) <= target, to `_TOLERANCE`.

    `slope` is d log epsilon / d log z there, below 0.  Newton steps aim a little below the target.
    """
    bad, good = 0.0, math.inf
    slope = min(slope, -0.1)
    for _ in range(60):
        value = epsilon(z)
        if value <= target:
            good = z
            if value >= target * (1 - _TOLERANCE) or good - bad <= 1e-2 * _TOLERANCE * good:
                return good
        else:
            bad = z
        aim = math.log(value / target) + _TOLERANCE / 2 if value > 0 else -1.0
        step = z * math.exp(-aim / slope)
        z = step if bad < step < good else (bad + good) / 2 if good < math.inf else 2 * z
    assert good < math.inf, "the search before bracketed the target"
    return good


def rounds_for_epsilon(
    event: Event,
    *,
    delta: float,
    target_epsilon: float,
    accountant: Accountant,
) -> int:
    """The most rounds of `event` that stay within the target; 0 if not even one does."""
    checks.positive("target_epsilon", target_epsilon)

    @functools.cache
    def epsilon(rounds: int, by: Accountant) -> float:
        return by.epsilon(Composition.of([(event, rounds)]), delta)

    if epsilon(1, accountant) > target_epsilon:
        return 0
    if epsilon(_MOST_ROUNDS, accountant.rough()) <= target_epsilon:
        raise ValueError(
            f"target_epsilon of {target_epsilon} allows more than {_MOST_ROUNDS:,} rounds; give the"
            " rounds, or a smaller target"
        )
    # The rough figure is an upper bound, so what fits by it fits; then a little more may.
    rough = accountant.rough()
    beyond = 2
    while epsilon(beyond, rough) <= target_epsilon:
        beyond *= 2
    start = _first(lambda n: epsilon(n, rough) > target_epsilon, beyond // 2, beyond) - 1
    start = start if epsilon(start, accountant) <= target_epsilon else 1
    beyond = start + max(start // 200, 1)
    while epsilon(beyond, accountant) <= target_epsilon:
        start, beyond = beyond, 2 * beyond
    return _first(lambda n: epsilon(n, accountant) > target_epsilon, start, beyond) - 1


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first count above `low` for which a statement holds that holds from there to `high`."""
    return bisect.bisect_left(range(high), True, low + 1, key=holds)


def cohort_for_epsilon(
    event_at: Callable[[int], Event],
    *,
    population: int,
    rounds: int,
    delta: float,
    target_epsilon: float,
    accountant: Accountant,
) -> int:
    """The smallest cohort, of at most the population, that reaches the target.

    `event_at(c)` is the event of one round with cohort c, at a noise on the average that stays
    the same: the noise multiplier then grows with the cohort, which is what buys privacy.
    """
    checks.positive("target_epsilon", target_epsilon)

    def epsilon(cohort: int, by: Accountant) -> float:
        return by.epsilon(Composition.of([(event_at(cohort), rounds)]), delta)

    best = epsilon(population, accountant)
    if best > target_epsilon:
        raise ValueError(
            f"no cohort reaches a target_epsilon of {target_epsilon}: even the whole population of"
            f" {population:,} in each round gives {best:.4g}; allow more noise or fewer rounds"
        )

    def fits(cohort: int) -> bool:
        # The rough figure is never below the exact one, so it may only say yes.
        by = (accountant.rough(), accountant)
        return any(epsilon(cohort, one) <= target_epsilon for one in by)

    return _first(fits, 0, population)
