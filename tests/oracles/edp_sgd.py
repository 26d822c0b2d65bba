"""Algorithm 1 of Dupuy et al. 2021 (eDP-SGD), line by line, in plain Python numbers.

A gradient is a list of layers, and a layer a list of floats, so that "for all k" is a loop.  The
normal draws are given: y of worker i is C z_t times `draws[i]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Layers = list[list[float]]


def edp_sgd(
    micro_batches: Sequence[Sequence[Layers]],
    *,
    draws: Sequence[Layers],
    z0: float,
    C: float,
    decay: Callable[[int], float],
    alpha: Sequence[float],
    epoch: int,
) -> Layers:
    """The DP-gradient; `micro_batches[i]` has the gradient of each example of worker i."""
    N = len(micro_batches)
    deltas = []
    for M, normal in zip(micro_batches, draws, strict=True):
        # Compute gradient: of the mean loss over the micro-batch
        delta = [
            [sum(values) / len(M) for values in zip(*layer, strict=True)]
            for layer in zip(*M, strict=True)
        ]
        # Scale
        delta = [[x / alpha[k] for x in layer] for k, layer in enumerate(delta)]
        # Clip
        norm = math.sqrt(math.fsum(x * x for layer in delta for x in layer))
        factor = 1.0 if norm == 0 else min(1.0, C / norm)
        delta = [[factor * x for x in layer] for layer in delta]
        # Rescale
        delta = [[alpha[k] * x for x in layer] for k, layer in enumerate(delta)]
        # Set noise multiplier
        zt = z0 * decay(epoch)
        # Add scaled Gaussian noise
        y = [[C * zt * n for n in layer] for layer in normal]
        delta = [
            [x + n / N for x, n in zip(layer, noise, strict=True)]
            for layer, noise in zip(delta, y, strict=True)
        ]
        deltas.append(delta)
    # Aggregate
    return [
        [sum(values) / N for values in zip(*layer, strict=True)]
        for layer in zip(*deltas, strict=True)
    ]
