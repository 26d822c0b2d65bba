"""A recurrent model's parameters as views of one flat vector."""

from __future__ import annotations

import math

import torch

from tacit.models.layers import normalise_rows_
from tacit.models.recurrent import RecurrentConfig

# Of a row whose squares stay in the range of float32, float32 gives the norm well enough.
_SMALLEST_NORM, _LARGEST_NORM = 1e-15, 1e15


class Parameters:
    """The flat vector and its parts by name, in the order of `models.vectors`."""

    def __init__(self, config: RecurrentConfig, gates: int) -> None:
        V, E, C = config.vocab_size, config.embedding_size, config.cells
        shapes: dict[str, list[int]] = {"embedding": [V, E]}
        if config.output_bias:
            shapes["output_bias"] = [V]
        # The gates' kernels follow one another in the vector, so stacked they are a view of it.
        shapes |= {"kernel": [gates * C, E + C], "bias": [gates * C]}
        shapes |= {"projection": [E, C], "projection_bias": [E]}
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.flat = torch.zeros(sum(sizes))
        self.anchor = torch.zeros(sum(sizes))
        self.parts = {
            name: part.view(shape)
            for (name, shape), part in zip(
                shapes.items(), torch.split(self.flat, sizes), strict=True
            )
        }
        self.embedding, self.kernel = self.parts["embedding"], self.parts["kernel"]
        self.bias, self.projection = self.parts["bias"], self.parts["projection"]
        self.projection_bias = self.parts["projection_bias"]
        self.output_bias = self.parts.get("output_bias")

    def pull_back(self, pull: float) -> None:
        """theta <- theta - pull (theta - anchor)."""
        if pull:
            self.flat.lerp_(self.anchor, pull)

    def normalise_(self) -> None:
        """`initial.normalise_rows_` of the embedding, in float32 where that is as good."""
        norms = torch.linalg.vector_norm(self.embedding, dim=1, keepdim=True)
        smallest, largest = map(float, torch.aminmax(norms))
        if smallest > _SMALLEST_NORM and largest < _LARGEST_NORM:
            self.embedding.div_(norms)
        else:
            normalise_rows_(self.embedding)
