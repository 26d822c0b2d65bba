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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.audit.exposure import exposure
from tacit.audit.partial_texts import ROWS, IntArray, Partials
from tacit.audit.strata import Drawn, Strata
from tacit.audit.suffix_scores import TIE, FloatArray, Split, SuffixScorer, split_all
from tacit.models.base import LanguageModel

BUDGET = 4_096  # the exposure of a canary nobody planted then has an error of about 0.05 bits
_LONGEST = 32  # words of a suffix; the number of suffixes must fit a float


@dataclass(frozen=True)
class Rank:
    """Where a suffix stands among `possible` ones, and how that was found out."""

    rank: float
    standard_error: float  # 0 if the rank is exact
    method: Literal["exact", "stratified sampling"]
    possible: float
    expanded: int  # partial suffixes that the model was run on

    @property
    def exposure(self) -> float:
        """log2(possible) - log2(rank), in bits."""
        return exposure(min(self.rank, self.possible), self.possible)


def rank(
    model: LanguageModel,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    bos: int,
    candidates: Sequence[int] | IntArray,
    rng: np.random.Generator,
    budget: int = BUDGET,
) -> Rank:
    """The rank of the suffix after BOS and the prefix; `rng` is used only where it is sampled."""
    scorer = SuffixScorer(model, bos=bos, candidates=candidates)
    [split] = split_all(scorer, [[*prefix, *suffix]], [len(prefix)])
    return rank_among_all(scorer, split, rng=rng, budget=budget)


def rank_among_all(
    scorer: SuffixScorer, split: Split, *, rng: np.random.Generator, budget: int = BUDGET
) -> Rank:
    """`rank` with a scorer, of a canary that is split already."""
    if not budget >= 1:
        raise ValueError(f"budget must be at least 1, got {budget}")
    if len(split[1]) > _LONGEST:
        raise ValueError(
            f"a suffix of {len(split[1])} words has more alternatives than can be counted: at most"
            f" {_LONGEST} words can be ranked"
        )
    return _Ranking(scorer, split, rng, budget).result()


@dataclass(frozen=True)
class _Level:
    """Partial suffixes of one length that are kept, a row each."""

    words: IntArray  # [rows, words so far]
    costs: FloatArray
    weights: FloatArray  # how many each stands for
    ancestors: IntArray  # which of those drawn first it goes back to; -1 if nothing was drawn yet
    partials: Partials


class _Ranking:
    """One search."""

    def __init__(
        self, scorer: SuffixScorer, split: Split, rng: np.random.Generator, budget: int
    ) -> None:
        prefix, self.suffix = split
        self.scorer, self.rng, self.left = scorer, rng, budget
        self.start = scorer.texts.start([prefix])
        self.limit = TIE + float(scorer.suffix_costs(self.start, np.array([self.suffix]))[0])
        self.first_costs = np.sort(scorer.all_costs(self.start)[0])
        self.expanded = 0
        self.first_draw: Drawn | None = None
        self.redrawn = False

    def result(self) -> Rank:
        nobody = np.zeros((1, 0), np.int64)
        level = _Level(nobody, np.zeros(1), np.ones(1), np.full(1, -1), self.start)
        for depth in range(1, len(self.suffix)):
            level = self._next(level, len(self.suffix) - depth)
        better = self._good_words(level) * level.weights
        possible = float(len(self.scorer.candidates)) ** len(self.suffix)
        error = 0.0 if self.first_draw is None else self._standard_error(better, level.ancestors)
        return Rank(
            rank=1 + float(better.sum()),
            standard_error=error,
            method="exact" if self.first_draw is None else "stratified sampling",
            possible=possible,
            expanded=self.expanded,
        )

    def _next(self, level: _Level, levels_left: int) -> _Level:
        """All partial suffixes with one more word that are good enough, or a sample of them."""
        strata = Strata(self.limit, max(self.left, 1), self.rng)
        for first in range(0, len(level.costs), ROWS):
            strata.add(first, self._totals(level, slice(first, first + ROWS)))
        affordable = strata.total <= self.left
        if affordable:
            drawn = strata.everything()
        else:
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
            partials=self.scorer.texts.steps(level.partials, rows, drawn.words),
        )

    def _totals(self, level: _Level, piece: slice) -> FloatArray:
        """Log-perplexities with each further word, [rows, vocabulary]."""
        index = np.arange(len(level.costs))[piece]
        self.expanded += len(index)
        added = self.scorer.all_costs(level.partials.take(index))
        totals: FloatArray = added + level.costs[index, None]
        return totals

    def _good_words(self, level: _Level) -> FloatArray:
        """How many last words make each row as likely as the canary, itself left out."""
        counts = np.zeros(len(level.costs))
        for first in range(0, len(counts), ROWS):
            piece = slice(first, first + ROWS)
            totals = self._totals(level, piece)
            own = np.flatnonzero((level.words[piece] == self.suffix[:-1]).all(1))
            totals[own, self.suffix[-1]] = np.inf
            counts[piece] = (totals <= self.limit).sum(1)
        return counts

    def _guess(self, levels_left: int) -> FloatArray:
        """About how many ways there are to go on with a given cost left; decides on n_h only."""
        left = np.linspace(0, self.limit, Strata.COUNT + 1)[::-1]
        one_word = np.searchsorted(self.first_costs, left[:-1]).astype(np.float64)
        return one_word ** min(levels_left, 3)

    def _standard_error(self, better: FloatArray, ancestors: IntArray) -> float:
        drawn = self.first_draw
        assert drawn is not None
        # What each of those drawn first is found to have below it, without its own weight.
        below = np.bincount(ancestors, better, len(drawn.rows)) / drawn.weights
        return drawn.standard_error(below, finite=not self.redrawn)
