"""Zero-concentrated DP (Bun and Steinke 2016): one number, rho, that simply adds.

A Gaussian with multiplier m has rho = 1/(2 m^2); an epsilon-DP release has rho = epsilon^2/2.
The conversion is that of Canonne, Kamath and Steinke 2020, the least over alpha > 1 of

    epsilon = rho alpha + log(1/(alpha delta)) / (alpha - 1) + log(1 - 1/alpha).

zCDP gains nothing from sampling, so events with a sampling claim are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from scipy.optimize import minimize_scalar

from tacit.privacy.accountant import Accountant
from tacit.privacy.events import Composition, Event, Gaussian, PureDP


class ZcdpAccountant(Accountant):
    """rho adds up; for releases that touch everybody."""

    name: ClassVar[str] = "zcdp"
    title: ClassVar[str] = "zCDP (Bun and Steinke 2016)"
    limit: ClassVar[str] = (
        "has no amplification by sampling, so it is refused under a sampling claim"
    )
    accounts: ClassVar[tuple[type[Event], ...]] = (Gaussian, PureDP)

    def _epsilon(self, composition: Composition, delta: float) -> float:
        total = rho(composition)
        return max(_least(lambda a: total * a + _conversion(a, delta)), 0.0)

    def _delta(self, composition: Composition, epsilon: float) -> float:
        total = rho(composition)

        def log_delta(alpha: float) -> float:
            return (alpha - 1) * (total * alpha - epsilon + math.log1p(-1 / alpha)) - math.log(
                alpha
            )

        return min(math.exp(min(_least(log_delta), 0.0)), 1.0)


def rho(composition: Composition) -> float:
    """The sum of all events' rho."""
    total = 0.0
    for event, count in composition.counts:
        match event:
            case Gaussian(noise_multiplier=m):
                total += count / (2 * m * m)
            case PureDP(epsilon=epsilon):
                total += count * epsilon**2 / 2
            case _:
                raise ValueError(f"the rho of {event!r} is not known")
    return total


def _conversion(alpha: float, delta: float) -> float:
    return -math.log(alpha * delta) / (alpha - 1) + math.log1p(-1 / alpha)


def _least(objective: Callable[[float], float]) -> float:
    """The least value over alpha > 1; any alpha gives a bound, so an inexact one is still sound."""
    found = minimize_scalar(
        lambda log_gap: objective(1 + math.exp(log_gap)),
        bounds=(math.log(1e-6), math.log(1e8)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(found.fun)
