"""The 6-layer Transformer of 14M parameters of Bagdasaryan et al. 2022 (section 5, appendix A.1).

A causal decoder (Vaswani et al. 2017) with the layer norms before attention and feed-forward, which
needs no warm-up (Xiong et al. 2020).  The paper gives layers, total and vocabulary (10,000) only;
the widths here make 14,044,608 parameters.  Positions are sinusoids: a learned table would add
parameters that get noise in every round and a gradient from few users, and would bound the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models.base import Limits, State, check_inputs
from tacit.models.layers import Affine, TiedConfig, TiedEmbedding, TiedModel, seeded


@dataclass(frozen=True)
class TransformerConfig(TiedConfig):
    """Sizes of the Transformer: 14M parameters at 10,000 tokens by default.

    `embedding_size` is the width of the stream and of the word vectors, split among `heads`;
    `feed_forward` is the inner width of each block's network.
    """

    embedding_size: int = 384
    heads: int = 6
    feed_forward: int = 1440
    layers: int = 6
    dropout: float = 0.0
    unit_norm: bool = False
    kind: ClassVar[str] = "transformer-14m"
    limits: ClassVar[Limits] = TiedConfig.limits | {"embedding_size": (2, 2**24)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_size % 2 or self.embedding_size % self.heads:
            raise ValueError(
                "embedding_size must be even and a multiple of heads, got"
                f" {self.embedding_size} with {self.heads} heads"
            )


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), and to that the feed-forward network of its norm."""

    def __init__(self, config: TransformerConfig, generator: Generator) -> None:
        super().__init__()
        size = config.embedding_size
        # Each block adds twice to the same stream; this keeps the sum's variance at the first's.
        scale = 1 / math.sqrt(2 * config.layers)
        self.heads = config.heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(size, dtype=torch.float32)
        self.query = Affine(size, size, generator)
        self.key = Affine(size, size, generator)
        self.value = Affine(size, size, generator)
        self.attention_output = Affine(size, size, generator, scale=scale)
        self.feed_forward_norm = nn.LayerNorm(size, dtype=torch.float32)
        self.widen = Affine(size, config.feed_forward, generator)
        self.narrow = Affine(config.feed_forward, size, generator, scale=scale)

    def forward(self, stream: Tensor) -> Tensor:
        """x <- x + attention(norm(x)), then x <- x + W_2 gelu(W_1 norm(x) + b_1) + b_2."""
        stream = stream + self._drop(self._attention(self.attention_norm(stream)))
        wide = functional.gelu(self.widen(self.feed_forward_norm(stream)))
        return stream + self._drop(self.narrow(wide))

    def _attention(self, inputs: Tensor) -> Tensor:
        """Every position attends to itself and those before it."""
        query, key, value = (
            part(inputs).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        mixed: Tensor = self.attention_output(attended.transpose(1, 2).flatten(2))
        return mixed

    def _drop(self, values: Tensor) -> Tensor:
        return functional.dropout(values, self.dropout, self.training) if self.dropout else values


class Transformer(TiedModel):
    """Carries no state: a text is given whole."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, seed: int | Generator = 0) -> None:
        super().__init__(config)
        generator = seeded(seed)
        size = config.embedding_size
        self.embedding = TiedEmbedding(config, generator)
        self.context = Affine(config.context_size, size, generator) if config.context_size else None
        self.blocks = nn.ModuleList(
            TransformerBlock(config, generator) for _ in range(config.layers)
        )
        self.output_norm = nn.LayerNorm(size, dtype=torch.float32)

    def outputs(
        self,
        tokens: Tensor,
        state: State = None,
        context: Tensor | None = None,
        *,
        dropout: float = 0.0,
    ) -> tuple[Tensor, State]:
        """The normalised stream after the last block, and no state."""
        check_inputs(tokens, context, self.config.context_size)
        if state is not None:
            raise ValueError("a Transformer carries no state: give it the whole text at once")
        # Rows of about unit norm against sinusoids of norm sqrt(size / 2): hence the factor.
        vectors = self.embedding(tokens) * math.sqrt(self.config.embedding_size)
        stream = vectors + sinusoids(tokens.shape[1], vectors)
        if self.context is not None and context is not None:
            stream = stream + self.context(context.to(stream.dtype)).unsqueeze(1)
        if dropout:
            stream = functional.dropout(stream, dropout)
        for block in self.blocks:
            stream = block(stream)
        if dropout:
            stream = functional.dropout(stream, dropout)
        return self.output_norm(stream), None


def sinusoids(steps: int, like: Tensor) -> Tensor:
    """[steps, size]: sin and cos of position / 10000^(2 i / size), i below size / 2."""
    half = like.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=like.device) / half)
    angles = torch.arange(steps, dtype=torch.float64, device=like.device).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)
