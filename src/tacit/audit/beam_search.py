"""Beam Search: does a model continue a canary's first word with the rest (Thakkar et al. 2020)?

The paper asks whether a canary of five words is "in its top 5 most-likely 5-word continuations from
a 1-word prefix".  A canary has four words besides its first, so our reading is: the canary's other
words are among the `top` continuations of as many words that a beam search finds.  The paper does
not say how wide its beam is; `width` is 5 unless told.

A beam of width w keeps, after every word, the w likeliest of all continuations of what it kept one
word before; only candidate words can continue a text, so no beam ends early.  Of equally likely
ones those come first that continue the better beam, then those with the smaller token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.audit.partial_texts import IntArray
from tacit.audit.suffix_scores import FloatArray, Split, SuffixScorer, split_all
from tacit.evaluation.ranking import top_k
from tacit.models.base import LanguageModel

_BEAMS = 256  # rows of logits at a time


@dataclass(frozen=True)
class Beamed:
    """What Beam Search says about a canary: the continuations found, likeliest first."""

    tokens: tuple[int, ...]
    prefix_words: int
    width: int
    top: int
    memorized: bool
    found: tuple[tuple[int, ...], ...]
    log_perplexities: tuple[float, ...]


def beam_search(
    model: LanguageModel,
    canaries: Sequence[Sequence[int]],
    *,
    bos: int,
    candidates: Sequence[int] | IntArray,
    prefix_words: int = 1,
    width: int = 5,
    top: int = 5,
) -> list[Beamed]:
    """Whether each canary's words behind the prefix are among the `top` that the beam finds."""
    scorer = SuffixScorer(model, bos=bos, candidates=candidates)
    split = split_all(scorer, canaries, [prefix_words] * len(canaries))
    return search_beams(scorer, split, width=width, top=top)


def search_beams(
    scorer: SuffixScorer, split: Sequence[Split], *, width: int, top: int
) -> list[Beamed]:
    """`beam_search` with a scorer, of canaries that are split already."""
    if not width >= 1:
        raise ValueError(f"beam_width must be at least 1, got {width}")
    if not 1 <= top <= width:
        raise ValueError(f"top must be between 1 and beam_width, which is {width}, got {top}")
    found: dict[int, Beamed] = {}
    by_lengths: dict[tuple[int, int], list[int]] = {}
    for index, (prefix, suffix) in enumerate(split):
        by_lengths.setdefault((len(prefix), len(suffix)), []).append(index)
    at_once = max(1, _BEAMS // width)
    for alike in by_lengths.values():
        for first in range(0, len(alike), at_once):
            some = alike[first : first + at_once]
            results = _search([split[index] for index in some], scorer, width, top)
            found.update(zip(some, results, strict=True))
    return [found[index] for index in range(len(split))]


def _search(split: Sequence[Split], scorer: SuffixScorer, width: int, top: int) -> list[Beamed]:
    """Canaries of one length, side by side."""
    words, costs = _beams(scorer, [prefix for prefix, _ in split], len(split[0][1]), width)
    results = []
    for (prefix, suffix), mine, theirs in zip(split, words, costs, strict=True):
        continuations = tuple(tuple(row) for row in mine[:top].tolist())
        results.append(
            Beamed(
                tokens=(*prefix, *suffix),
                prefix_words=len(prefix),
                width=width,
                top=top,
                memorized=suffix in continuations,
                found=continuations,
                log_perplexities=tuple(theirs[:top].tolist()),
            )
        )
    return results


def _beams(
    scorer: SuffixScorer, prefixes: Sequence[Sequence[int]], length: int, width: int
) -> tuple[IntArray, FloatArray]:
    """The beams after `length` words: [prefixes, beams, words], and their log-perplexities."""
    count = len(prefixes)
    partials = scorer.texts.start(prefixes)
    words = np.zeros((count, 1, 0), np.int64)
    costs = np.zeros((count, 1))
    for depth in range(length):
        beams = words.shape[1]
        added = scorer.all_costs(partials).reshape(count, beams, -1)[:, :, scorer.candidates]
        totals = (costs[:, :, None] + added).reshape(count, -1)
        chosen = top_k(torch.from_numpy(-totals), width).numpy()
        beam, place = np.divmod(chosen, len(scorer.candidates))
        newest = scorer.candidates[place]
        costs = np.take_along_axis(totals, chosen, 1)
        kept = np.take_along_axis(words, beam[:, :, None], 1)
        words = np.concatenate([kept, newest[:, :, None]], axis=2)
        if depth + 1 < length:
            rows = (np.arange(count)[:, None] * beams + beam).reshape(-1)
            partials = scorer.texts.step(partials.take(rows), newest.reshape(-1))
    return words, costs
