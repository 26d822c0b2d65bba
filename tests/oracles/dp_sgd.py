"""Algorithm 1 of Abadi et al. 2016 (DP-SGD), line by line, in plain Python numbers.

The normal draws are given, as standard ones, and so are the records of the lot.  With several
workers the noise is the sum of theirs, each of variance (C z)^2 / N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def dp_sgd(
    gradients: Sequence[Sequence[float]],
    *,
    draws: Sequence[Sequence[float]],
    C: float,
    z: float,
    L: float,
) -> list[float]:
    """The noisy gradient; `gradients` are those of the lot, L the expected size of a lot."""
    N, size = len(draws), len(draws[0])
    # Clip gradient
    clipped = []
    for g in gradients:
        norm = math.sqrt(math.fsum(x * x for x in g))
        clipped.append([x / max(1.0, norm / C) for x in g])
    # Add noise
    noise = [C * z / math.sqrt(N) * math.fsum(y[k] for y in draws) for k in range(size)]
    return [(math.fsum(g[k] for g in clipped) + noise[k]) / L for k in range(size)]
