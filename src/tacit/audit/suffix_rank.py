"""The rank of a canary's suffix among all suffixes of its length: exact where that is affordable.

Rank 1 is the likeliest; a tie counts against the canary.  With V words there are V^3 suffixes of
three words, but only those partial suffixes matter that are no worse than the whole canary, and of
these there are at most exp(L) at every length for a canary of log-perplexity L.  The search goes
word by word and keeps them all, as long as the model has to read no more than `budget` of them.

Beyond that the rank is estimated by importance sampling, with as many partial suffixes again.  A
draw takes one word after the other, each with a chance q in proportion to a guess of how many good
suffixes go on with it: as many words as are cheap enough right after the prefix, to the power of
the words that are left.  For the last word all are counted.  With w the words drawn, and n(w) the
number of last words that make them as likely as the canary,

    rank = 1 + mean over draws of n(w) / product of q,

which is unbiased whatever the guess, since every good suffix has a chance above 0.  The draws are
independent, so that the standard error is that of a mean.

Exposure (Carlini et al. 2019, "The Secret Sharer", definition 4) says by how many bits training
narrowed down the guess of a canary:

    exposure = log2(number of possible canaries) - log2(rank of the canary)

A model that never saw the canary gives every rank with the same chance, so an exposure above b bits
has a chance of about 2^-b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tacit.audit.suffixes import ROWS, TIE, FloatArray, IntArray, Split, SuffixScorer, extended
from tacit.evaluation.decoder import Decoder

BUDGET = 4_096  # the exposure of a canary that was not planted then has an error of 0.05 bits
_LONGEST = 32  # words of a suffix; the number of suffixes must fit a float
_LEAST = 8  # draws: a variance of fewer would mean nothing
_STEPS = 256  # in which the cost that is left is looked up


@dataclass(frozen=True)
class _Rank:
    """Where a suffix stands among `possible` ones, and how that was computed."""

    rank: float
    standard_error: float  # 0 if the rank is exact
    method: Literal["exact", "importance sampling"]
    possible: float
    expanded: int  # partial suffixes that the model was run on

    @property
    def exposure(self) -> float:
        """log2(possible) - log2(rank), in bits; an estimated rank is at most `possible`."""
        return math.log2(self.possible) - math.log2(min(self.rank, self.possible))


def rank_among_all(
    scorer: SuffixScorer, split: Split, *, rng: np.random.Generator, budget: int = BUDGET
) -> _Rank:
    """The rank of a canary's suffix behind its prefix; `rng` is used only where it is sampled."""
    words = len(split.suffix)
    if words > _LONGEST:
        raise ValueError(
            f"a suffix of {words} words has more alternatives than can be counted: at most"
            f" {_LONGEST} words can be ranked"
        )
    search = _RankSearch(scorer, split)
    better = search.count_all(budget)
    method: Literal["exact", "importance sampling"] = "exact"
    error = 0.0
    if better is None:
        estimates = search.sample(max(_LEAST, budget // (words - 1)), rng)
        better, method = float(estimates.mean()), "importance sampling"
        error = float(estimates.std(ddof=1)) / math.sqrt(len(estimates))
    possible = float(len(scorer.candidates)) ** words
    return _Rank(1 + better, error, method, possible, search.expanded)


@dataclass(frozen=True)
class _Partial:
    """Partial suffixes of one length, a row each, with their log-perplexities."""

    words: IntArray  # [rows, words so far]
    costs: FloatArray
    decoder: Decoder

    def extend(self, rows: IntArray, words: IntArray, costs: FloatArray) -> _Partial:
        """Some of the rows, each with one more word and its new cost."""
        together = np.concatenate([self.words[rows], words[:, None]], axis=1)
        return _Partial(together, costs, extended(self.decoder, rows, words))


class _RankSearch:
    """Counts suffixes that are at least as likely as the canary's, itself left out."""

    def __init__(self, scorer: SuffixScorer, split: Split) -> None:
        self._scorer, self._suffix = scorer, split.suffix
        self._limit = TIE + scorer.log_perplexity(split)
        start = scorer.start([split.prefix])
        self._start = _Partial(np.zeros((1, 0), np.int64), np.zeros(1), start)
        self._first_costs = np.sort(scorer.all_costs(start.output)[0])
        self.expanded = 0

    def count_all(self, budget: int) -> float | None:
        """The exact count, or None if the model would have to read more than the budget."""
        level = self._start
        for _ in self._suffix[1:]:
            blocks: list[tuple[IntArray, IntArray, FloatArray]] = []
            for rows, totals in self._totals(level):
                row, word = np.nonzero(totals <= self._limit)
                budget -= len(row)
                if budget < 0:
                    return None
                blocks.append((rows[row], word, totals[row, word]))
            rows, words, costs = (np.concatenate(column) for column in zip(*blocks, strict=True))
            level = level.extend(rows, words, costs)
        return float(self._good_last_words(level).sum())

    def sample(self, draws: int, rng: np.random.Generator) -> FloatArray:
        """An estimate of the count by each draw; one that ends in no good suffix is 0."""
        level, copies = self._start, draws  # all draws begin with the same row
        ids, weights = np.arange(draws), np.ones(draws)
        for depth in range(1, len(self._suffix)):
            guess = self._guess(len(self._suffix) - depth)
            rows, words, costs, factors = [], [], [], []
            for block, totals in self._totals(level):
                left = np.maximum(self._limit - totals, 0) * (_STEPS / self._limit)
                chances = np.where(totals <= self._limit, guess[left.astype(np.int64)], 0)
                sums = chances.cumsum(axis=1)
                for row, index in enumerate(block):
                    if sums[row, -1] > 0:
                        drawn = rng.random(copies) * sums[row, -1]
                        word = np.searchsorted(sums[row], drawn, side="right")
                        rows.append(np.full(copies, index))
                        words.append(word)
                        costs.append(totals[row, word])
                        factors.append(sums[row, -1] / chances[row, word])
            if not rows:
                return np.zeros(draws)
            kept = np.concatenate(rows)
            if depth > 1:  # from here on a row is a draw
                ids, weights = ids[kept], weights[kept]
            weights = weights * np.concatenate(factors)
            level = level.extend(kept, np.concatenate(words), np.concatenate(costs))
            copies = 1
        estimates = np.zeros(draws)
        estimates[ids] = weights * self._good_last_words(level)
        return estimates

    def _totals(self, level: _Partial) -> Iterator[tuple[IntArray, FloatArray]]:
        """Rows by blocks, and their log-perplexities with each further word, [rows, vocabulary]."""
        for first in range(0, len(level.costs), ROWS):
            rows = np.arange(first, min(first + ROWS, len(level.costs)))
            self.expanded += len(rows)
            added = self._scorer.all_costs(level.decoder.take(torch.from_numpy(rows)).output)
            yield rows, added + level.costs[rows, None]

    def _good_last_words(self, level: _Partial) -> FloatArray:
        """How many last words make each row as likely as the canary, itself left out."""
        counts = np.zeros(len(level.costs))
        for rows, totals in self._totals(level):
            own = np.flatnonzero((level.words[rows] == self._suffix[:-1]).all(1))
            totals[own, self._suffix[-1]] = np.inf
            counts[rows] = (totals <= self._limit).sum(1)
        return counts

    def _guess(self, words: int) -> FloatArray:
        """About how many ways there are to go on for some words, by the cost that is left."""
        left = np.linspace(0, self._limit, _STEPS + 1)
        one_word = np.searchsorted(self._first_costs, left).astype(np.float64)
        return one_word ** min(words, 3) + 1
