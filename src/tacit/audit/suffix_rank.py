"""The rank of a canary's suffix among all suffixes of its length: exact where that is affordable.

Rank 1 is the likeliest; a tie counts against the canary.  With V words there are V^3 suffixes of
three words, but only those partial suffixes matter that are no worse than the whole canary, and of
these there are at most exp(L) at every length for a canary of log-perplexity L.  The search goes
word by word and keeps them all, as long as the model has to read no more than `budget` of them.

Beyond that it goes on with a stratified sample.  The strata are intervals of the log-perplexity so
far, on which it mostly depends how many continuations are still good enough.  From stratum h, of
N_h partial suffixes, n_h are drawn at random without replacement, and each stands for N_h / n_h:

    rank = sum_h N_h mean_h,    standard error^2 = sum_h N_h^2 (1 - n_h / N_h) variance_h / n_h

with the mean and the variance of the good suffixes below those drawn.  The estimate is unbiased.
Where one draw is not enough, the sample is thinned again at the next word.  What is below those
drawn first is then itself an estimate, and the factor 1 - n_h / N_h is left out (the "ultimate
cluster" estimate of survey sampling).  The rank is still unbiased; its standard error is then an
upper bound, since strata drawn across all that was kept vary less, and may be several times too
large where nearly everything was drawn at first.

Exposure (Carlini et al. 2019, "The Secret Sharer", definition 4) says by how many bits training
narrowed down the guess of a canary:

    exposure = log2(number of possible canaries) - log2(rank of the canary)

A model that never saw the canary gives every rank with the same chance, so an exposure above b bits
has a chance of about 2^-b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.audit.suffixes import ROWS, TIE, FloatArray, IntArray, Split, SuffixScorer, extended
from tacit.evaluation.decoder import Decoder

BUDGET = 4_096  # the exposure of a canary that was not planted then has an error of 0.05 bits
_LONGEST = 32  # words of a suffix; the number of suffixes must fit a float
_LEAST = 8  # drawn from a stratum: a variance of fewer would mean nothing
_POOL = 1_000_000  # entries kept before the pool is cut down to those that can still be drawn


@dataclass(frozen=True)
class Rank:
    """Where a suffix stands among `possible` ones, and how that was computed."""

    rank: float
    standard_error: float  # 0 if the rank is exact
    method: Literal["exact", "stratified sampling"]
    possible: float
    expanded: int  # partial suffixes that the model was run on

    @property
    def exposure(self) -> float:
        """log2(possible) - log2(rank), in bits; an estimated rank is at most `possible`."""
        return math.log2(self.possible) - math.log2(min(self.rank, self.possible))


def rank_among_all(
    scorer: SuffixScorer, split: Split, *, rng: np.random.Generator, budget: int = BUDGET
) -> Rank:
    """The rank of a canary's suffix behind its prefix; `rng` is used only where it is sampled."""
    if len(split.suffix) > _LONGEST:
        raise ValueError(
            f"a suffix of {len(split.suffix)} words has more alternatives than can be counted: at"
            f" most {_LONGEST} words can be ranked"
        )
    return _Ranking(scorer, split, rng, budget).result()


@dataclass(frozen=True)
class _Drawn:
    """Entries of a stream of costs: where they are, what they cost, how many each stands for."""

    rows: IntArray
    words: IntArray
    costs: FloatArray
    weights: FloatArray
    strata: IntArray
    sizes: IntArray  # of all strata, drawn or not

    def standard_error(self, values: FloatArray, *, finite: bool) -> float:
        """Of the sum of weights * values; `finite` where a value that was drawn has no error."""
        variance = 0.0
        for stratum in np.unique(self.strata):
            drawn = values[self.strata == stratum]
            size = int(self.sizes[stratum])
            if len(drawn) < 2:
                continue
            left_out = 1 - len(drawn) / size if finite else 1.0
            variance += size**2 * left_out * float(drawn.var(ddof=1)) / len(drawn)
        return float(np.sqrt(variance))


class _Strata:
    """A stratified sample of a stream of costs that is too long to be kept.

    Entries come in blocks; those with a cost above `limit` are left out.  The strata are equal
    intervals of the cost.  Every entry gets a random number, and a stratum keeps those with the
    smallest: a simple random sample without replacement, of any size up to `most`.
    """

    COUNT: ClassVar[int] = 64

    def __init__(self, limit: float, most: int, rng: np.random.Generator) -> None:
        self.limit, self.most, self.rng = limit, max(most, _LEAST), rng
        self.sizes = np.zeros(self.COUNT, np.int64)
        self._highest = np.ones(self.COUNT, np.float32)  # numbers above it are not kept
        none = np.zeros(0, np.int64)
        self._kept: list[tuple[NDArray[Any], ...]] = [
            (np.zeros(0, np.float32), none, none, none, np.zeros(0))
        ]
        self._pool = 0

    @property
    def total(self) -> int:
        """How many entries have a cost of at most the limit."""
        return int(self.sizes.sum())

    def add(self, first_row: int, costs: FloatArray) -> None:
        """A block of entries [rows, words]."""
        rows, words = np.nonzero(costs <= self.limit)
        values = costs[rows, words]
        strata = np.minimum(values * (self.COUNT / self.limit), self.COUNT - 1).astype(np.int64)
        self.sizes += np.bincount(strata, minlength=self.COUNT)
        numbers = self.rng.random(len(rows), np.float32)
        kept = np.flatnonzero(numbers <= self._highest[strata])
        self._kept.append(
            (numbers[kept], strata[kept], first_row + rows[kept], words[kept], values[kept])
        )
        self._pool += len(kept)
        if self._pool > _POOL:
            self._cut()

    def draw(self, count: int, spread: FloatArray) -> _Drawn:
        """About `count` entries: from each stratum in proportion to its size times its spread.

        All of them, each of which then stands for itself, where there are at most `most`.
        """
        counts = self.sizes
        if self.total > self.most:
            shares = self.sizes * (spread + 1e-9)
            counts = np.ceil(count * shares / shares.sum()).astype(np.int64)
            counts = np.minimum(np.clip(counts, _LEAST, self.most), self.sizes)
        numbers, strata, rows, words, costs = self._columns()
        chosen = _smallest(numbers, strata, counts)
        strata = strata[chosen]
        weights = (self.sizes / np.maximum(counts, 1))[strata]
        return _Drawn(rows[chosen], words[chosen], costs[chosen], weights, strata, self.sizes)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return tuple(np.concatenate(column) for column in zip(*self._kept, strict=True))

    def _cut(self) -> None:
        """Keep what can still be drawn: the `most` smallest numbers of each stratum."""
        columns = self._columns()
        chosen = _smallest(columns[0], columns[1], np.full(self.COUNT, self.most))
        self._kept = [tuple(column[chosen] for column in columns)]
        self._pool = len(chosen)
        numbers, strata = self._kept[0][:2]
        full = np.bincount(strata, minlength=self.COUNT) >= self.most
        highest = np.zeros(self.COUNT, np.float32)
        np.maximum.at(highest, strata, numbers)
        self._highest = np.where(full, highest, np.float32(1))


def _smallest(numbers: NDArray[np.float32], strata: IntArray, counts: IntArray) -> IntArray:
    """Indices of the smallest numbers of each stratum, as many as `counts` says."""
    order = np.lexsort((numbers, strata))
    sizes = np.bincount(strata, minlength=len(counts))
    rank_within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank_within < counts[strata[order]]])


@dataclass(frozen=True)
class _Level:
    """Partial suffixes of one length that are kept, a row each."""

    words: IntArray  # [rows, words so far]
    costs: FloatArray
    weights: FloatArray  # how many each stands for
    ancestors: IntArray  # which of those drawn first it goes back to; -1 if nothing was drawn yet
    decoder: Decoder


class _Ranking:
    """One search."""

    def __init__(
        self, scorer: SuffixScorer, split: Split, rng: np.random.Generator, budget: int
    ) -> None:
        self.suffix = split.suffix
        self.scorer, self.rng, self.left = scorer, rng, budget
        self.start = scorer.start([split.prefix])
        self.limit = TIE + scorer.log_perplexity(split)
        self.first_costs = np.sort(scorer.all_costs(self.start.output)[0])
        self.expanded = 0
        self.first_draw: _Drawn | None = None
        self.redrawn = False

    def result(self) -> Rank:
        no_words = np.zeros((1, 0), np.int64)
        level = _Level(no_words, np.zeros(1), np.ones(1), np.full(1, -1), self.start)
        for depth in range(1, len(self.suffix)):
            level = self._next(level, len(self.suffix) - depth)
        better = self._good_words(level) * level.weights
        return Rank(
            rank=1 + float(better.sum()),
            standard_error=self._standard_error(better, level.ancestors),
            method="exact" if self.first_draw is None else "stratified sampling",
            possible=float(len(self.scorer.candidates)) ** len(self.suffix),
            expanded=self.expanded,
        )

    def _next(self, level: _Level, levels_left: int) -> _Level:
        """All partial suffixes with one more word that are good enough, or a sample of them."""
        strata = _Strata(self.limit, max(self.left, 1), self.rng)
        for first in range(0, len(level.costs), ROWS):
            strata.add(first, self._totals(level, first))
        affordable = strata.total <= self.left
        drawn = strata.draw(max(1, self.left // levels_left), self._guess(levels_left))
        self.left = max(0, self.left - len(drawn.rows))
        rows, ancestors = drawn.rows, level.ancestors[drawn.rows]
        if not affordable and self.first_draw is None:
            self.first_draw, ancestors = drawn, np.arange(len(rows))
        elif not affordable:
            self.redrawn = True
        return _Level(
            words=np.concatenate([level.words[rows], drawn.words[:, None]], axis=1),
            costs=drawn.costs,
            weights=level.weights[rows] * drawn.weights,
            ancestors=ancestors,
            decoder=extended(level.decoder, rows, drawn.words),
        )

    def _totals(self, level: _Level, first: int) -> FloatArray:
        """Log-perplexities of some rows with each further word, [rows, vocabulary]."""
        rows = np.arange(first, min(first + ROWS, len(level.costs)))
        self.expanded += len(rows)
        added = self.scorer.all_costs(level.decoder.take(torch.from_numpy(rows)).output)
        totals: FloatArray = added + level.costs[rows, None]
        return totals

    def _good_words(self, level: _Level) -> FloatArray:
        """How many last words make each row as likely as the canary, itself left out."""
        counts = np.zeros(len(level.costs))
        for first in range(0, len(counts), ROWS):
            some = slice(first, first + ROWS)
            totals = self._totals(level, first)
            own = np.flatnonzero((level.words[some] == self.suffix[:-1]).all(1))
            totals[own, self.suffix[-1]] = np.inf
            counts[some] = (totals <= self.limit).sum(1)
        return counts

    def _guess(self, levels_left: int) -> FloatArray:
        """About how many ways there are to go on with some cost left; decides on n_h only."""
        left = np.linspace(0, self.limit, _Strata.COUNT + 1)[::-1]
        one_word = np.searchsorted(self.first_costs, left[:-1]).astype(np.float64)
        return one_word ** min(levels_left, 3)

    def _standard_error(self, better: FloatArray, ancestors: IntArray) -> float:
        drawn = self.first_draw
        if drawn is None:
            return 0.0
        # How many good suffixes are below each of those drawn first, without its own weight.
        below = np.bincount(ancestors, better, len(drawn.rows)) / drawn.weights
        return drawn.standard_error(below, finite=not self.redrawn)
