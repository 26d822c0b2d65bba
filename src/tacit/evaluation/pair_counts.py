"""How often each token and each pair of neighbours is in some texts: what baselines rest on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tacit.evaluation.scoring import IntArray, Tokens, as_arrays, pairs

_TOKENS_AT_ONCE = 4_000_000  # whose pairs are counted together


@dataclass(frozen=True)
class PairCounts:
    """How often each token is a target, and how often each pair of neighbours was seen.

    Only pairs that were seen are stored, sorted by the first token and then by the second.  A pair
    that ends in BOS is none: no target begins a text.
    """

    targets: IntArray  # [vocab_size]
    before: IntArray
    after: IntArray
    counts: IntArray

    @classmethod
    def of(cls, sequences: Iterable[Tokens], vocab_size: int, *, bos: int) -> PairCounts:
        """Count in several sequences, as many at once as memory is to be used for."""
        if not 0 <= bos < vocab_size:
            raise ValueError(f"bos must be a token below {vocab_size}, got {bos}")
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2 (BOS and a target), got {vocab_size}")
        keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        for block in _blocks(sequences):
            contexts, targets = pairs(as_arrays(block, vocab_size))
            kept = targets != bos
            new, times = np.unique(contexts[kept] * vocab_size + targets[kept], return_counts=True)
            keys, counts = _merged(keys, counts, new, times)
        before, after = np.divmod(keys, vocab_size)
        totals = np.bincount(after, weights=counts, minlength=vocab_size).astype(np.int64)
        return cls(totals, before, after, counts)


def _blocks(sequences: Iterable[Tokens]) -> Iterator[list[Tokens]]:
    """The sequences in lists of a few million tokens."""
    block: list[Tokens] = []
    size = 0
    for sequence in sequences:
        block.append(sequence)
        size += len(sequence)
        if size >= _TOKENS_AT_ONCE:
            yield block
            block, size = [], 0
    yield block


def _merged(
    keys: IntArray, counts: IntArray, new: IntArray, times: IntArray
) -> tuple[IntArray, IntArray]:
    """Two sorted lists of keys with their counts as one."""
    union, index = np.unique(np.concatenate([keys, new]), return_inverse=True)
    total = np.bincount(index, weights=np.concatenate([counts, times]), minlength=len(union))
    return union, total.astype(np.int64)
