"""What can be got out of a model: canaries or phrases, by Random Sampling and by Beam Search.

Both methods are those of Thakkar et al. 2020, section 3.  Random Sampling asks whether a model
prefers the canary to random words (`tacit.audit.random_sampling`), Beam Search whether it would
tell the rest to somebody who knows the first word.  On request the rank among all suffixes and the
exposure are added (`tacit.audit.suffix_rank`).

Beam Search.  The paper asks whether a canary of five words is "in its top 5 most-likely 5-word
continuations from a 1-word prefix".  A canary has four words besides its first, so our reading is:
the canary's other words are among the `top` continuations of as many words that a beam search
finds.  The paper does not say how wide its beam is; here it is 5 by default.  A beam of width w
keeps, after every word, the w likeliest of all continuations of what it kept one word before; only
candidate words can continue a text, so no beam ends early.  Of equally likely ones those come first
that continue the better beam, then those with the smaller token.

A canary is given as token ids.  With a tokenizer of whole words each token is a word; with one
that splits words, "word" means token throughout, and lengths count tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tacit.audit.random_sampling import SAMPLES, memorized_by_sampling
from tacit.audit.suffix_rank import BUDGET, rank_among_all
from tacit.audit.suffixes import FloatArray, IntArray, Split, SuffixScorer, extended
from tacit.evaluation.scoring import evaluating, top_k
from tacit.federated.cohort import one_thread
from tacit.models.base import LanguageModel
from tacit.privacy import checks

_BEAMS = 256  # rows of logits at a time

_Beam = tuple[tuple[int, ...], ...]  # continuations of one prefix, likeliest first

Progress = Callable[[int, int], None]  # verdicts and ranks done, and of how many


@dataclass(frozen=True)
class CanaryResult:
    """What was found out about one canary."""

    tokens: tuple[int, ...]
    prefix_words: int
    log_perplexity: float  # of the suffix behind the prefix, summed, in nats
    memorized_rs: bool
    memorized_bs: bool
    beam: _Beam  # continuations of its first word
    rank: float | None = None  # among all suffixes of its length
    rank_standard_error: float | None = None  # 0 if the rank is exact
    rank_method: str | None = None
    exposure: float | None = None  # in bits

    def figures(self) -> dict[str, Any]:
        """The verdicts, log-perplexity and rank: plain JSON, without the words."""
        hidden = ("tokens", "prefix_words", "beam", "rank_method")
        return {name: value for name, value in vars(self).items() if name not in hidden}


@dataclass(frozen=True)
class Extraction:
    """How to look for canaries; the defaults are those of Thakkar et al. 2020."""

    samples: int = SAMPLES
    prefix_words: int = 2
    beam_prefix_words: int = 1
    beam_width: int = 5
    top: int = 5
    shorten_prefix: bool = False  # of a phrase that is too short, to leave a suffix of one word
    ranks: bool = False  # the rank among all suffixes and the exposure as well
    rank_budget: int = BUDGET  # partial suffixes per canary, beyond which the rank is sampled

    def __post_init__(self) -> None:
        for name in ("samples", "beam_width", "top", "rank_budget"):
            checks.whole(name, getattr(self, name), at_least=1)
        checks.whole("prefix_words", self.prefix_words)
        checks.whole("beam_prefix_words", self.beam_prefix_words)
        if self.top > self.beam_width:
            raise ValueError(
                f"top must be at most beam_width, which is {self.beam_width}, got {self.top}"
            )

    def extract(
        self,
        model: LanguageModel,
        canaries: Sequence[Sequence[int]],
        *,
        bos: int,
        candidates: Sequence[int] | IntArray,
        rng: np.random.Generator,
        progress: Progress | None = None,
    ) -> list[CanaryResult]:
        """What is found out about each canary, in their order.

        `candidates` are the tokens that are words.  `progress` is told how many verdicts, and
        then ranks where they are asked for, are done, and of how many.
        """
        if not len(canaries):
            raise ValueError("canaries must not be empty: there is nothing to search for")
        # On several threads, products as small as these only wait for each other.
        with one_thread(), evaluating(model):
            scorer = SuffixScorer(model, bos=bos, candidates=candidates)
            splits = self._split(scorer, canaries, self.prefix_words)
            beam_splits = self._split(scorer, canaries, self.beam_prefix_words)
            beams = _search_beams(scorer, beam_splits, self.beam_width)
            # Ranks draw from a stream of their own: asking for them changes no verdict.
            sampling, ranking = rng.spawn(2)
            steps = len(splits) * (1 + self.ranks)

            def tell(done: int) -> None:
                if progress is not None:
                    progress(done, steps)

            sampled = memorized_by_sampling(
                scorer, splits, samples=self.samples, rng=sampling, progress=tell
            )
            results = []
            for index, split in enumerate(splits):
                beam = beams[index][: self.top]
                result = CanaryResult(
                    tokens=split.prefix + split.suffix,
                    prefix_words=len(split.prefix),
                    log_perplexity=scorer.log_perplexity(split),
                    memorized_rs=sampled[index],
                    memorized_bs=beam_splits[index].suffix in beam,
                    beam=beam,
                )
                if self.ranks:
                    rank = rank_among_all(scorer, split, rng=ranking, budget=self.rank_budget)
                    result = replace(
                        result,
                        rank=rank.rank,
                        rank_standard_error=rank.standard_error,
                        rank_method=rank.method,
                        exposure=rank.exposure,
                    )
                    tell(len(splits) + index + 1)
                results.append(result)
            return results

    def _split(
        self, scorer: SuffixScorer, canaries: Sequence[Sequence[int]], words: int
    ) -> list[Split]:
        def prefix_words(canary: Sequence[int]) -> int:
            return max(0, min(words, len(canary) - 1)) if self.shorten_prefix else words

        return [scorer.split(canary, prefix_words(canary)) for canary in canaries]


def _search_beams(scorer: SuffixScorer, splits: Sequence[Split], width: int) -> list[_Beam]:
    """For each canary, the beam of continuations of its prefix that are as long as its suffix."""
    by_lengths: dict[tuple[int, int], list[int]] = {}
    for index, (prefix, suffix) in enumerate(splits):
        by_lengths.setdefault((len(prefix), len(suffix)), []).append(index)
    at_once = max(1, _BEAMS // width)
    beams: dict[int, _Beam] = {}
    for (_, length), alike in by_lengths.items():
        for first in range(0, len(alike), at_once):
            some = alike[first : first + at_once]
            prefixes = [splits[index].prefix for index in some]
            words, _ = _beams(scorer, prefixes, length, width)
            for index, own in zip(some, words.tolist(), strict=True):
                beams[index] = tuple(map(tuple, own))
    return [beams[index] for index in range(len(splits))]


def _beams(
    scorer: SuffixScorer, prefixes: Sequence[Sequence[int]], length: int, width: int
) -> tuple[IntArray, FloatArray]:
    """The beams after `length` words: [prefixes, beams, words], and their log-perplexities."""
    count = len(prefixes)
    decoder = scorer.start(prefixes)
    words = np.zeros((count, 1, 0), np.int64)
    costs = np.zeros((count, 1))
    for depth in range(length):
        beams = words.shape[1]
        added = scorer.all_costs(decoder.output).reshape(count, beams, -1)[:, :, scorer.candidates]
        totals = (costs[:, :, None] + added).reshape(count, -1)
        chosen = top_k(torch.from_numpy(-totals), width).numpy()
        beam, index = np.divmod(chosen, len(scorer.candidates))
        newest = scorer.candidates[index]
        costs = np.take_along_axis(totals, chosen, 1)
        kept = np.take_along_axis(words, beam[:, :, None], 1)
        words = np.concatenate([kept, newest[:, :, None]], axis=2)
        if depth + 1 < length:
            rows = (np.arange(count)[:, None] * beams + beam).reshape(-1)
            decoder = extended(decoder, rows, newest.reshape(-1))
    return words, costs
