"""What a trained model gives away of what was planted: the audit of one arm.

Every arm of a seed is asked about the same canaries, with the same random suffixes, and about the
same controls: phrases drawn like the canaries that were never planted.  A method that calls a
control memorized would call anything memorized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.audit.extraction import CanaryResult, Extraction
from tacit.evaluation.accuracy import evaluate
from tacit.models.base import LanguageModel
from tacit.tasks.language.canaries import Frequencies, draw_phrases, word_tokens
from tacit.tasks.language.planting import Planted
from tacit.tokenizers.tokenizer import Tokenizer
from tacit_papers.thakkar2020.grid import ExtractionSettings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Audit:
    """How the models of one seed are audited."""

    tokenizer: Tokenizer
    settings: ExtractionSettings
    held_out: Sequence[Sequence[int]]
    seed: int
    frequencies: Frequencies | None = None  # by which the canaries' words were drawn

    def of(
        self, model: LanguageModel, planted: Sequence[Planted], progress: Progress | None = None
    ) -> dict[str, Any]:
        """Held-out metrics, and what was found of each canary and of the controls."""
        controls = self.controls(planted)
        ranked = [*(one.canary.tokens for one in planted), *controls[: self._ranked]]
        others = controls[self._ranked :]
        of = len(planted) + len(controls)

        def first(done: int, all_of_them: int) -> None:
            if progress is not None:
                progress(len(ranked) * done // all_of_them, of)

        found = self._extract(model, ranked, ranks=self.settings.ranks, progress=first)
        if others:
            found += self._extract(model, others, ranks=False)
        if progress is not None:
            progress(of, of)
        metrics = evaluate(model, self.held_out, bos=self.tokenizer.bos, unk=self.tokenizer.unk)
        ours, theirs = found[: len(planted)], found[len(planted) :]
        return {
            "held_out": metrics.as_row(),
            "canaries": [
                one.as_row() | _found(result) for one, result in zip(planted, ours, strict=True)
            ],
            "controls": [_found(result) for result in theirs],
        }

    @property
    def _ranked(self) -> int:
        return self.settings.ranked_controls if self.settings.ranks else self.settings.controls

    def _extract(
        self,
        model: LanguageModel,
        phrases: Sequence[tuple[int, ...]],
        *,
        ranks: bool,
        progress: Progress | None = None,
    ) -> list[CanaryResult]:
        given = self.settings
        looking = Extraction(
            samples=given.samples,
            beam_width=given.beam_width,
            top=given.top,
            ranks=ranks,
            rank_budget=given.rank_budget,
        )
        return looking.extract(
            model,
            phrases,
            bos=self.tokenizer.bos,
            candidates=word_tokens(self.tokenizer),
            rng=np.random.default_rng([self.seed, 20]),  # the same suffixes every time
            progress=progress,
        )

    def controls(self, planted: Sequence[Planted]) -> list[tuple[int, ...]]:
        """Phrases like the canaries, none of which was planted."""
        canaries = {one.canary.tokens for one in planted}
        words = len(planted[0].canary.tokens)
        drawn = draw_phrases(
            self.settings.controls,
            words,
            self.tokenizer,
            self.seed,
            self.frequencies,
            purpose="controls",
        )
        return [tokens for tokens in drawn if tokens not in canaries]


def _found(result: CanaryResult) -> dict[str, Any]:
    return {
        "log_perplexity": result.log_perplexity,
        "memorized_rs": result.memorized_rs,
        "memorized_bs": result.memorized_bs,
        "rank": result.rank,
        "rank_standard_error": result.rank_standard_error,
        "rank_method": result.rank_method,
        "exposure": result.exposure,
    }
