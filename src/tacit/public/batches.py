"""Texts side by side for training: every text from a fresh state, as it will be scored.

Texts of similar length go into one batch, so that little is padded, and a batch is read `unroll`
tokens a step (truncated back-propagation).  Rows whose text has ended leave the batch.  Streams of
joined texts would need no padding at all, but a model trained on those has hardly ever seen the
beginning of a text without a state from some other text before it, and predicts badly there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LONGEST = 1000  # tokens; what is longer is cut, so that one book does not end up alone in a batch
POOL = 64  # batches among which texts are sorted by length

Text = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Window:
    """One step of training: the next few tokens of the first rows of a batch."""

    inputs: Tensor  # [rows, steps]
    targets: Tensor
    mask: Tensor  # which targets count: not those behind the end of a text, and never BOS
    begins: bool  # the first window of its batch: there is no state yet


class TextBatches:
    """Texts cut, grouped and shuffled by a seed; every target once per epoch."""

    def __init__(
        self,
        texts: Sequence[Text],
        *,
        batch: int,
        unroll: int,
        seed: int,
        vocab_size: int,
        bos: int,
    ) -> None:
        self.batch, self.unroll, self.seed, self.bos = batch, unroll, seed, bos
        self.pieces = [piece for text in texts for piece in _cut(text, vocab_size)]
        self.targets = sum(int((piece[1:] != bos).sum()) for piece in self.pieces)
        if not self.targets:
            raise ValueError("there is nothing to train on: the texts have no tokens to predict")

    def epoch(self, number: int) -> Iterator[Window]:
        """All windows of one pass over the texts."""
        generator = np.random.default_rng([self.seed, number])
        order = generator.permutation(len(self.pieces))
        for start in range(0, len(order), POOL * self.batch):
            pool = order[start : start + POOL * self.batch]
            lengths = np.array([len(self.pieces[index]) for index in pool])
            by_length = pool[np.argsort(-lengths, kind="stable")]
            for place in generator.permutation(-(-len(pool) // self.batch)):
                chosen = by_length[place * self.batch : (place + 1) * self.batch]
                pieces = [self.pieces[index] for index in chosen]
                yield from windows(pieces, self.unroll, self.bos)


def windows(pieces: Sequence[npt.NDArray[np.int64]], unroll: int, bos: int) -> Iterator[Window]:
    """A batch of texts that are sorted by falling length, `unroll` tokens a step."""
    lengths = np.array([len(piece) for piece in pieces])
    tokens = np.full((len(pieces), lengths[0]), bos)
    for row, piece in enumerate(pieces):
        tokens[row, : len(piece)] = piece
    joined = torch.from_numpy(tokens)
    for start in range(0, lengths[0] - 1, unroll):
        rows = int((lengths - 1 > start).sum())
        end = min(start + unroll, int(lengths[0]) - 1)
        targets = joined[:rows, start + 1 : end + 1]
        # Padding is BOS, which is never a target.
        yield Window(joined[:rows, start:end], targets, targets != bos, start == 0)


def _cut(text: Text, vocab_size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Pieces of at most LONGEST targets; each begins with the last token of the one before."""
    tokens = np.asarray(text, dtype=np.int64)
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        raise ValueError(
            f"a text holds the tokens {tokens.min()} to {tokens.max()}, and the model knows 0 to"
            f" {vocab_size - 1}: the tokenizer does not fit the model"
        )
    for start in range(0, len(tokens) - 1, LONGEST):
        yield tokens[start : start + LONGEST + 1]
