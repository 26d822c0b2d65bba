"""Random Sampling: is a canary's suffix likelier than 2,000,000 random ones (Thakkar et al. 2020)?

A canary is memorized if, after its prefix (2 words in the paper), its suffix has the least
log-perplexity among random suffixes: each word uniform over the vocabulary's words, drawn with
replacement, the same suffixes for all canaries of one length.  Its sampled rank is one more than
the random suffixes that are at least as likely.  A tie counts against the canary (a model that
knows nothing has memorized nothing), and the canary's own suffix, where it was drawn, does not.
So a canary is memorized exactly if its sampled rank is 1.

The verdict is that of scoring every suffix, and is reached in two ways:

- Somebody likelier is found at once if there are many: the suffixes that look best, by what the
  model says about their words right after the prefix, are scored first.
- Else the tree of suffixes is searched by branch and bound: whatever begins with a partial suffix
  that is worse than the whole canary is left out.  At most exp(L) different partial suffixes of a
  length are not, for a canary of log-perplexity L, since their probabilities add up to at most 1.

The sampled rank needs the whole search, which for a canary that is not memorized comes close to
scoring all: see `tacit.audit.suffix_rank` for the rank among all suffixes, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.audit.exposure import exposure
from tacit.audit.partial_texts import ROWS, IntArray, Partials
from tacit.audit.suffix_scores import TIE, FloatArray, Split, SuffixScorer, split_all
from tacit.audit.suffix_tree import SuffixTree, random_suffixes
from tacit.models.base import LanguageModel

Progress = Callable[[int, int], None]  # canaries done, canaries in all

SAMPLES = 2_000_000
_PROBED = 256  # suffixes that are scored before the search begins


@dataclass(frozen=True)
class Sampled:
    """What Random Sampling says about a canary."""

    tokens: tuple[int, ...]
    prefix_words: int
    log_perplexity: float  # of the suffix
    memorized: bool
    samples: int
    rank: int | None = None  # among the samples, if asked for

    @property
    def exposure(self) -> float | None:
        """log2(samples) - log2(rank): from 0 to 20.9 bits for 2,000,000 samples."""
        return None if self.rank is None else exposure(min(self.rank, self.samples), self.samples)


def random_sampling(
    model: LanguageModel,
    canaries: Sequence[Sequence[int]],
    *,
    bos: int,
    candidates: Sequence[int] | IntArray,
    rng: np.random.Generator,
    samples: int = SAMPLES,
    prefix_words: int = 2,
    ranks: bool = False,
    progress: Progress | None = None,
) -> list[Sampled]:
    """The verdict on each canary, and with `ranks` its rank among the samples."""
    scorer = SuffixScorer(model, bos=bos, candidates=candidates)
    split = split_all(scorer, canaries, [prefix_words] * len(canaries))
    return sample_and_judge(scorer, split, samples=samples, rng=rng, ranks=ranks, progress=progress)


def sample_and_judge(
    scorer: SuffixScorer,
    split: Sequence[Split],
    *,
    samples: int,
    rng: np.random.Generator,
    ranks: bool = False,
    progress: Progress | None = None,
) -> list[Sampled]:
    """`random_sampling` with a scorer, of canaries that are split already."""
    if not samples >= 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    lengths = sorted({len(suffix) for _, suffix in split})
    found: dict[int, Sampled] = {}
    for length in lengths:
        tree = random_suffixes(samples, length, scorer.candidates, rng)
        for index, (prefix, suffix) in enumerate(split):
            if len(suffix) == length:
                found[index] = judge(scorer, tree, prefix, suffix, rank=ranks)
                if progress is not None:
                    progress(len(found), len(split))
    return [found[index] for index in range(len(split))]


def judge(
    scorer: SuffixScorer,
    tree: SuffixTree,
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    *,
    rank: bool = False,
) -> Sampled:
    """One canary against the suffixes of a tree."""
    start = scorer.texts.start([prefix])
    total = float(scorer.suffix_costs(start, np.array([suffix]))[0])
    search = Search(scorer, tree, total + TIE, tree.leaf(suffix), only_verdict=not rank)
    better = 1 if not rank and search.probe(start) else search.count(start)
    return Sampled(
        (*prefix, *suffix), len(prefix), total, not better, tree.drawn, 1 + better if rank else None
    )


@dataclass(frozen=True)
class Search:
    """Looks for suffixes of a tree whose log-perplexity is at most `limit`."""

    scorer: SuffixScorer
    tree: SuffixTree
    limit: float
    own: int  # the leaf that does not count, or -1
    only_verdict: bool  # one is enough

    def probe(self, start: Partials) -> bool:
        """Is there one among those that look best?"""
        first = self.scorer.all_costs(start)[0]
        guesses = np.zeros(len(self.tree.suffixes), np.float32)
        for column in self.tree.suffixes.T:
            guesses += first[column]
        if self.own >= 0:
            guesses[self.own] = np.inf
        count = min(_PROBED, len(guesses))
        best = np.argpartition(guesses, count - 1)[:count]
        best = best[best != self.own]
        rows = start.take(np.zeros(len(best), np.int64))
        costs = self.scorer.suffix_costs(rows, self.tree.suffixes[best].astype(np.int64))
        return bool((costs <= self.limit).any())

    def count(self, start: Partials) -> int:
        """How many there are; or, if one is enough, whether there are any."""
        return self._below(0, np.zeros(1, np.int64), np.zeros(1), start)

    def _below(self, depth: int, nodes: IntArray, costs: FloatArray, partials: Partials) -> int:
        """The same below some nodes, whose costs so far and partial texts are given."""
        children, rows = self.tree.children(depth, nodes)
        words = self.tree.words(depth + 1, children)
        left = self.limit - costs[rows]
        added = self.scorer.word_costs(partials, rows, words, left)
        kept = np.flatnonzero(added <= left)
        if depth + 1 == self.tree.depth:
            found = children[kept]
            return int(self.tree.times[found[found != self.own]].sum())
        totals = costs[rows[kept]] + added[kept]
        order = np.argsort(totals, kind="stable")
        kept, totals = kept[order], totals[order]
        better = 0
        for first in range(0, len(kept), ROWS):
            piece = slice(first, first + ROWS)
            chosen = kept[piece]
            following = self.scorer.texts.step(partials.take(rows[chosen]), words[chosen])
            better += self._below(depth + 1, children[chosen], totals[piece], following)
            if better and self.only_verdict:
                break
        return better
