"""The CIFG of Hard et al. 2018, whose architecture Thakkar et al. 2020 (section 3) mirror.

    e_t = embedding[token_t], with the user's context vector appended if there is one
    m_t = o tanh(c_t)                 the gates of a CIFG layer, over [e_t, r_(t-1)]
    r_t = P m_t                       what is carried on, and what the next layer reads
    logits_t = embedding r_t

The projection is a part of the recurrence (Sak et al. 2014): 670 cells see each other only through
a vector of 96.  That is why so many of them fit into 1.4 million parameters, of which more than two
thirds are the embedding's, as Hard et al. have it; with the recurrence over all cells there would
be 2.6 million.  Thakkar et al. give a total of 1.3 million and no widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models.base import State, check_inputs
from tacit.models.layers import TiedEmbedding, TiedModel, glorot, seeded
from tacit.models.recurrent import CIFGLayer, RecurrentConfig, with_context


@dataclass(frozen=True)
class ProjectedCIFGConfig(RecurrentConfig):
    """Embedding 96, one layer of 670 cells that are projected to 96: Hard et al. 2018."""

    cells: int = 670
    kind: ClassVar[str] = "cifg-projected"


class _ProjectedCIFGLayer(CIFGLayer):
    """A CIFG layer whose hidden vector is P (o tanh(c'))."""

    def __init__(self, inputs: int, cells: int, size: int, generator: Generator) -> None:
        super().__init__(inputs, cells, generator, hidden=size)
        self.projection = glorot(size, cells, generator)

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The projected hidden vector, and the cells."""
        hidden, cell = super().step(from_input, recurrent, state)
        return functional.linear(hidden, self.projection), cell


class ProjectedCIFG(TiedModel):
    """A language model of projected CIFG layers: 1,412,250 parameters at 10,000 words.

    Its state is each layer's hidden vector [batch, embedding_size] and cells [batch, cells].
    """

    config: ProjectedCIFGConfig

    def __init__(self, config: ProjectedCIFGConfig, seed: int | Generator = 0) -> None:
        super().__init__(config)
        generator = seeded(seed)
        self.embedding = TiedEmbedding(config, generator)
        size = config.embedding_size
        inputs = [size + config.context_size] + [size] * (config.layers - 1)
        self.layers = nn.ModuleList(
            _ProjectedCIFGLayer(width, config.cells, size, generator) for width in inputs
        )

    @property
    def carries_state(self) -> bool:
        """True: a text may come in pieces, each with the state that the one before it left."""
        return True

    def outputs(
        self,
        tokens: Tensor,
        state: State = None,
        context: Tensor | None = None,
        *,
        dropout: float = 0.0,
    ) -> tuple[Tensor, State]:
        """r_t of the last layer for every t, and the layers' states at the end."""
        check_inputs(tokens, context, self.config.context_size)
        vectors = with_context(self.embedding(tokens.t()), context, self.config.context_size)
        if dropout:
            vectors = functional.dropout(vectors, dropout)
        before = self._split(state, vectors)
        after: tuple[Tensor, ...] = ()
        for layer, layer_before in zip(self.layers, before, strict=True):
            vectors, layer_after = layer(vectors, layer_before)
            after += layer_after
        if dropout:
            vectors = functional.dropout(vectors, dropout)
        return vectors.transpose(0, 1), after

    def _split(self, state: State, vectors: Tensor) -> list[tuple[Tensor, ...]]:
        """The hidden vector and the cells of each layer; zeros at the beginning of a text."""
        batch = vectors.shape[1]
        widths = [self.config.embedding_size, self.config.cells] * self.config.layers
        if state is None:
            state = tuple(vectors.new_zeros(batch, width) for width in widths)
        shapes = [[batch, width] for width in widths]
        if [list(tensor.shape) for tensor in state] != shapes:
            raise ValueError(
                f"state must be {len(shapes)} tensors of shapes {shapes}, got"
                f" {[list(tensor.shape) for tensor in state]}"
            )
        return list(zip(state[::2], state[1::2], strict=True))
