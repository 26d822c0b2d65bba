"""What can be scored: anything that gives, for each target of a sequence, a logit per token.

The targets of a sequence are all its tokens but the first.  A *position* counts targets through
all sequences in their order, so that chunks may come in any order and size.

`NetworkPredictor` is a neural model as a predictor: many sequences at once, and logits in pieces
that stay in cache.  At 10,000 words almost all the time goes into the [targets, vocabulary] logits
and their softmax, so the plan is made around them: sequences of similar length side by side, and as
few steps at a time as fill one piece.  A model that carries a state gets a text in such pieces; one
that does not gets it whole.  Rows whose text has ended leave the batch; what is padded is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.models.base import LanguageModel, State

IntArray = npt.NDArray[np.int64]
Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]

_ROWS = 128  # logits of this many targets at a time: 5 MB at 10,000 words
_WHOLE_TEXTS = 4  # times as many where texts are given whole, or only one or two would fit


@dataclass(frozen=True)
class Chunk:
    """Logits for some of the targets; the memory is the predictor's again at the next chunk."""

    positions: IntArray  # [n]
    logits: Tensor  # [n, vocab_size]


class Predictor(Protocol):
    """A model or a baseline: whatever predicts the next token."""

    @property
    def vocab_size(self) -> int:
        """How many tokens it knows: the width of its logits."""
        ...

    def chunks(self, sequences: Sequence[IntArray]) -> Iterator[Chunk]:
        """Logits for every target of every sequence, each exactly once."""
        ...


class NetworkPredictor:
    """A `LanguageModel` behind the scoring interface.  Batching changes no row's result.

    `rows` is how many targets' logits are computed at a time.
    """

    def __init__(self, model: LanguageModel, rows: int = _ROWS) -> None:
        if not rows >= 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        self.model = model
        self.rows = rows

    @property
    def vocab_size(self) -> int:
        """How many tokens the model knows."""
        return self.model.config.vocab_size

    def chunks(self, sequences: Sequence[IntArray]) -> Iterator[Chunk]:
        """Logits for every target of every sequence, batch after batch."""
        with evaluating(self.model):
            for batch in self.batches(sequences):
                yield from batch

    def batches(self, sequences: Sequence[IntArray]) -> list[Iterator[Chunk]]:
        """The chunks of each batch.  Each may run in a thread of its own, while `evaluating`."""
        first = first_positions(sequences)
        by_length = sorted(
            (index for index, sequence in enumerate(sequences) if len(sequence) > 1),
            key=lambda index: (-len(sequences[index]), index),
        )
        batches, start = [], 0
        while start < len(by_length):
            end = start + self._batch_size(len(sequences[by_length[start]]) - 1)
            batch = by_length[start:end]
            batches.append(self._batch([sequences[index] for index in batch], first[batch]))
            start = end
        return batches

    def _batch_size(self, longest: int) -> int:
        """How many sequences go side by side."""
        if self.model.carries_state:
            return self.rows
        return max(1, _WHOLE_TEXTS * self.rows // longest)

    def _batch(self, batch: list[IntArray], first: IntArray) -> Iterator[Chunk]:
        """Logits of a batch that is sorted by falling length."""
        lengths = np.array([len(sequence) - 1 for sequence in batch])
        inputs = np.zeros((len(batch), lengths[0]), np.int64)  # what is padded is never read
        for row, sequence in enumerate(batch):
            inputs[row, : lengths[row]] = sequence[:-1]
        tokens = torch.from_numpy(inputs)
        state: State = None
        start = 0
        while start < lengths[0]:
            alive = int((lengths > start).sum())
            steps = int(lengths[0])
            if self.model.carries_state:
                steps = min(max(1, self.rows // alive), steps - start)
                state = None if state is None else tuple(part[:alive] for part in state)
            with torch.no_grad():  # not around a yield: the caller's mode is the caller's
                logits, state = self.model(tokens[:alive, start : start + steps], state)
            times = np.arange(start, start + steps)
            rows, columns = np.nonzero(times < lengths[:alive, None])
            flat = logits.flatten(0, 1)
            if len(rows) < len(flat):
                flat = flat[torch.from_numpy(rows * steps + columns)]
            positions = first[rows] + times[columns]
            for part in range(0, len(rows), self.rows):
                piece = slice(part, part + self.rows)
                yield Chunk(positions[piece], flat[piece])
            start += steps


def as_predictor(model: Predictor | nn.Module) -> Predictor:
    """A model wrapped for scoring; a predictor as it is."""
    if isinstance(model, LanguageModel):
        return NetworkPredictor(model)
    if isinstance(model, nn.Module):
        raise ValueError(
            f"{type(model).__name__} is no LanguageModel: wrap it so that it says its vocabulary"
            " size and whether it carries a state"
        )
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards it is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def as_arrays(sequences: Sequence[Tokens], vocab_size: int) -> list[IntArray]:
    """The sequences as integer arrays, or `ValueError` if one holds a token out of range."""
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    for index, array in enumerate(arrays):
        if array.ndim != 1:
            raise ValueError(f"sequence {index} must be a flat list of token ids")
        if array.size and not (array.min() >= 0 and array.max() < vocab_size):
            worst = int(array.max()) if array.max() >= vocab_size else int(array.min())
            raise ValueError(
                f"sequence {index} holds token {worst}, and the model knows tokens 0 to"
                f" {vocab_size - 1}: the tokenizer does not fit the model"
            )
    return arrays


def all_targets(sequences: Sequence[IntArray]) -> IntArray:
    """The targets of all sequences, in the order of their positions."""
    return np.concatenate([np.empty(0, np.int64), *(sequence[1:] for sequence in sequences)])


def all_contexts(sequences: Sequence[IntArray]) -> IntArray:
    """The token before each target, in the order of their positions."""
    return np.concatenate([np.empty(0, np.int64), *(sequence[:-1] for sequence in sequences)])


def first_positions(sequences: Sequence[IntArray]) -> IntArray:
    """The position of each sequence's first target, and behind them the number of targets."""
    counts = [max(len(sequence) - 1, 0) for sequence in sequences]
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
