"""Random suffixes as a tree, so that what many of them begin with is scored once.

2,000,000 suffixes of three words out of 10,000 have 10,000 first words and nearly 2,000,000
first pairs: all of them share the first word's scores, and one row of a model has the second words
of 200 suffixes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.audit.partial_texts import IntArray


@dataclass(frozen=True)
class SuffixTree:
    """Different suffixes in the order of their words, [suffixes, words], and how often each came.

    A node at depth d stands for the suffixes that have their first d words in common: the root for
    all of them, a leaf for one.
    """

    suffixes: NDArray[np.int32]
    times: IntArray
    starts: tuple[IntArray, ...]  # per depth, from the root: the first suffix of each node

    @property
    def depth(self) -> int:
        return int(self.suffixes.shape[1])

    @cached_property
    def drawn(self) -> int:
        """How many suffixes there are, counted as often as they came."""
        return int(self.times.sum())

    @cached_property
    def _first_children(self) -> tuple[IntArray, ...]:
        """Per depth: the first child of each node, and behind the last node their number."""
        found = []
        for here, below in zip(self.starts, self.starts[1:], strict=False):
            found.append(np.append(np.searchsorted(below, here), len(below)))
        return tuple(found)

    def words(self, depth: int, nodes: IntArray) -> IntArray:
        """The last word of each node."""
        words: IntArray = self.suffixes[self.starts[depth][nodes], depth - 1].astype(np.int64)
        return words

    def children(self, depth: int, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """All children of the nodes, and for each of them the place of its parent in `nodes`."""
        first = self._first_children[depth]
        counts = first[nodes + 1] - first[nodes]
        rows = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return first[nodes][rows] + within, rows

    def leaf(self, suffix: tuple[int, ...]) -> int:
        """The place of a suffix among all; -1 if it was not drawn."""
        low, high = 0, len(self.suffixes)
        for depth, word in enumerate(suffix):
            column = self.suffixes[low:high, depth]
            start, end = np.searchsorted(column, [word, word + 1])
            low, high = low + int(start), low + int(end)
        return low if high > low else -1


def random_suffixes(
    samples: int, words: int, candidates: IntArray, rng: np.random.Generator
) -> SuffixTree:
    """`samples` suffixes of so many words, each word uniform over the candidates."""
    places = rng.integers(len(candidates), size=(samples, words), dtype=np.int32)
    return tree_of(candidates.astype(np.int32)[places])


def tree_of(suffixes: NDArray[np.int32]) -> SuffixTree:
    """The tree of any suffixes of one length; they may repeat."""
    ordered = suffixes[np.lexsort(suffixes.T[::-1])]
    # A suffix begins a new node at every depth from its first word that differs.
    differs = ordered[1:] != ordered[:-1]
    begins = np.logical_or.accumulate(differs, axis=1)
    is_new = np.append(True, begins[:, -1])
    kept = np.flatnonzero(is_new)
    times = np.diff(np.append(kept, len(ordered)))
    begins = np.concatenate([np.ones((1, begins.shape[1]), np.bool_), begins])[kept]
    starts = [np.flatnonzero(begins[:, depth]) for depth in range(begins.shape[1])]
    return SuffixTree(ordered[kept], times, (np.zeros(1, np.int64), *starts))
