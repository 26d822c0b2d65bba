"""Initial weights: a function of the seed alone, on every machine and for every default of torch.

All draws come from one generator in the order in which a model makes its parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn


def seeded(seed: int | Generator) -> Generator:
    """The generator itself, or a new one with this seed."""
    if isinstance(seed, Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}")
    return Generator(device="cpu").manual_seed(seed)


def glorot(outputs: int, inputs: int, generator: Generator, *, scale: float = 1.0) -> nn.Parameter:
    """Uniform within sqrt(6 / (inputs + outputs)), which keeps variances level (Glorot 2010)."""
    bound = scale * math.sqrt(6 / (inputs + outputs))
    values = _empty(outputs, inputs)
    if not values.is_meta:  # nothing to draw; and trying imports half of torch
        values.uniform_(-bound, bound, generator=generator)
    return nn.Parameter(values)


def unit_rows(rows: int, columns: int, generator: Generator) -> nn.Parameter:
    """Uniformly random directions."""
    values = _empty(rows, columns)
    if not values.is_meta:
        normalise_rows_(values.normal_(generator=generator))
    return nn.Parameter(values)


def constant(size: int, value: float = 0.0) -> nn.Parameter:
    """A bias."""
    return nn.Parameter(_empty(size).fill_(value))


def normalise_rows_(matrix: Tensor) -> Tensor:
    """Every row to L2 norm 1, in place.  A row of zeros has no direction and stays."""
    norms = torch.linalg.vector_norm(matrix, dim=1, keepdim=True, dtype=torch.float64)
    return matrix.div_(norms.masked_fill_(norms == 0, 1.0).to(matrix.dtype))


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)
