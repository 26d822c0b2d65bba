"""Layers that several models share, and their initial weights.

Initial weights are a function of the seed alone, on every machine and for every default of torch:
all draws come from one generator in the order in which a model makes its parameters.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models.base import LanguageModel, Limits, ModelConfig, State


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


def _unit_rows(rows: int, columns: int, generator: Generator) -> nn.Parameter:
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
    """A float32 tensor, whatever the default type of torch is."""
    return torch.empty(shape, dtype=torch.float32)


class Affine(nn.Module):
    """x -> W x + b: `nn.Linear`, except that it leaves the global random state alone."""

    def __init__(
        self, inputs: int, outputs: int, generator: Generator, *, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = glorot(outputs, inputs, generator, scale=scale)
        self.bias = constant(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight, self.bias)


@dataclass(frozen=True)
class TiedConfig(ModelConfig):
    """What the models with a `TiedEmbedding` have in common; the defaults are the LSTM's.

    `embedding_size` is that of the word vectors and of the output that scores them.  `context_size`
    is the length of a feature vector about the user (0: none; no training has any).  `unit_norm`
    restricts word vectors to norm 1; `output_bias` adds b_w to word w's score.
    """

    embedding_size: int = 96
    layers: int = 1
    context_size: int = 0
    unit_norm: bool = True
    output_bias: bool = False
    limits: ClassVar[Limits] = {"layers": (1, 1000), "context_size": (0, 2**24)}


class TiedEmbedding(nn.Module):
    """One table of word vectors for the input and the output (McMahan et al. 2018, appendix B).

    An output vector o scores word w by the inner product <o, e_w>, plus b_w where there is an
    output bias.  Optionally every e_w is restricted to an L2 norm of 1, which the paper found to
    speed up convergence; an optimizer leaves that set, and `normalise_` projects back to it.

    `weight` is [vocabulary, size]; `output_bias` has one value per word, or is None.
    """

    output_bias: nn.Parameter | None

    def __init__(self, config: TiedConfig, generator: Generator) -> None:
        super().__init__()
        self.unit_norm = config.unit_norm
        self.weight = _unit_rows(config.vocab_size, config.embedding_size, generator)
        self.output_bias = constant(config.vocab_size) if config.output_bias else None

    def forward(self, tokens: Tensor) -> Tensor:
        """The words' vectors."""
        return functional.embedding(tokens, self.weight)

    def score(self, outputs: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Logits of all words; those of outputs [n, size] may go to `out`, without gradients."""
        if out is None:
            return functional.linear(outputs, self.weight, self.output_bias)
        if self.output_bias is None:
            return torch.mm(outputs, self.weight.t(), out=out)
        return torch.addmm(self.output_bias, outputs, self.weight.t(), out=out)

    def normalise_(self) -> None:
        """Back to unit norm, if the vectors are restricted to it."""
        if self.unit_norm:
            with torch.no_grad():
                normalise_rows_(self.weight)


class TiedModel(LanguageModel):
    """A language model whose output scores words by their tied vectors."""

    embedding: TiedEmbedding

    @abc.abstractmethod
    def outputs(
        self,
        tokens: Tensor,
        state: State = None,
        context: Tensor | None = None,
        *,
        dropout: float = 0.0,
    ) -> tuple[Tensor, State]:
        """The vectors that score the words after each position, and the state after the last.

        With `dropout`, that share of what goes into the layers and of what comes out of them is
        left out at random: for plain training, which has no other guard against overfitting.
        """

    def forward(
        self, tokens: Tensor, state: State = None, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """<output_t, e_w> for every position t and word w, and the state at the end."""
        outputs, after = self.outputs(tokens, state, context)
        return self.embedding.score(outputs), after

    def normalise_(self) -> None:
        """Project every word vector back to unit norm, if the model restricts them to it."""
        self.embedding.normalise_()
