"""x -> W x + b, with initial weights from a generator of the caller's."""

from __future__ import annotations

from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models import initial


class Affine(nn.Module):
    """`nn.Linear`, except that it leaves the global random state alone."""

    def __init__(
        self, inputs: int, outputs: int, generator: Generator, *, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = initial.glorot(outputs, inputs, generator, scale=scale)
        self.bias = initial.constant(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight, self.bias)
