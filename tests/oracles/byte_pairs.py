"""Byte-pair encoding by the book (Sennrich 2016, algorithm 1): count all pairs again each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise


def learn(
    words: Mapping[tuple[str, ...], int],
    alphabet: list[str],
    size: int,
    join: Callable[[str, str], str] = str.__add__,
) -> list[str]:
    """The alphabet and then the merges, at most `size`; ties go to the symbols learnt first."""
    learnt = list(alphabet)
    counts = dict(words)
    while len(learnt) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in pairwise(word):
                pairs[pair] += count
        rank = {symbol: index for index, symbol in enumerate(learnt)}
        best = min(
            pairs, key=lambda pair: (-pairs[pair], *map(rank.__getitem__, pair)), default=None
        )
        if best is None or pairs[best] < 2:
            break
        merged = join(*best)
        if merged not in rank:
            learnt.append(merged)
        counts = _merge(counts, best, merged)
    return learnt


def _merge(
    counts: Mapping[tuple[str, ...], int], pair: tuple[str, str], merged: str
) -> dict[tuple[str, ...], int]:
    result: Counter[tuple[str, ...]] = Counter()
    for word, count in counts.items():
        symbols: list[str] = []
        position = 0
        while position < len(word):
            if word[position : position + 2] == pair:
                symbols.append(merged)
                position += 2
            else:
                symbols.append(word[position])
                position += 1
        result[tuple(symbols)] += count
    return dict(result)
