"""The last step of a model, the logits, left to whoever knows what is wanted of them.

To draw from softmax(logits / T), exp(logits / T) will do, without its maximum, wherever that is
sure to be within the range of floats.  Logits that are inner products have a bound before they
are computed: |<o, e_w> + b_w| <= |o| max |e_w| + max |b_w| (Cauchy-Schwarz).  Below it two passes
over the [rows, vocabulary] array are saved, of five.  The powers are those of 2, which take half
the time of those of e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.models.layers import TiedEmbedding

LARGEST_EXPONENT = 100.0  # 2^100, times as many words as there may be, is still a float32
TILE = 2_000  # words at a time, so that the powers find the logits in the cache


class Output(Protocol):
    """What a model says after one step, a row per text."""

    def logits(self) -> Tensor:
        """[rows, vocabulary], the caller's to overwrite, until the model's next step."""

    def powers(self, scale: float) -> Tensor | None:
        """2^(scale * logits), also to be overwritten; None where floats may not hold them."""


@dataclass(frozen=True)
class GivenOutput:
    """Logits that are computed already."""

    values: Tensor

    def logits(self) -> Tensor:
        return self.values

    def powers(self, scale: float) -> Tensor | None:
        return None


@dataclass(frozen=True)
class TiedOutput:
    """Logits by a tied embedding, still to be computed from the rows' vectors."""

    head: TiedHead
    vectors: Tensor

    def logits(self) -> Tensor:
        return self.head.fill(self.vectors)

    def powers(self, scale: float) -> Tensor | None:
        # Written so that NaN fails.
        within = self.head.bound(self.vectors) * scale <= LARGEST_EXPONENT
        return self.head.fill(self.vectors, scale) if within else None


class TiedHead:
    """Holds the memory that all steps share: with new memory they would take a third longer."""

    def __init__(self, embedding: TiedEmbedding, rows: int) -> None:
        self._memory = embedding.weight.new_empty(rows, len(embedding.weight))
        self._tiles = [tile.t() for tile in torch.split(embedding.weight, TILE)]
        self._norm = float(torch.linalg.vector_norm(embedding.weight, dim=1).max())
        bias = embedding.output_bias
        self._biases = [None] * len(self._tiles) if bias is None else list(torch.split(bias, TILE))
        self._largest_bias = 0.0 if bias is None else float(bias.abs().max())

    def bound(self, vectors: Tensor) -> float:
        """No logit is further from 0."""
        norms = torch.linalg.vector_norm(vectors, dim=1)
        return float(norms.max()) * self._norm + self._largest_bias

    def fill(self, vectors: Tensor, scale: float | None = None) -> Tensor:
        """The memory with the logits, or given a scale with 2^(scale * logits)."""
        memory = self._memory[: len(vectors)]
        alpha = 1.0 if scale is None else scale
        pieces = torch.split(memory, TILE, dim=1)
        for piece, tile, bias in zip(pieces, self._tiles, self._biases, strict=True):
            before, beta = (piece, 0.0) if bias is None else (bias, alpha)
            torch.addmm(before, vectors, tile, beta=beta, alpha=alpha, out=piece)
            if scale is not None:
                piece.exp2_()
        return memory
