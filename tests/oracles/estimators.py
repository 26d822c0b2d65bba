"""Algorithm 1 of McMahan et al. 2018, equation by equation, in rational arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Update = Sequence[float]


def exact(update: Sequence[float]) -> list[Fraction]:
    return [Fraction(float(value)) for value in update]


def squared_norm(update: Sequence[float | Fraction]) -> Fraction:
    """|update|^2 without any rounding."""
    return sum((Fraction(value) ** 2 for value in update), Fraction(0))


def weighted_sum(weights: Sequence[Fraction], updates: Sequence[Update]) -> list[Fraction]:
    columns = zip(*(exact(update) for update in updates), strict=True)
    return [sum((w * x for w, x in zip(weights, xs, strict=True)), Fraction(0)) for xs in columns]


def true_average(weights: Sequence[Fraction], updates: Sequence[Update]) -> list[Fraction]:
    """f(C) = sum w_k update_k / sum w_k."""
    return [x / sum(weights) for x in weighted_sum(weights, updates)]


def fixed_denominator(
    weights: Sequence[Fraction], updates: Sequence[Update], qW: Fraction
) -> list[Fraction]:
    """f_f(C) = sum w_k update_k / (qW)."""
    return [x / qW for x in weighted_sum(weights, updates)]


def clipped_denominator(
    weights: Sequence[Fraction], updates: Sequence[Update], qW_min: Fraction
) -> list[Fraction]:
    """f_c(C) = sum w_k update_k / max(qW_min, sum w_k)."""
    denominator = max(qW_min, sum(weights, Fraction(0)))
    return [x / denominator for x in weighted_sum(weights, updates)]
