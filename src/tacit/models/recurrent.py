"""What the recurrent models share: tied embedding, gated layers, projection, softmax.

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

from tacit.models import initial
from tacit.models.affine import Affine
from tacit.models.base import (
    LanguageModel,
    ModelConfig,
    State,
    check_context,
    check_flag,
    check_size,
    check_tokens,
)
from tacit.models.embedding import TiedEmbedding


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """Sizes of a recurrent model; the defaults are those of McMahan et al. 2018."""

    embedding_size: int = 96
    cells: int = 256
    layers: int = 1
    context_size: int = 0
    unit_norm: bool = True
    output_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("embedding_size", self.embedding_size)
        check_size("cells", self.cells)
        check_size("layers", self.layers, at_most=1000)
        check_size("context_size", self.context_size, at_least=0)
        check_flag("unit_norm", self.unit_norm)
        check_flag("output_bias", self.output_bias)


class GatedLayer(nn.Module, abc.ABC):
    """A recurrent layer whose gates are named in the order in which they are stacked."""

    gates: ClassVar[tuple[str, ...]]
    initial_bias: ClassVar[dict[str, float]] = {}
    state_tensors: ClassVar[int]  # 1: the hidden vector; 2: with the memory cells

    def __init__(self, inputs: int, cells: int, generator: Generator) -> None:
        super().__init__()
        self.inputs = inputs
        self.cells = cells
        for gate in self.gates:
            kernel = initial.glorot(cells, inputs + cells, generator)
            self.register_parameter(f"{gate}_kernel", kernel)
        for gate in self.gates:
            bias = initial.constant(cells, self.initial_bias.get(gate, 0.0))
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


class RecurrentModel(LanguageModel):
    """A language model of gated layers.

    Its state is the layers' states one after the other, each tensor [batch, cells].
    """

    config: RecurrentConfig
    layer: ClassVar[type[GatedLayer]]

    def __init__(self, config: RecurrentConfig, seed: int | Generator = 0) -> None:
        super().__init__(config)
        generator = initial.seeded(seed)
        self.embedding = TiedEmbedding(
            config.vocab_size,
            config.embedding_size,
            generator,
            unit_norm=config.unit_norm,
            output_bias=config.output_bias,
        )
        inputs = [config.embedding_size + config.context_size]
        inputs += [config.cells] * (config.layers - 1)
        self.layers = nn.ModuleList(self.layer(size, config.cells, generator) for size in inputs)
        self.projection = Affine(config.cells, config.embedding_size, generator)

    @property
    def carries_state(self) -> bool:
        return True

    def forward(
        self, tokens: Tensor, state: State = None, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_tokens(tokens)
        vectors = self._with_context(self.embedding(tokens.t()), context)
        before = self._split(state, vectors)
        after: tuple[Tensor, ...] = ()
        for layer, layer_before in zip(self.layers, before, strict=True):
            vectors, layer_after = layer(vectors, layer_before)
            after += layer_after
        outputs = self.projection(vectors).transpose(0, 1)
        return self.embedding.score(outputs), after

    def normalise_(self) -> None:
        self.embedding.normalise_()

    def _with_context(self, vectors: Tensor, context: Tensor | None) -> Tensor:
        """The context appended to the vector of every step."""
        steps, batch, _ = vectors.shape
        size = self.config.context_size
        check_context(context, batch, size)
        if size == 0:
            return vectors
        if context is None:
            context = vectors.new_zeros(batch, size)
        return torch.cat([vectors, context.to(vectors.dtype).expand(steps, batch, size)], dim=2)

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
