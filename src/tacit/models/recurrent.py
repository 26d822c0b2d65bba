"""The recurrent language models: tied embedding, gated layers, projection, softmax.

    e_t = embedding[token_t], with the user's context vector appended if there is one
    h_t = layers(e_t, state of the previous step)
    logits_t = embedding (P h_t + b_P)

The models differ in their layers only.  Each gate of a layer has one kernel over [input, previous
hidden] and one bias, and these stay separate parameters, because per-layer clipping bounds each by
itself.  A forward pass stacks them, applies the part that meets the input to all steps at once, and
is left with one product per step.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from tacit.models.base import State, check_inputs
from tacit.models.layers import (
    Affine,
    TiedConfig,
    TiedEmbedding,
    TiedModel,
    constant,
    glorot,
    seeded,
)


@dataclass(frozen=True)
class RecurrentConfig(TiedConfig):
    """Sizes of a recurrent model; the defaults are those of McMahan et al. 2018.

    `cells` is the size of a layer's hidden vector, which is projected to `embedding_size`.
    """

    cells: int = 256


class GatedLayer(nn.Module, abc.ABC):
    """A recurrent layer whose gates are named in the order in which they are stacked."""

    gates: ClassVar[tuple[str, ...]]
    initial_bias: ClassVar[dict[str, float]] = {}
    state_tensors: ClassVar[int]  # 1: the hidden vector; 2: with the memory cells

    def __init__(
        self, inputs: int, cells: int, generator: Generator, *, hidden: int | None = None
    ) -> None:
        """The hidden vector has the size of the cells, unless `hidden` says another."""
        super().__init__()
        self.inputs = inputs
        self.cells = cells
        for gate in self.gates:
            kernel = glorot(cells, inputs + (hidden or cells), generator)
            self.register_parameter(f"{gate}_kernel", kernel)
        for gate in self.gates:
            bias = constant(cells, self.initial_bias.get(gate, 0.0))
            self.register_parameter(f"{gate}_bias", bias)

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden vectors [time, batch, cells] for inputs [time, batch, inputs], and the state."""
        # `getattr`, since under `functional_call` the attributes need not be parameters.
        kernel = torch.cat([getattr(self, f"{gate}_kernel") for gate in self.gates])
        bias = torch.cat([getattr(self, f"{gate}_bias") for gate in self.gates])
        from_inputs = functional.linear(inputs, kernel[:, : self.inputs], bias)
        recurrent = kernel[:, self.inputs :].t()
        hidden = []
        for step in from_inputs.unbind(0):
            state = self.step(step, recurrent, state)
            hidden.append(state[0])
        return torch.stack(hidden), state

    @abc.abstractmethod
    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The next state, hidden vector first.

        `from_input` is what the input adds to all gates, [batch, gates * cells], and `recurrent`
        maps a hidden vector to the same, [cells, gates * cells].
        """


def with_context(vectors: Tensor, context: Tensor | None, size: int) -> Tensor:
    """The context of this size, or zeros, appended to the vector of every step."""
    steps, batch, _ = vectors.shape
    if size == 0:
        return vectors
    if context is None:
        context = vectors.new_zeros(batch, size)
    return torch.cat([vectors, context.to(vectors.dtype).expand(steps, batch, size)], dim=2)


class RecurrentModel(TiedModel):
    """A language model of gated layers.

    Its state is the layers' states one after the other, each tensor [batch, cells].
    """

    config: RecurrentConfig
    layer: ClassVar[type[GatedLayer]]

    def __init__(self, config: RecurrentConfig, seed: int | Generator = 0) -> None:
        super().__init__(config)
        generator = seeded(seed)
        self.embedding = TiedEmbedding(config, generator)
        inputs = [config.embedding_size + config.context_size]
        inputs += [config.cells] * (config.layers - 1)
        self.layers = nn.ModuleList(self.layer(size, config.cells, generator) for size in inputs)
        self.projection = Affine(config.cells, config.embedding_size, generator)

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
        """P h_t + b_P for every t, and the layers' states at the end."""
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
        return self.projection(vectors).transpose(0, 1), after

    def _split(self, state: State, vectors: Tensor) -> list[tuple[Tensor, ...]]:
        """The state of each layer; zeros at the beginning of a text."""
        each, layers = self.layer.state_tensors, self.config.layers
        shape = [vectors.shape[1], self.config.cells]
        if state is None:
            state = (vectors.new_zeros(shape),) * (each * layers)
        if len(state) != each * layers or any(list(tensor.shape) != shape for tensor in state):
            raise ValueError(
                f"state must be {each * layers} tensors of shape {shape}, got"
                f" {[list(tensor.shape) for tensor in state]}"
            )
        return [state[each * layer : each * (layer + 1)] for layer in range(layers)]


@dataclass(frozen=True)
class LSTMConfig(RecurrentConfig):
    """Embedding 96, one layer of 256 cells: McMahan et al. 2018, section 3 and appendix B."""

    kind: ClassVar[str] = "lstm"


class _CellLayer(GatedLayer):
    """A layer with memory cells c and an output gate o, the last of its sigmoids: h' = o tanh(c').

    The forget bias begins at 1, so that memory is kept until there is a reason to forget.
    """

    initial_bias: ClassVar[dict[str, float]] = {"forget": 1.0}
    state_tensors = 2

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """One product for all gates; the sigmoids are computed at once."""
        hidden, cell = state
        sigmoids = len(self.gates) - 1
        sums = torch.addmm(from_input, hidden, recurrent)
        gates, candidate = torch.split(sums, [sigmoids * self.cells, self.cells], dim=1)
        *cell_gates, o = torch.sigmoid(gates).chunk(sigmoids, dim=1)
        cell = self.next_cell(cell, torch.tanh(candidate), *cell_gates)
        return o * torch.tanh(cell), cell

    @abc.abstractmethod
    def next_cell(self, cell: Tensor, candidate: Tensor, *gates: Tensor) -> Tensor:
        """c', from c, the candidate and the gates that act on the cells."""


class _LSTMLayer(_CellLayer):
    """i, f, o = sigmoid(W [x, h] + b) each;  g = tanh(W_c [x, h] + b_c);  c' = f c + i g."""

    gates = ("input", "forget", "output", "cell")

    def next_cell(self, cell: Tensor, candidate: Tensor, *gates: Tensor) -> Tensor:
        """c' = f c + i g."""
        i, f = gates
        return torch.addcmul(f * cell, i, candidate)


class LSTM(RecurrentModel):
    """The LSTM of McMahan et al. 2018 (section 3, "Model structure", and appendix B).

    Its output of 256 is projected to 96, and the tied embeddings have unit norm.  With 10,000 words
    that is 1,346,144 parameters in eleven vectors: the embedding, four gate kernels, four gate
    biases, the projection and its bias.
    """

    layer = _LSTMLayer


@dataclass(frozen=True)
class CIFGConfig(RecurrentConfig):
    """The sizes of the LSTM."""

    kind: ClassVar[str] = "cifg"


class CIFGLayer(_CellLayer):
    """f, o = sigmoid(W [x, h] + b) each;  c' = f c + (1 - f) tanh(W_c [x, h] + b_c);

    h' = o tanh(c').
    """

    gates = ("forget", "output", "cell")

    def next_cell(self, cell: Tensor, candidate: Tensor, *gates: Tensor) -> Tensor:
        """c' = f c + (1 - f) g, which is one interpolation."""
        [f] = gates
        return torch.lerp(candidate, cell, f)


class CIFG(RecurrentModel):
    """The LSTM with coupled input and forget gate: the sizes of McMahan et al. with fewer gates.

    It remembers as much as it forgets (Greff et al. 2017, "CIFG"), so there is no input gate.  With
    10,000 words that is 1,255,776 parameters in nine vectors.  The one of Hard et al. 2018, which
    Thakkar et al. 2020 train, is in `models.projected`.
    """

    layer = CIFGLayer


@dataclass(frozen=True)
class GRUConfig(RecurrentConfig):
    """The sizes of the LSTM by default."""

    kind: ClassVar[str] = "gru"


class _GRULayer(GatedLayer):
    """r, z = sigmoid(W [x, h] + b) each;  n = tanh(W_n [x, r h] + b_n);  h' = z h + (1 - z) n."""

    gates = ("reset", "update", "candidate")
    state_tensors = 1

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Two products: the candidate needs r before it meets the state."""
        [hidden] = state
        sizes = [2 * self.cells, self.cells]
        gates_input, candidate_input = torch.split(from_input, sizes, dim=1)
        gates_recurrent, candidate_recurrent = torch.split(recurrent, sizes, dim=1)
        gates = torch.sigmoid(torch.addmm(gates_input, hidden, gates_recurrent))
        r, z = gates.chunk(2, dim=1)
        candidate = torch.tanh(torch.addmm(candidate_input, r * hidden, candidate_recurrent))
        return (torch.lerp(candidate, hidden, z),)


class GRU(RecurrentModel):
    """The gated recurrent unit of Cho et al. 2014, in the LSTM of McMahan et al. 2018.

    The reset gate acts before the product, as in the paper; libraries that move it behind the
    product need a second bias for the candidate.
    """

    layer = _GRULayer


@dataclass(frozen=True)
class StackedLSTMConfig(RecurrentConfig):
    """The 3-layer LSTM of 14M parameters of Bagdasaryan et al. 2022 (section 5).

    Each layer reads the hidden vectors of the one below.  The paper gives the number of layers, the
    total and the vocabulary (10,000), and no widths.  An embedding and layers of 576 make
    14,061,888 parameters.  Nothing there restricts the norms of the embeddings, and its remapping
    of them to a new tokenizer would not keep norms of 1.
    """

    embedding_size: int = 576
    cells: int = 576
    layers: int = 3
    unit_norm: bool = False
    kind: ClassVar[str] = "lstm-14m"
