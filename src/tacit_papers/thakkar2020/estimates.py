"""Means with intervals of 95%, and what each interval covers.

A seed decides about canaries, sharers, starting weights, cohorts and noise.  So there are two:

- Over seeds: Student's t on the seeds' means.  It covers all that a seed decides, and with two or
  three seeds it is as wide as that little evidence makes it.
- Over canaries: for the models that were trained, what another draw of canaries and sharers in the
  same cells would give.  The cells are fixed, so only the spread within a cell of a seed counts:

      variance of the mean = sum_h (n_h / n)^2 s_h^2 / n_h    over the strata h = (seed, cell)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Interval = tuple[float, float]
_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over canaries, and its intervals; None where there is too little for one."""

    mean: float
    over_canaries: Interval | None
    over_seeds: Interval | None
    count: int
    seeds: int


def estimate(values: Mapping[int, Sequence[tuple[Hashable, float]]]) -> Estimate:
    """The mean over all canaries, from each seed's pairs of a cell and a value."""
    pooled = [value for pairs in values.values() for _, value in pairs]
    if not pooled:
        raise ValueError("there are no values to take the mean of")
    means = [float(np.mean([value for _, value in pairs])) for pairs in values.values() if pairs]
    mean = float(np.mean(pooled))
    return Estimate(mean, _over_canaries(values, mean), _over_seeds(means), len(pooled), len(means))


def _over_seeds(means: Sequence[float]) -> Interval | None:
    """Student's t on the seeds' means; None of a single seed."""
    if len(means) < 2:
        return None
    half = stats.t.ppf((1 + _LEVEL) / 2, len(means) - 1) * np.std(means, ddof=1) / len(means) ** 0.5
    middle = float(np.mean(means))
    return middle - float(half), middle + float(half)


def _over_canaries(
    values: Mapping[int, Sequence[tuple[Hashable, float]]], mean: float
) -> Interval | None:
    """None if some cell has one canary only, whose spread cannot be estimated."""
    strata: dict[Hashable, list[float]] = {}
    for seed, pairs in values.items():
        for cell, value in pairs:
            strata.setdefault((seed, cell), []).append(value)
    if any(len(stratum) < 2 for stratum in strata.values()):
        return None
    total = sum(map(len, strata.values()))
    parts = [
        ((len(s) / total) ** 2 * float(np.var(s, ddof=1)) / len(s), len(s) - 1)
        for s in strata.values()
    ]
    variance = sum(part for part, _ in parts)
    if not variance > 0:
        return mean, mean
    # Few canaries to a cell: Student's t, with the degrees of freedom of Satterthwaite 1946.
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(stats.t.ppf((1 + _LEVEL) / 2, freedom)) * math.sqrt(variance)
    return mean - half, mean + half
