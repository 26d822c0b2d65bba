"""What can be got out of a model: canaries or phrases, by Random Sampling and by Beam Search.

Both methods are those of Thakkar et al. 2020, section 3, and are described, with what the paper
leaves open, in `tacit.audit.random_sampling` and `tacit.audit.beam_search`.  Random Sampling asks
whether a model prefers the canary to random words, Beam Search whether somebody who knows the first
word would be told the rest.  On request the rank among all suffixes and the exposure are added
(`tacit.audit.suffix_rank`).

A canary is given as token ids.  With a tokenizer of whole words each token is a word; with one
that splits words, "word" means token throughout, and lengths count tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.audit.beam_search import Beamed, search_beams
from tacit.audit.partial_texts import IntArray
from tacit.audit.random_sampling import SAMPLES, Progress, Sampled, sample_and_judge
from tacit.audit.suffix_rank import BUDGET, Rank, rank_among_all
from tacit.audit.suffix_scores import Split, SuffixScorer, split_all
from tacit.federated.cohort import one_thread
from tacit.models.base import LanguageModel
from tacit.privacy import checks


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
        with one_thread():  # products this small only wait for each other on several
            return self._extract(model, canaries, bos, candidates, rng, progress)

    def _extract(
        self,
        model: LanguageModel,
        canaries: Sequence[Sequence[int]],
        bos: int,
        candidates: Sequence[int] | IntArray,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> list[CanaryResult]:
        scorer = SuffixScorer(model, bos=bos, candidates=candidates)
        split = self._split(scorer, canaries, self.prefix_words)
        beam_split = self._split(scorer, canaries, self.beam_prefix_words)
        beamed = search_beams(scorer, beam_split, width=self.beam_width, top=self.top)
        # Ranks draw from a stream of their own: asking for them changes no verdict.
        sampling, ranking = rng.spawn(2)
        tell = progress or _to_nobody
        all_steps = len(split) * (1 + self.ranks)
        sampled = sample_and_judge(
            scorer,
            split,
            samples=self.samples,
            rng=sampling,
            progress=lambda done, _: tell(done, all_steps),
        )
        ranks: list[Rank | None] = [None] * len(split)
        if self.ranks:
            for index, parts in enumerate(split):
                ranks[index] = rank_among_all(scorer, parts, rng=ranking, budget=self.rank_budget)
                tell(len(split) + index + 1, all_steps)
        return [_result(*found) for found in zip(sampled, beamed, ranks, strict=True)]

    def _split(
        self, scorer: SuffixScorer, canaries: Sequence[Sequence[int]], words: int
    ) -> list[Split]:
        lengths = [words] * len(canaries)
        if self.shorten_prefix:
            lengths = [max(0, min(words, len(canary) - 1)) for canary in canaries]
        return split_all(scorer, canaries, lengths)


@dataclass(frozen=True)
class CanaryResult:
    """What was found out about one canary."""

    tokens: tuple[int, ...]
    prefix_words: int
    log_perplexity: float  # of the suffix behind the prefix, summed, in nats
    memorized_rs: bool
    memorized_bs: bool
    beam: tuple[tuple[int, ...], ...]  # continuations that the beam found
    rank: float | None = None  # among all suffixes of its length
    rank_standard_error: float | None = None  # 0 if the rank is exact
    rank_method: str | None = None
    exposure: float | None = None  # in bits


def extract(
    model: LanguageModel,
    canaries: Sequence[Sequence[int]],
    *,
    bos: int,
    candidates: Sequence[int] | IntArray,
    rng: np.random.Generator,
    settings: Extraction | None = None,
    progress: Progress | None = None,
) -> list[CanaryResult]:
    """`Extraction.extract` with the paper's settings unless others are given."""
    return (settings or Extraction()).extract(
        model, canaries, bos=bos, candidates=candidates, rng=rng, progress=progress
    )


def _result(sampled: Sampled, beamed: Beamed, rank: Rank | None) -> CanaryResult:
    return CanaryResult(
        tokens=sampled.tokens,
        prefix_words=sampled.prefix_words,
        log_perplexity=sampled.log_perplexity,
        memorized_rs=sampled.memorized,
        memorized_bs=beamed.memorized,
        beam=beamed.found,
        rank=None if rank is None else rank.rank,
        rank_standard_error=None if rank is None else rank.standard_error,
        rank_method=None if rank is None else rank.method,
        exposure=None if rank is None else rank.exposure,
    )


def _to_nobody(done: int, of: int) -> None:
    pass
