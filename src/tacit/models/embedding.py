"""One table of word vectors for the input and for the output (McMahan et al. 2018, appendix B).

An output vector o scores word w by the inner product <o, e_w>, plus b_w where there is an output
bias.  Optionally every e_w is restricted to an L2 norm of 1, which the paper found to speed up
convergence; an optimizer leaves that set, and `normalise_` projects back to it.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models import initial


class TiedEmbedding(nn.Module):
    """`weight` is [vocabulary, size]; `output_bias`, of one value per word, is often None."""

    output_bias: nn.Parameter | None

    def __init__(
        self,
        vocab_size: int,
        size: int,
        generator: Generator,
        *,
        unit_norm: bool,
        output_bias: bool,
    ) -> None:
        super().__init__()
        self.unit_norm = unit_norm
        self.weight = initial.unit_rows(vocab_size, size, generator)
        self.output_bias = initial.constant(vocab_size) if output_bias else None

    def forward(self, tokens: Tensor) -> Tensor:
        """The words' vectors."""
        return functional.embedding(tokens, self.weight)

    def score(self, outputs: Tensor) -> Tensor:
        """Logits of all words."""
        return functional.linear(outputs, self.weight, self.output_bias)

    def normalise_(self) -> None:
        """Back to unit norm, if the vectors are restricted to it."""
        if self.unit_norm:
            with torch.no_grad():
                initial.normalise_rows_(self.weight)
