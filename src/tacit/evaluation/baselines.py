"""Unigram and bigram predictors: what a model has to beat before it has learned anything.

Unigram, add-k:         p(w) = (c(w) + k) / sum over u != BOS of (c(u) + k),  and p(BOS) = 0.

Bigram, interpolated with absolute discounting (Ney, Essen and Kneser 1994):

    p(w | v) = max(c(v, w) - D, 0) / c(v)  +  D T(v) / c(v) * p(w)

where T(v) counts the distinct successors of v, and D = n1 / (n1 + 2 n2) comes from the numbers of
bigrams seen once and twice.  A v that was never seen falls back to p(w).  Nothing is tuned on
held-out text, and both sum to 1 over all tokens but BOS, which is never a target.

Scoring is sparse.  All tokens that were never seen after v stand in the order of the unigram, so
that a target's rank follows from the few that were seen and from two searches in sorted arrays:
no distribution over the whole vocabulary is made for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tacit.evaluation.pair_counts import PairCounts
from tacit.evaluation.scoring import FloatArray, IntArray, Tokens


@dataclass(frozen=True)
class Unigram:
    """Every token with its share of the text, whatever came before."""

    probs: FloatArray  # [vocab_size]

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, BOS among them."""
        return len(self.probs)

    @classmethod
    def fit(
        cls, sequences: Iterable[Tokens], vocab_size: int, *, bos: int, add: float = 1.0
    ) -> Unigram:
        """Count the targets of the sequences; every token but BOS gets `add` on top."""
        return cls.of_counts(PairCounts.of(sequences, vocab_size, bos=bos).targets, bos, add)

    @classmethod
    def of_counts(cls, counts: FloatArray | IntArray, bos: int, add: float = 1.0) -> Unigram:
        """From how often each token is a target; counts below 0, as noise makes them, are 0."""
        if not (add > 0 and math.isfinite(add)):
            raise ValueError(f"add must be a finite number above 0, got {add}")
        raised = np.maximum(counts, 0.0) + add
        raised[bos] = 0.0
        return cls(raised / raised.sum())

    @cached_property
    def order(self) -> IntArray:
        """Tokens, the most probable first; of equal ones the smaller id."""
        return np.argsort(-self.probs, kind="stable")

    @cached_property
    def rank_of(self) -> IntArray:
        """Where each token stands in the order."""
        ranks = np.empty(self.vocab_size, np.int64)
        ranks[self.order] = np.arange(self.vocab_size)
        return ranks

    @cached_property
    def ascending(self) -> FloatArray:
        """The probabilities in reversed order, for searching."""
        return self.probs[self.order[::-1]]

    def score_targets(
        self, contexts: IntArray, targets: IntArray, never: int | None = None
    ) -> tuple[FloatArray, IntArray, IntArray]:
        """log p of each target, its rank without `never`, and its rank among all tokens.

        Contexts have no part in it.
        """
        of_all = self.rank_of[targets]
        ranks = of_all if never is None else of_all - (self.rank_of[never] < of_all)
        return _log(self.probs[targets]), ranks, of_all


@dataclass(frozen=True)
class Bigram:
    """Every token with its share among the successors of the one before it.

    Only successors that were seen are stored, by the token before them, as in a sparse matrix of
    rows.
    """

    unigram: Unigram
    row_starts: IntArray  # [vocab_size + 1]: where the successors of each token begin
    successors: IntArray  # ascending within a row
    discounted: FloatArray  # (c(v, w) - D) / c(v) of each successor
    backed_off: FloatArray  # D T(v) / c(v) of each v: the weight of the unigram after it

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, BOS among them."""
        return self.unigram.vocab_size

    @classmethod
    def fit(
        cls, sequences: Iterable[Tokens], vocab_size: int, *, bos: int, add: float = 1.0
    ) -> Bigram:
        """Count pairs of neighbours within each sequence, without those that end in BOS."""
        pair_counts = PairCounts.of(sequences, vocab_size, bos=bos)
        unigram = Unigram.of_counts(pair_counts.targets, bos, add)
        before, counts = pair_counts.before, pair_counts.counts
        discount = _discount(counts)
        totals = np.bincount(before, weights=counts, minlength=vocab_size)
        types = np.bincount(before, minlength=vocab_size)
        backed_off = np.ones(vocab_size)
        np.divide(discount * types, totals, out=backed_off, where=totals > 0)
        discounted = (counts - discount) / totals[before]
        return cls(unigram, _row_starts(types), pair_counts.after, discounted, backed_off)

    @classmethod
    def of_noisy_counts(
        cls,
        tokens: FloatArray,
        before: IntArray,
        after: IntArray,
        pairs: FloatArray,
        *,
        bos: int,
        token_noise: float,
        pair_noise: float,
    ) -> Bigram:
        """From noisy counts of all tokens, and of those pairs that stand out of the noise.

        Tokens that do not (below two standard deviations) get the mean of their counts, which has
        far less noise than each.  A pair's count is lowered by one standard deviation, because
        those that were kept are those with luck.  The entry of BOS in `tokens` is how often a text
        began.  `token_noise` and `pair_noise` are the standard deviations.
        """
        is_lost = tokens < 2 * token_noise
        is_lost[bos] = False
        share = max(float(tokens[is_lost].mean()) if is_lost.any() else 0.0, 1e-3 * token_noise)
        unigram = Unigram.of_counts(np.where(is_lost, share, tokens), bos, 1e-3 * token_noise)
        is_target = after != bos
        before, after = before[is_target], after[is_target]
        lowered = np.maximum(pairs[is_target] - pair_noise, 0.0)
        rows = np.bincount(before, weights=lowered, minlength=len(tokens))
        # Where noise has made a token rarer than its pairs, something is left for all others.
        totals = np.maximum(np.maximum(tokens, share), 1.1 * rows)
        starts = _row_starts(np.bincount(before, minlength=len(tokens)))
        return cls(unigram, starts, after, lowered / totals[before], 1 - rows / totals)

    def score_targets(
        self, contexts: IntArray, targets: IntArray, never: int | None = None
    ) -> tuple[FloatArray, IntArray, IntArray]:
        """log p(target | context), the target's rank without `never`, and that among all tokens.

        Equal pairs are scored once, and all pairs with the same context together.
        """
        keys, index = np.unique(contexts * self.vocab_size + targets, return_inverse=True)
        before, after = np.divmod(keys, self.vocab_size)
        edges = np.flatnonzero(np.diff(before, prepend=-1, append=self.vocab_size))
        probs = np.empty(len(keys))
        ranks, of_all = np.empty((2, len(keys)), np.int64)
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            row, some = _Row.of(self, int(before[start])), slice(start, end)
            probs[some], ranks[some], of_all[some] = row.score(after[some], never)
        return _log(probs)[index], ranks[index], of_all[index]

    def probs_after(self, token: int) -> FloatArray:
        """p(. | token) for all tokens, [vocab_size]."""
        row = slice(int(self.row_starts[token]), int(self.row_starts[token + 1]))
        probs: FloatArray = self.unigram.probs * self.backed_off[token]
        probs[self.successors[row]] += self.discounted[row]
        return probs


@dataclass(frozen=True)
class _Row:
    """What may follow one token: its successors, and all others in the unigram's order."""

    unigram: Unigram
    backed_off: float
    successors: IntArray
    probs: FloatArray  # of the successors

    @classmethod
    def of(cls, bigram: Bigram, token: int) -> _Row:
        row = slice(int(bigram.row_starts[token]), int(bigram.row_starts[token + 1]))
        successors, weight = bigram.successors[row], float(bigram.backed_off[token])
        probs = bigram.unigram.probs[successors] * weight + bigram.discounted[row]
        return cls(bigram.unigram, weight, successors, probs)

    def score(self, targets: IntArray, never: int | None) -> tuple[FloatArray, IntArray, IntArray]:
        """The probability and both ranks of each of these distinct targets, which are ascending."""
        probs, is_seen = self._probs(targets)
        of_all = self._unseen_before(targets, probs, is_seen)
        order = np.lexsort((self.successors, -self.probs))
        of_all += _count_before(self.successors[order], self.probs[order], targets, probs)
        if never is None:
            return probs, of_all, of_all
        own = self._probs(np.array([never]))[0][0]
        return probs, of_all - ((own > probs) | ((own == probs) & (never < targets))), of_all

    def _probs(self, tokens: IntArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """p(token | v) of some tokens, and which of them are successors."""
        probs = self.unigram.probs[tokens] * self.backed_off
        if not len(self.successors):
            return probs, np.zeros(len(tokens), np.bool_)
        index = np.minimum(np.searchsorted(self.successors, tokens), len(self.successors) - 1)
        is_seen = self.successors[index] == tokens
        return np.where(is_seen, self.probs[index], probs), is_seen

    def _unseen_before(
        self, targets: IntArray, probs: FloatArray, is_seen: npt.NDArray[np.bool_]
    ) -> IntArray:
        """How many tokens that are no successors stand before each target.

        Those that would stand before it if nothing had been seen are the first few of the
        unigram's order; of these the successors are taken off.
        """
        unigram = self.unigram
        first = unigram.rank_of[targets].copy()
        if is_seen.any():
            first[is_seen] = _count_before(
                unigram.order,
                (unigram.ascending * self.backed_off)[::-1],
                targets[is_seen],
                probs[is_seen],
            )
        return first - np.searchsorted(np.sort(unigram.rank_of[self.successors]), first)


def _count_before(
    ids: IntArray, probs: FloatArray, targets: IntArray, target_probs: FloatArray
) -> IntArray:
    """How many tokens stand before each target; `probs` fall, and of equal ones the ids rise."""
    ascending = probs[::-1]
    larger = len(ids) - np.searchsorted(ascending, target_probs, "right")
    equal_or_larger = len(ids) - np.searchsorted(ascending, target_probs, "left")
    for index in np.flatnonzero(equal_or_larger > larger):
        equal = ids[larger[index] : equal_or_larger[index]]
        larger[index] += np.searchsorted(equal, targets[index])
    return larger


def _row_starts(types: IntArray) -> IntArray:
    """Where each token's successors begin, from how many it has."""
    return np.concatenate([[0], np.cumsum(types)]).astype(np.int64)


def _log(probs: FloatArray) -> FloatArray:
    """Natural logarithms; -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log(probs)


def _discount(counts: npt.NDArray[np.integer]) -> float:
    """D = n1 / (n1 + 2 n2), kept within [0.1, 0.9] for texts too small or regular to tell."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    estimate = once / (once + 2 * twice) if once + twice else 0.5
    return min(max(estimate, 0.1), 0.9)
