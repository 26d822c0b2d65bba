"""Unigram and bigram predictors: what a model has to beat before it has learned anything.

Unigram, add-k:         p(w) = (c(w) + k) / sum over u != BOS of (c(u) + k),  and p(BOS) = 0.

Bigram, interpolated with absolute discounting (Ney, Essen and Kneser 1994):

    p(w | v) = max(c(v, w) - D, 0) / c(v)  +  D T(v) / c(v) * p(w)

where T(v) counts the distinct successors of v, and D = n1 / (n1 + 2 n2) comes from the numbers of
bigrams seen once and twice.  A v that was never seen falls back to p(w).  Nothing is tuned on
held-out text, and both sum to 1 over all tokens but BOS, which is never a target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.evaluation.scoring import Chunk, IntArray, Tokens, as_arrays, pairs


@dataclass(frozen=True)
class Unigram:
    """Every token with its share of the text, whatever came before."""

    probs: Tensor  # [vocab_size], in float64

    @cached_property
    def log_probs(self) -> Tensor:
        """log p; -inf for BOS."""
        return self.probs.log()

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, BOS among them."""
        return len(self.probs)

    @classmethod
    def fit(
        cls, sequences: Sequence[Tokens], vocab_size: int, *, bos: int, add: float = 1.0
    ) -> Unigram:
        """Count the targets of the sequences; every token but BOS gets `add` on top."""
        if not (add > 0 and math.isfinite(add)):
            raise ValueError(f"add must be a finite number above 0, got {add}")
        if not 0 <= bos < vocab_size:
            raise ValueError(f"bos must be a token below {vocab_size}, got {bos}")
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2 (BOS and a target), got {vocab_size}")
        _, targets = pairs(as_arrays(sequences, vocab_size))
        counts = np.bincount(targets, minlength=vocab_size) + add
        counts[bos] = 0.0
        return cls(torch.from_numpy(counts / counts.sum()))

    def chunks(self, contexts: IntArray) -> Iterator[Chunk]:
        """The same logits at every position, in one chunk."""
        if len(contexts):
            yield np.arange(len(contexts)), self.log_probs.expand(len(contexts), -1)


@dataclass(frozen=True)
class Bigram:
    """Every token with its share among the successors of the one before it.

    Only pairs that were seen are stored, by their first token, as in a sparse matrix of rows.
    """

    unigram: Unigram
    row_starts: IntArray  # [vocab_size + 1]: where the successors of each token begin
    successors: IntArray
    discounted: npt.NDArray[np.float64]  # (c(v, w) - D) / c(v) of each successor
    backed_off: npt.NDArray[np.float64]  # D T(v) / c(v) of each v

    @property
    def vocab_size(self) -> int:
        return self.unigram.vocab_size

    @classmethod
    def fit(
        cls, sequences: Sequence[Tokens], vocab_size: int, *, bos: int, add: float = 1.0
    ) -> Bigram:
        """Count pairs of neighbours within each sequence, without those that end in BOS."""
        unigram = Unigram.fit(sequences, vocab_size, bos=bos, add=add)
        contexts, targets = pairs(as_arrays(sequences, vocab_size))
        kept = targets != bos
        bigrams, counts = np.unique(contexts[kept] * vocab_size + targets[kept], return_counts=True)
        before, after = bigrams // vocab_size, bigrams % vocab_size
        discount = _discount(counts)
        totals = np.bincount(before, weights=counts, minlength=vocab_size)
        types = np.bincount(before, minlength=vocab_size)
        backed_off = np.ones(vocab_size)
        np.divide(discount * types, totals, out=backed_off, where=totals > 0)
        starts = np.concatenate([[0], np.cumsum(types)]).astype(np.int64)
        return cls(unigram, starts, after, (counts - discount) / totals[before], backed_off)

    def chunks(self, contexts: IntArray) -> Iterator[Chunk]:
        """Positions with the same token before them have the same logits, made once."""
        order = np.argsort(contexts, kind="stable")
        edges = np.flatnonzero(np.diff(contexts[order])) + 1
        for group in np.split(order, edges):
            if len(group):
                logits = self.log_probs_after(int(contexts[group[0]]))
                yield group, logits.expand(len(group), -1)

    def log_probs_after(self, token: int) -> Tensor:
        """log p(. | token) for all tokens, [vocab_size], in float64."""
        row = slice(int(self.row_starts[token]), int(self.row_starts[token + 1]))
        probs = self.unigram.probs * self.backed_off[token]
        probs[torch.from_numpy(self.successors[row])] += torch.from_numpy(self.discounted[row])
        logged: Tensor = probs.log()
        return logged


def _discount(counts: npt.NDArray[np.integer]) -> float:
    """D = n1 / (n1 + 2 n2), kept within [0.1, 0.9] for texts too small or regular to tell."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    estimate = once / (once + 2 * twice) if once + twice else 0.5
    return min(max(estimate, 0.1), 0.9)
