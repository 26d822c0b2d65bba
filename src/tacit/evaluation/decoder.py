"""One incremental decoder: many texts side by side through a model, one token per row and step.

Sampling, word suggestions and the searches of extraction all build texts token by token.  A
`Decoder` remembers what the model needs of each text so far, so that a step costs one token:

- a recurrent model keeps its state, and the gates' kernels are stacked once for all steps;
- a Transformer keeps the keys and values of all earlier tokens, if told how long a text can get;
- any other model with a state is called with that state;
- any other model is given each text whole at every step.

At 10,000 words three quarters of a step's arithmetic are the logits.  So the built-in models run up
to the vector that scores the words, and an `Output` computes the logits that its reader asks for.

Guarantee.  However a row is computed, its logits are those that the model's `forward` gives for
that text by itself, up to rounding.

The model must be in evaluation mode (`tacit.evaluation.scoring.evaluating`), since dropout
would make the rows random.
"""

from __future__ import annotations

import abc
import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from tacit.models.base import LanguageModel
from tacit.models.layers import TiedEmbedding
from tacit.models.recurrent import GatedLayer, RecurrentModel
from tacit.models.transformer import Transformer, TransformerBlock, sinusoids

_KEPT_VALUES = 2**24  # keys and values that a Transformer may keep: 64 MB
_WHOLE_TEXTS = 1_024  # tokens side by side where a model reads its texts whole at every step

_LARGEST_EXPONENT = 100.0  # 2^100, times as many words as there may be, is still a float32
_TILE = 2_000  # words at a time, so that the powers find the logits in the cache


class _TiedHead:
    """The product of output vectors with a tied embedding, into memory that all steps share.

    With new memory for every step, sampling would take a third longer.
    """

    def __init__(self, embedding: TiedEmbedding) -> None:
        bias = embedding.output_bias
        self.weight = embedding.weight.detach()
        self.bias = None if bias is None else bias.detach()
        self._memory = self.weight.new_empty(0, len(self.weight))
        self._tiles = [tile.t() for tile in torch.split(self.weight, _TILE)]
        self._biases: Sequence[Tensor | None] = [None] * len(self._tiles)
        if self.bias is not None:
            self._biases = torch.split(self.bias, _TILE)
        self._norm = float(torch.linalg.vector_norm(self.weight, dim=1).max())
        self._largest_bias = 0.0 if self.bias is None else float(self.bias.abs().max())

    def bound(self, vectors: Tensor) -> float:
        """Upper bound on every |logit|: |<o, e_w> + b_w| <= |o| max |e_w| + max |b_w|."""
        norms = torch.linalg.vector_norm(vectors, dim=1)
        return float(norms.max()) * self._norm + self._largest_bias

    def fill(self, vectors: Tensor, scale: float | None = None) -> Tensor:
        """The logits, or with a scale 2^(scale * logits), in the shared memory."""
        if len(self._memory) < len(vectors):
            self._memory = self.weight.new_empty(len(vectors), len(self.weight))
        memory = self._memory[: len(vectors)]
        alpha = 1.0 if scale is None else scale
        pieces = torch.split(memory, _TILE, dim=1)
        for piece, tile, bias in zip(pieces, self._tiles, self._biases, strict=True):
            before, beta = (piece, 0.0) if bias is None else (bias, alpha)
            torch.addmm(before, vectors, tile, beta=beta, alpha=alpha, out=piece)
            if scale is not None:
                piece.exp2_()
        return memory


@dataclass(frozen=True)
class Output:
    """What a model says after one step, a row per text.

    With a head, `values` are the vectors that it scores, and no logit is computed before it is
    asked for; without one they are the logits.
    """

    values: Tensor
    head: _TiedHead | None = None

    def __len__(self) -> int:
        return len(self.values)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """[rows, vocabulary], to be used or overwritten before the next call: it is shared."""
        return self.values if self.head is None else self.head.fill(self.values)

    @torch.no_grad()
    def powers(self, scale: float) -> Tensor | None:
        """2^(scale * logits), or None where a float32 may not hold them.

        To draw from softmax(logits / T), exp(logits / T) will do without subtracting its maximum,
        wherever it is sure to be within the range of floats.  `_TiedHead.bound` says so before the
        logits are computed, which saves two passes of five over the [rows, vocabulary] array.
        Powers of 2 take half the time of those of e.
        """
        # Written so that NaN fails.
        if self.head is None or not self.head.bound(self.values) * scale <= _LARGEST_EXPONENT:
            return None
        return self.head.fill(self.values, scale)

    @torch.no_grad()
    def logits_at(self, rows: Tensor, words: Tensor) -> Tensor:
        """[n]: the logit of each word after its row, without computing those of other words."""
        if self.head is None:
            return self.values[rows, words]
        scores = torch.einsum("ij,ij->i", self.values[rows], self.head.weight[words])
        return scores if self.head.bias is None else scores + self.head.bias[words]

    @torch.no_grad()
    def logits_among(self, words: Tensor) -> Tensor:
        """[rows, len(words)]: the logits of some words only."""
        if self.head is None:
            return self.values[:, words]
        bias = None if self.head.bias is None else self.head.bias[words]
        return functional.linear(self.values, self.head.weight[words], bias)

    def take(self, rows: Tensor) -> Output:
        """The output after some of the rows."""
        return Output(self.values[rows], self.head)


class Decoder(abc.ABC):
    """Partial texts side by side, a row each.  Every text begins with the same token, BOS.

    `_rows` is all that is remembered of the texts so far: tensors with an entry for each row, of
    which the first holds the values of the `Output` after the last tokens.
    """

    _head: _TiedHead | None = None
    _rows: tuple[Tensor, ...] = ()

    @abc.abstractmethod
    def advance(self, tokens: Tensor, begun: Tensor | None = None) -> None:
        """Read one more token per row; in the rows `begun` it is the first of a new text."""

    @property
    def output(self) -> Output:
        """What the model says after the tokens so far."""
        return Output(self._rows[0], self._head)

    def take(self, rows: Tensor) -> Self:
        """An independent decoder with these rows in this order, so that a search can branch."""
        taken = copy.copy(self)
        taken._rows = tuple(part[rows] for part in self._rows)
        return taken


def decoder_for(model: LanguageModel, rows: int = 1, *, longest: int | None = None) -> Decoder:
    """The fastest decoder for the model, with `rows` texts that have no token yet.

    `longest` is the most tokens that a text will get.  Given it, a Transformer keeps keys and
    values for so many tokens of every row.  Left out, it reads each text again at every step, which
    suits a search over very many short texts.
    """
    if isinstance(model, RecurrentModel) and type(model).forward is RecurrentModel.forward:
        return _RecurrentDecoder(model, rows)
    if _is_transformer(model):
        if longest is not None:
            return _TransformerDecoder(model, rows, longest)
        head = _TiedHead(model.embedding)
        return _WholeTextDecoder(lambda texts: _transformer_vectors(model, texts), head, rows)
    if model.carries_state:
        return _StateDecoder(model)
    return _WholeTextDecoder(lambda texts: model(texts)[0], None, rows)


def most_rows(model: LanguageModel, longest: int) -> int:
    """How many rows may be side by side, by what a decoder keeps or computes for each."""
    if _is_transformer(model):
        config = model.config
        return max(1, _KEPT_VALUES // (2 * config.layers * config.embedding_size * longest))
    return sys.maxsize if model.carries_state else max(1, _WHOLE_TEXTS // longest)


def _is_transformer(model: LanguageModel) -> TypeGuard[Transformer]:
    return isinstance(model, Transformer) and type(model).forward is Transformer.forward


def _transformer_vectors(model: Transformer, tokens: Tensor) -> Tensor:
    """`Transformer.forward` up to the vectors that score the words."""
    vectors = model.embedding(tokens) * math.sqrt(model.config.embedding_size)
    stream = vectors + sinusoids(tokens.shape[1], vectors)
    for block in model.blocks:
        stream = block(stream)
    normalised: Tensor = model.output_norm(stream)
    return normalised


class _RecurrentDecoder(Decoder):
    """Stacks the gates' kernels once, which `forward` does at every call."""

    def __init__(self, model: RecurrentModel, rows: int) -> None:
        self._model = model
        self._head = _TiedHead(model.embedding)
        self._layers: list[tuple[GatedLayer, Tensor, Tensor, Tensor]] = []
        inputs = model.config.embedding_size  # without the context behind it, which is zero
        for layer in model.layers:
            assert isinstance(layer, GatedLayer)
            kernel = torch.cat([getattr(layer, f"{gate}_kernel") for gate in layer.gates]).detach()
            bias = torch.cat([getattr(layer, f"{gate}_bias") for gate in layer.gates]).detach()
            recurrent = kernel[:, layer.inputs :].t().contiguous()
            self._layers.append((layer, kernel[:, :inputs].t().contiguous(), bias, recurrent))
            inputs = layer.cells
        zero = model.embedding.weight.new_zeros(rows, model.config.cells)
        self._rows = (zero,) * (1 + model.layer.state_tensors * len(self._layers))

    @torch.no_grad()
    def advance(self, tokens: Tensor, begun: Tensor | None = None) -> None:
        vectors, state = self._model.embedding(tokens), iter(self._rows[1:])
        after: tuple[Tensor, ...] = ()
        for layer, kernel, bias, recurrent in self._layers:
            before = tuple(islice(state, layer.state_tensors))
            if begun is not None:
                for part in before:
                    part.index_fill_(0, begun, 0)
            now = layer.step(torch.addmm(bias, vectors, kernel), recurrent, before)
            after, vectors = (*after, *now), now[0]
        self._rows = (self._model.projection(vectors), *after)


class _TransformerDecoder(Decoder):
    """Keeps the keys and values of all tokens so far, which `forward` computes again at each."""

    def __init__(self, model: Transformer, rows: int, longest: int) -> None:
        self._model = model
        self._head = _TiedHead(model.embedding)
        weight, config = model.embedding.weight, model.config
        self._positions = sinusoids(longest, weight)
        shape = (rows, config.heads, longest, config.embedding_size // config.heads)
        kept = (weight.new_zeros(shape) for _ in range(2 * config.layers))
        vectors = weight.new_zeros(rows, config.embedding_size)
        self._rows = (vectors, torch.full((rows,), -1), *kept)

    @torch.no_grad()
    def advance(self, tokens: Tensor, begun: Tensor | None = None) -> None:
        _, last, *kept = self._rows
        last = _advanced(last, begun)
        vectors = self._model.embedding(tokens) * math.sqrt(self._model.config.embedding_size)
        stream = vectors + self._positions[last]
        # What is behind the last token is from the text before, or nothing.
        seen = torch.arange(int(last.max()) + 1) <= last[:, None]
        for block, keys, values in zip(self._model.blocks, kept[::2], kept[1::2], strict=True):
            assert isinstance(block, TransformerBlock)
            inputs = block.attention_norm(stream)
            query, key, value = (
                part(inputs).unflatten(1, (block.heads, -1))
                for part in (block.query, block.key, block.value)
            )
            rows = torch.arange(len(last))
            keys[rows, :, last], values[rows, :, last] = key, value
            attended = functional.scaled_dot_product_attention(
                query.unsqueeze(2),
                keys[:, :, : seen.shape[1]],
                values[:, :, : seen.shape[1]],
                attn_mask=seen[:, None, None],
            )
            stream = stream + block.attention_output(attended.flatten(1))
            wide = functional.gelu(block.widen(block.feed_forward_norm(stream)))
            stream = stream + block.narrow(wide)
        self._rows = (self._model.output_norm(stream), last, *kept)


class _StateDecoder(Decoder):
    """Any model with a state.

    Only the model knows its state before BOS.  So the logits and the state after BOS, which are
    the same for all texts, are kept from the first call for the rows that begin a text later.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._after_bos: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def advance(self, tokens: Tensor, begun: Tensor | None = None) -> None:
        scores, state = self._model(tokens.unsqueeze(1), self._rows[1:] or None)
        assert state is not None
        now = (scores[:, -1], *state)
        if not self._rows:
            self._after_bos = tuple(part[:1].clone() for part in now)
        elif begun is not None:
            now = tuple(
                part.index_copy(0, begun, first.expand(len(begun), *first.shape[1:]))
                for part, first in zip(now, self._after_bos, strict=True)
            )
        self._rows = now


class _WholeTextDecoder(Decoder):
    """Reads each text from its beginning whenever the output is asked for.

    Shorter texts have padding behind them, which no logit before it depends on.
    """

    def __init__(
        self, read: Callable[[Tensor], Tensor], head: _TiedHead | None, rows: int, width: int = 8
    ) -> None:
        self._read, self._head = read, head
        self._rows = (torch.zeros(rows, width, dtype=torch.int64), torch.full((rows,), -1))
        self._output: Output | None = None

    def advance(self, tokens: Tensor, begun: Tensor | None = None) -> None:
        self._output = None
        texts, last = self._rows
        last = _advanced(last, begun)
        if int(last.max()) == texts.shape[1]:
            texts = functional.pad(texts, (0, texts.shape[1]))
        texts[torch.arange(len(tokens)), last] = tokens
        self._rows = texts, last

    @property
    def output(self) -> Output:
        """What the model gives for the last token of each text, some texts at a time."""
        if self._output is None:
            texts, last = self._rows
            width = int(last.max()) + 1
            some = max(1, _WHOLE_TEXTS // width)
            parts = zip(torch.split(texts[:, :width], some), torch.split(last, some), strict=True)
            with torch.no_grad():
                values = [self._read(part)[torch.arange(len(part)), end] for part, end in parts]
            self._output = Output(torch.cat(values), self._head)
        return self._output

    def take(self, rows: Tensor) -> Self:
        taken = super().take(rows)
        taken._output = None if self._output is None else self._output.take(rows)
        return taken


def _advanced(last: Tensor, begun: Tensor | None) -> Tensor:
    """The index of each row's last token after one more; 0 in rows that begin a text."""
    last = last + 1
    return last if begun is None else last.index_fill_(0, begun, 0)
