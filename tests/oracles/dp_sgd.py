"""Algorithm 1 of Abadi et al. 2016 (DP-SGD), line by line, in plain Python numbers.

The normal draws are given, as standard ones, one for each coordinate, and so are the records of the
lot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def dp_sgd(
    gradients: Sequence[Sequence[float]],
    *,
    draws: Sequence[float],
    C: float,
    z: float,
    L: float,
) -> list[float]:
    """The noisy gradient; `gradients` are those of the lot, L the expected size of a lot."""
    # Clip gradient
    clipped = []
    for g in gradients:
        norm = math.sqrt(math.fsum(x * x for x in g))
        clipped.append([x / max(1.0, norm / C) for x in g])
    # Add noise
    return [(math.fsum(g[k] for g in clipped) + C * z * y) / L for k, y in enumerate(draws)]


def noise_pieces(size: int, workers: int) -> list[slice]:
    """Whose noise each coordinate of a step gets: worker i has those from i/n to (i + 1)/n."""
    return [slice(size * i // workers, size * (i + 1) // workers) for i in range(workers)]
