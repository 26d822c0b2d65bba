"""What can be scored: anything that gives, for each place in a sequence, a logit per token.

The targets of a sequence are all its tokens but the first.  A *position* counts targets through
all sequences in their order, so that chunks may come in any order and size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

IntArray = npt.NDArray[np.int64]
Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Chunk:
    """Logits for some of the targets; the memory is the predictor's again at the next chunk."""

    positions: IntArray  # [n]
    logits: Tensor  # [n, vocab_size]


class Predictor(Protocol):
    """A model, a baseline: whatever predicts the next token."""

    @property
    def vocab_size(self) -> int: ...

    def chunks(self, sequences: Sequence[IntArray]) -> Iterator[Chunk]:
        """Logits for every target of every sequence, each exactly once."""
        ...


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
