"""The picture of noise that is correlated over the rounds, as facts and as charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tacit.report.figures import Facts, fitted_chart, matrix_chart, rounded


def noise_facts(picture: Any) -> dict[str, Any]:
    """What is drawn of a `NoisePicture`: its fields, in four digits."""
    facts: dict[str, Any] = _rounded(asdict(picture))
    return facts


def _rounded(value: Any) -> Any:
    """All figures in it as a picture needs them."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return rounded(value) if isinstance(value, float) else value


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
