"""Random Sampling: is a canary's suffix likelier than 2,000,000 random ones (Thakkar et al. 2020)?

A canary is memorized if, after its prefix (2 words in the paper), its suffix has the least
log-perplexity among random suffixes: each word uniform over the vocabulary's words, drawn with
replacement, the same suffixes for all canaries of one length.  A tie counts against the canary (a
model that knows nothing has memorized nothing), and the canary's own suffix, where it was drawn,
does not.

The verdict is that of scoring every suffix, and is reached in two ways:

- If many suffixes are likelier, one is found at once: those that look best, by what the model says
  about their words right after the prefix, are scored first.
- Else the tree of suffixes is searched by branch and bound: whatever begins with a partial suffix
  that is worse than the whole canary is left out.  At most exp(L) different partial suffixes of a
  length are not, for a canary of log-perplexity L, since their probabilities add up to at most 1.

The suffixes form a tree, so that what many of them begin with is scored once.  2,000,000 suffixes
of three words out of 10,000 have 10,000 first words and nearly 2,000,000 first pairs: all of them
share the first word's scores, and one row of a model has the second words of 200 suffixes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.audit.suffixes import ROWS, TIE, FloatArray, IntArray, Split, SuffixScorer, extended
from tacit.evaluation.decoder import Decoder

SAMPLES = 2_000_000
_PROBED = 256  # suffixes that are scored before the search begins


@dataclass(frozen=True)
class SuffixTree:
    """Different suffixes in the order of their words, [suffixes, words], and how often each came.

    A node at depth d stands for the suffixes that have their first d words in common: the root for
    all of them, a leaf for one.
    """

    suffixes: NDArray[np.int32]
    times: IntArray
    starts: tuple[IntArray, ...]  # per depth, from the root: the first suffix of each node

    @classmethod
    def of(cls, suffixes: NDArray[np.int32]) -> SuffixTree:
        """The tree of any suffixes of one length; they may repeat."""
        ordered = suffixes[np.lexsort(suffixes.T[::-1])]
        # A suffix begins a new node at every depth from its first word that differs.
        begins = np.logical_or.accumulate(ordered[1:] != ordered[:-1], axis=1)
        kept = np.flatnonzero(np.append(True, begins[:, -1]))
        times = np.diff(np.append(kept, len(ordered)))
        begins = np.concatenate([np.ones((1, begins.shape[1]), np.bool_), begins])[kept]
        starts = [np.flatnonzero(begins[:, depth]) for depth in range(begins.shape[1])]
        return cls(ordered[kept], times, (np.zeros(1, np.int64), *starts))

    @classmethod
    def random(
        cls, samples: int, words: int, candidates: IntArray, rng: np.random.Generator
    ) -> SuffixTree:
        """`samples` suffixes of `words` words, each uniform over the candidates."""
        indices = rng.integers(len(candidates), size=(samples, words), dtype=np.int32)
        return cls.of(candidates.astype(np.int32)[indices])

    @property
    def depth(self) -> int:
        """How many words a suffix has."""
        return int(self.suffixes.shape[1])

    @cached_property
    def _first_children(self) -> tuple[IntArray, ...]:
        """Per depth: the first child of each node, and behind the last node their number."""
        return tuple(
            np.append(np.searchsorted(below, here), len(below))
            for here, below in zip(self.starts, self.starts[1:], strict=False)
        )

    def words(self, depth: int, nodes: IntArray) -> IntArray:
        """The last word of each node."""
        words: IntArray = self.suffixes[self.starts[depth][nodes], depth - 1].astype(np.int64)
        return words

    def children(self, depth: int, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """All children of the nodes, and for each of them the index of its parent in `nodes`."""
        first = self._first_children[depth]
        counts = first[nodes + 1] - first[nodes]
        rows = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return first[nodes][rows] + within, rows

    def leaf(self, suffix: tuple[int, ...]) -> int:
        """The index of a suffix among all; -1 if it was not drawn."""
        low, high = 0, len(self.suffixes)
        for depth, word in enumerate(suffix):
            column = self.suffixes[low:high, depth]
            start, end = np.searchsorted(column, [word, word + 1])
            low, high = low + int(start), low + int(end)
        return low if high > low else -1


def memorized_by_sampling(
    scorer: SuffixScorer,
    splits: Sequence[Split],
    *,
    samples: int,
    rng: np.random.Generator,
    progress: Callable[[int], None],
) -> list[bool]:
    """The verdict on each canary; `progress` is told how many are done."""
    verdicts: dict[int, bool] = {}
    for length in sorted({len(split.suffix) for split in splits}):
        tree = SuffixTree.random(samples, length, scorer.candidates, rng)
        for index, split in enumerate(splits):
            if len(split.suffix) == length:
                verdicts[index] = not count_likelier(scorer, tree, split)
                progress(len(verdicts))
    return [verdicts[index] for index in range(len(splits))]


def count_likelier(scorer: SuffixScorer, tree: SuffixTree, split: Split, enough: int = 1) -> int:
    """How many suffixes of the tree, the canary's own left out, are at least as likely as it.

    The search stops as soon as it has counted `enough` of them.
    """
    search = _Search(
        scorer, tree, scorer.log_perplexity(split) + TIE, tree.leaf(split.suffix), enough
    )
    start = scorer.start([split.prefix])
    if enough == 1 and search.probe(start):
        return 1
    return search.below(0, np.zeros(1, np.int64), np.zeros(1), start)


@dataclass(frozen=True)
class _Search:
    """Looks for suffixes of a tree whose log-perplexity is at most `limit`."""

    scorer: SuffixScorer
    tree: SuffixTree
    limit: float
    own: int  # the leaf that does not count, or -1
    enough: int

    def probe(self, start: Decoder) -> bool:
        """Is there one among those that look best?"""
        first = self.scorer.all_costs(start.output)[0]
        guesses = np.zeros(len(self.tree.suffixes), np.float32)
        for column in self.tree.suffixes.T:
            guesses += first[column]
        if self.own >= 0:
            guesses[self.own] = np.inf
        count = min(_PROBED, len(guesses))
        best = np.argpartition(guesses, count - 1)[:count]
        best = best[best != self.own]
        rows = start.take(torch.zeros(len(best), dtype=torch.int64))
        costs = self.scorer.suffix_costs(rows, self.tree.suffixes[best].astype(np.int64))
        return bool((costs <= self.limit).any())

    def below(self, depth: int, nodes: IntArray, costs: FloatArray, decoder: Decoder) -> int:
        """How many there are below some nodes, from their costs and the model after them."""
        children, rows = self.tree.children(depth, nodes)
        words = self.tree.words(depth + 1, children)
        left = self.limit - costs[rows]
        added = self.scorer.word_costs(decoder.output, rows, words, left)
        kept = np.flatnonzero(added <= left)
        if depth + 1 == self.tree.depth:
            leaves = children[kept]
            return int(self.tree.times[leaves[leaves != self.own]].sum())
        totals = costs[rows[kept]] + added[kept]
        order = np.argsort(totals, kind="stable")
        kept, totals = kept[order], totals[order]
        count = 0
        for first in range(0, len(kept), ROWS):
            some = slice(first, first + ROWS)
            chosen = kept[some]
            following = extended(decoder, rows[chosen], words[chosen])
            count += self.below(depth + 1, children[chosen], totals[some], following)
            if count >= self.enough:
                break
        return count
