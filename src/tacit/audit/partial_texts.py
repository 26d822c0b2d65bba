"""A model that reads many partial texts side by side, word by word, and scores what may follow.

A text begins with BOS, as in training.  A model that carries a state is given one word more; one
that does not is given the whole text again.

At 10,000 words three quarters of a step's arithmetic are the logits.  So the built-in models are
run up to the vector that scores the words, and logits are left to whoever needs them: of all words
after a row, of a few, or of those that are likeliest.  Of any other model all logits are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.evaluation.network import evaluating
from tacit.models.base import LanguageModel
from tacit.models.layers import TiedEmbedding
from tacit.models.recurrent import RecurrentModel
from tacit.models.transformer import Transformer

IntArray = NDArray[np.int64]

ROWS = 256  # logits of this many rows at a time: 10 MB at 10,000 words
_LIKELIEST = 512


@dataclass(frozen=True)
class Partials:
    """Partial texts, a row each: the vector that scores the next word, and what is remembered."""

    outputs: Tensor  # or, of a model that is not built in, the logits
    state: tuple[Tensor, ...]  # of a model that carries none: the tokens so far

    def __len__(self) -> int:
        return len(self.outputs)

    def take(self, rows: IntArray | slice) -> Partials:
        index = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        return Partials(self.outputs[index], tuple(part[index] for part in self.state))


class PartialTexts:
    """Reads texts with a model, which is left as it was."""

    def __init__(self, model: LanguageModel, bos: int) -> None:
        self.bos = bos
        self.embedding: TiedEmbedding | None = None
        if isinstance(model, RecurrentModel | Transformer):
            self.embedding = model.embedding
        self._body = model if self.embedding is None else _without_logits(model, self.embedding)
        self._likeliest: Tensor | None = None

    def start(self, texts: Sequence[Sequence[int]]) -> Partials:
        """BOS and each of the texts, which are of one length."""
        tokens = torch.tensor([[self.bos, *text] for text in texts], dtype=torch.int64)
        return self._read(tokens, None if self._body.carries_state else (tokens,))

    def step(self, partials: Partials, words: IntArray) -> Partials:
        """Each partial text with one more word."""
        column = torch.from_numpy(words).unsqueeze(1)
        if self._body.carries_state:
            return self._read(column, partials.state)
        tokens = torch.cat([partials.state[0], column], dim=1)
        return self._read(tokens, (tokens,))

    def steps(self, partials: Partials, rows: IntArray, words: IntArray) -> Partials:
        """The partial texts in `rows`, each with one more word, some at a time."""
        if not len(rows):
            return partials.take(rows)
        parts = [
            self.step(partials.take(rows[first : first + ROWS]), words[first : first + ROWS])
            for first in range(0, len(rows), ROWS)
        ]
        states = zip(*(part.state for part in parts), strict=True)
        return Partials(
            torch.cat([part.outputs for part in parts]), tuple(torch.cat(s) for s in states)
        )

    def logits(self, outputs: Tensor) -> Tensor:
        """Of all words after each row."""
        if self.embedding is None:
            return outputs
        with torch.no_grad():
            return self.embedding.score(outputs)

    def few_logits(self, outputs: Tensor, rows: IntArray, words: IntArray) -> Tensor:
        """Of each word after its row; for a built-in model only."""
        assert self.embedding is not None
        index = torch.from_numpy(words)
        with torch.no_grad():
            vectors = self.embedding.weight[index]
            scores = torch.einsum("ij,ij->i", outputs[torch.from_numpy(rows)], vectors)
            bias = self.embedding.output_bias
            return scores if bias is None else scores + bias[index]

    def likeliest_logits(self, outputs: Tensor) -> Tensor:
        """Of the words that were likeliest after the first rows asked about; built-in only."""
        assert self.embedding is not None
        with torch.no_grad():
            if self._likeliest is None:
                shares = torch.softmax(self.logits(outputs[:ROWS]), 1).mean(0)
                self._likeliest = shares.topk(min(_LIKELIEST, len(shares))).indices
            chosen, bias = self._likeliest, self.embedding.output_bias
            return nn.functional.linear(
                outputs, self.embedding.weight[chosen], None if bias is None else bias[chosen]
            )

    def _read(self, tokens: Tensor, state: tuple[Tensor, ...] | None) -> Partials:
        carries_state = self._body.carries_state
        with evaluating(self._body), torch.no_grad():
            outputs, after = self._body(tokens, state if carries_state else None)
        remembered = after if carries_state else state
        assert remembered is not None
        return Partials(outputs[:, -1], remembered)


class _InputsOnly(nn.Module):
    """A tied embedding that leaves the vectors to be scored as they are."""

    def __init__(self, embedding: TiedEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(tokens)
        return vectors

    def score(self, outputs: Tensor) -> Tensor:
        return outputs


def _without_logits(model: LanguageModel, embedding: TiedEmbedding) -> LanguageModel:
    """A twin that shares all weights, and whose results are the vectors to be scored."""
    twin = copy.copy(model)
    # A shallow copy shares the table of parts, too: it needs one of its own before a part of it is
    # replaced.
    twin._modules = {**model._modules, "embedding": _InputsOnly(embedding)}
    return twin
