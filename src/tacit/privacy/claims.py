"""How a guarantee is put into words: everything an epsilon means, wherever one is printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal

from tacit.privacy.events import Adjacency

# Said of every run unless it says more; what an epsilon of training never covers.
ALWAYS_EXCLUDED: tuple[str, ...] = (
    "the choice of settings",
    "test users, who are disjoint from the training users and unprotected",
)

PROJECTED = "projected, not trained with this guarantee"


def format_epsilon(epsilon: float, digits: int = 4) -> str:
    """An epsilon in `digits` significant digits, rounded up: print never understates."""
    if not math.isfinite(epsilon):
        return "infinity"
    if epsilon == 0:
        return "0"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(
        Decimal(repr(float(epsilon)))
    )
    places = max(digits - 1 - rounded.adjusted(), 0)
    return f"{rounded:.{places}f}" if 1e-5 <= epsilon < 1e9 else f"{rounded:.{digits - 1}e}"


def format_delta(delta: float) -> str:
    """A delta in at most six significant digits, rounded up."""
    rounded = Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(delta))))
    return f"{float(rounded):g}"


def format_number(value: float) -> str:
    """A public constant, short but exact enough to recompute with."""
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.6g}"


def claim_sentence(
    *,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: Adjacency | None,
    population: int,
    sampler: str,
    rounds: int,
    noise_multiplier: float | None,
    accountant: str,
    excluded: Sequence[str] = ALWAYS_EXCLUDED,
    projected: bool = False,
    round_name: str = "rounds",
) -> str:
    """One sentence that can be quoted by itself (design rule 2), or why there is none."""
    if noise_multiplier is None or adjacency is None:
        return f"No differential privacy: no noise in {rounds:,} {round_name}, {sampler}."
    if not math.isfinite(epsilon):
        return (
            f"No guarantee: {accountant} gives no finite epsilon for {rounds:,} {round_name},"
            f" {sampler}, with noise of {format_number(noise_multiplier)} times the sensitivity."
        )
    label = f" ({PROJECTED})" if projected else ""
    figures = f"({format_epsilon(epsilon)}, {format_delta(delta)})"
    return (
        f"{unit.capitalize()}-level {figures}-differential privacy{label} under"
        f" {adjacency.value} adjacency, with the population of {population:,}"
        f" {unit}s declared public: {rounds:,} {round_name}, {sampler}, Gaussian noise of"
        f" {format_number(noise_multiplier)} times the sensitivity, accounted by {accountant};"
        f" excluded: {'; '.join(excluded)}."
    )
