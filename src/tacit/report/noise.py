"""The picture of noise that is correlated over the rounds: its matrix, and what it leaves.

Round t adds x_t = (C^-1 z)_t with z fresh in every round (`mechanisms.strategies`).  A model is a
running sum of what rounds release, so the error of that sum stands beside the one that independent
noise would leave for the same people, turns and epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.mechanisms.noise import CorrelatedNoise, IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.strategies import INDEPENDENT, Strategy
from tacit.mechanisms.turns import FIRST
from tacit.privacy.events import Horizon
from tacit.report.figures import Facts, fitted_chart, matrix_chart, rounded

_ROUNDS_SHOWN = 32  # of the matrix; the first rounds are correlated as if they were all there are
_POINTS = 24  # on a curve of errors


def noise_facts(plan: RoundPlan, rounds: int) -> dict[str, Any] | None:
    """The matrix of the first rounds, and the error of running sums; None if noise is independent.

    Errors are standard deviations, in multiples of what one user can add to one round.
    """
    noise = plan.noise
    if not isinstance(noise, CorrelatedNoise):
        return None
    z = noise.noise_multiplier
    z_independent = z * _cost(plan, IndependentNoise(z), rounds) / _cost(plan, noise, rounds)
    after = sorted({round(float(x)) for x in np.geomspace(1, rounds, _POINTS)})
    shown = noise.strategy.matrix(min(rounds, _ROUNDS_SHOWN))
    return {
        "kind": noise.strategy.name,
        "vectors": noise.vectors(rounds),
        "relative_error": rounded(noise.relative_error(rounds) * z / z_independent),
        "matrix": [[rounded(value) for value in row[: t + 1]] for t, row in enumerate(shown)],
        "after": after,
        "errors": _errors(noise.strategy, z, after),
        "independent_errors": _errors(INDEPENDENT, z_independent, after),
    }


def _cost(plan: RoundPlan, noise: CorrelatedNoise | IndependentNoise, rounds: int) -> float:
    """The sensitivity of all rounds, or of a turn: what a single round's noise is divided by."""
    event = noise.event(plan.sampler, 1.0, replace(FIRST, rounds=rounds))
    assert isinstance(event, Horizon), "correlated noise is for users who take turns"
    return 1 / event.noise_multiplier


def _errors(strategy: Strategy, z: float, after: Sequence[int]) -> list[float]:
    variances = strategy.running_sum_variances(after[-1])
    return [rounded(z * variances[round - 1] ** 0.5) for round in after]


def noise_charts(phases: Sequence[Facts]) -> dict[str, Facts | None]:
    """Two charts for each phase with correlated noise, by the phase's number from 1."""
    charts: dict[str, Facts | None] = {}
    for number, phase in enumerate(phases, 1):
        if (noise := phase.get("correlated")) is None:
            continue
        charts[f"noise_matrix_{number}"] = matrix_chart(
            f"The matrix of the noise, {noise['kind']}", ("round", "round"), noise["matrix"]
        )
        curves = {
            f"{noise['kind']}, as it was": noise["errors"],
            "independent, at the same epsilon": noise["independent_errors"],
        }
        charts[f"noise_error_{number}"] = fitted_chart(
            "Noise on the sum of all rounds so far",
            "standard deviation, in one user's most",
            "rounds",
            {name: [*zip(noise["after"], errors, strict=True)] for name, errors in curves.items()},
        )
    return charts
