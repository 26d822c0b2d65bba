"""Many texts side by side through a model, a token each per step, and the logits after it.

Guarantee.  However a walk is computed, its logits are those that `forward` gives for each text by
itself, up to rounding.
"""

from __future__ import annotations

import math
import sys
from typing import Protocol, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from tacit.evaluation.outputs import GivenOutput, Output, TiedHead, TiedOutput
from tacit.models.base import LanguageModel, State
from tacit.models.recurrent import GatedLayer, RecurrentModel
from tacit.models.transformer import Block, Transformer, sinusoids

KEPT_VALUES = 2**24  # of a Transformer's keys and values: 64 MB
WHOLE_TEXTS = 1_024  # tokens side by side where a model reads its texts whole at every step


class Walk(Protocol):
    """A model that reads one token more per row at each call."""

    def advance(self, tokens: Tensor, begun: Tensor) -> Output:
        """What follows these tokens; in the rows `begun` they are the first of a text."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""


def walk_of(model: LanguageModel, rows: int, longest: int) -> Walk:
    """The fastest way through the model."""
    if isinstance(model, RecurrentModel) and type(model).forward is RecurrentModel.forward:
        return RecurrentWalk(model, rows)
    if _is_transformer(model):
        return TransformerWalk(model, rows, longest)
    return StateWalk(model) if model.carries_state else WholeTextWalk(model, rows, longest)


def most_rows(model: LanguageModel, longest: int) -> int:
    """How many rows may be side by side, by what a walk has to keep or compute for each."""
    if _is_transformer(model):
        config = model.config
        return max(1, KEPT_VALUES // (2 * config.layers * config.embedding_size * longest))
    return sys.maxsize if model.carries_state else max(1, WHOLE_TEXTS // longest)


def _is_transformer(model: LanguageModel) -> TypeGuard[Transformer]:
    return isinstance(model, Transformer) and type(model).forward is Transformer.forward


class RecurrentWalk:
    """Stacks the gates' kernels once, which `forward` does at every call."""

    def __init__(self, model: RecurrentModel, rows: int) -> None:
        self._model = model
        self._layers: list[tuple[GatedLayer, Tensor, Tensor, Tensor]] = []
        inputs = model.config.embedding_size  # without the context behind it, which is zero
        for layer in model.layers:
            assert isinstance(layer, GatedLayer)
            kernel = torch.cat([getattr(layer, f"{gate}_kernel") for gate in layer.gates])
            bias = torch.cat([getattr(layer, f"{gate}_bias") for gate in layer.gates])
            recurrent = kernel[:, layer.inputs :].t().contiguous()
            self._layers.append((layer, kernel[:, :inputs].t().contiguous(), bias, recurrent))
            inputs = layer.cells
        zero = model.embedding.weight.new_zeros(rows, model.config.cells)
        self._state = [(zero,) * model.layer.state_tensors for _ in self._layers]
        self._head = TiedHead(model.embedding, rows)

    def advance(self, tokens: Tensor, begun: Tensor) -> Output:
        vectors = self._model.embedding(tokens)
        for place, (layer, kernel, bias, recurrent) in enumerate(self._layers):
            before = self._state[place]
            for part in before:
                part.index_fill_(0, begun, 0)
            after = layer.step(torch.addmm(bias, vectors, kernel), recurrent, before)
            self._state[place], vectors = after, after[0]
        return TiedOutput(self._head, self._model.projection(vectors))

    def keep(self, rows: Tensor) -> None:
        self._state = [tuple(part[rows] for part in state) for state in self._state]


class TransformerWalk:
    """Keeps the keys and values of all tokens so far, which `forward` computes again at each."""

    def __init__(self, model: Transformer, rows: int, longest: int) -> None:
        self._model = model
        weight, config = model.embedding.weight, model.config
        self._positions = sinusoids(longest, weight)
        shape = (2, rows, config.heads, longest, config.embedding_size // config.heads)
        self._kept = [weight.new_zeros(shape) for _ in range(config.layers)]
        self._last = torch.full((rows,), -1)
        self._head = TiedHead(model.embedding, rows)

    def advance(self, tokens: Tensor, begun: Tensor) -> Output:
        self._last = (self._last + 1).index_fill_(0, begun, 0)
        vectors = self._model.embedding(tokens) * math.sqrt(self._model.config.embedding_size)
        stream = vectors + self._positions[self._last]
        # What is behind the last token is from the text before, or nothing.
        seen = torch.arange(int(self._last.max()) + 1) <= self._last[:, None]
        for block, kept in zip(self._model.blocks, self._kept, strict=True):
            assert isinstance(block, Block)
            stream = stream + self._attention(block, kept, seen, block.attention_norm(stream))
            wide = functional.gelu(block.widen(block.feed_forward_norm(stream)))
            stream = stream + block.narrow(wide)
        return TiedOutput(self._head, self._model.output_norm(stream))

    def _attention(self, block: Block, kept: Tensor, seen: Tensor, inputs: Tensor) -> Tensor:
        query, key, value = (
            part(inputs).unflatten(1, (block.heads, -1))
            for part in (block.query, block.key, block.value)
        )
        rows, time = torch.arange(len(seen)), seen.shape[1]
        kept[0, rows, :, self._last], kept[1, rows, :, self._last] = key, value
        keys, values = kept[:, :, :, :time]
        attended = functional.scaled_dot_product_attention(
            query.unsqueeze(2), keys, values, attn_mask=seen[:, None, None]
        )
        mixed: Tensor = block.attention_output(attended.flatten(1))
        return mixed

    def keep(self, rows: Tensor) -> None:
        self._kept = [kept[:, rows] for kept in self._kept]
        self._last = self._last[rows]


class StateWalk:
    """Any model with a state.  Only the model knows the state before BOS, so the one behind it,
    the same for all texts, is kept from the first call."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._state: State = None
        self._first: tuple[Tensor, ...] = ()

    def advance(self, tokens: Tensor, begun: Tensor) -> Output:
        scores, after = self._model(tokens.unsqueeze(1), self._state)
        assert after is not None
        now = (scores[:, -1], *after)
        if self._state is None:
            self._first = tuple(part[:1].clone() for part in now)
        now = tuple(
            part.index_copy(0, begun, first.expand(len(begun), *first.shape[1:]))
            for part, first in zip(now, self._first, strict=True)
        )
        self._state = now[1:]
        return GivenOutput(now[0])

    def keep(self, rows: Tensor) -> None:
        assert self._state is not None
        self._state = tuple(part[rows] for part in self._state)


class WholeTextWalk:
    """Any model without a state: it reads each text from its beginning at every step.

    Shorter texts have padding behind them, which no logit before it depends on.
    """

    def __init__(self, model: LanguageModel, rows: int, longest: int) -> None:
        self._model = model
        self._texts = torch.zeros(rows, longest, dtype=torch.int64)
        self._last = torch.full((rows,), -1)

    def advance(self, tokens: Tensor, begun: Tensor) -> Output:
        rows = torch.arange(len(tokens))
        self._last = (self._last + 1).index_fill_(0, begun, 0)
        self._texts[rows, self._last] = tokens
        scores, _ = self._model(self._texts[:, : int(self._last.max()) + 1])
        return GivenOutput(scores[rows, self._last])

    def keep(self, rows: Tensor) -> None:
        self._texts, self._last = self._texts[rows], self._last[rows]
