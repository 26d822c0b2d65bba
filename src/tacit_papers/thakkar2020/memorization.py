"""What a trained model gives away of what was planted: the audit of one arm.

Every arm of a seed is asked about the same canaries, with the same random suffixes, and about the
same controls: phrases drawn like the canaries that were never planted.  A method that calls a
control memorized would call anything memorized.

How a phrase is looked for, and what rank and exposure are, is in `tacit.audit.extraction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.audit.extraction import CanaryResult, Extraction
from tacit.audit.language import draw_controls
from tacit.evaluation.accuracy import evaluate
from tacit.models.base import LanguageModel
from tacit.tasks.language.canaries import Frequencies, Planted, word_tokens
from tacit.tokenizers.tokenizer import Tokenizer
from tacit_papers.thakkar2020.grid import ExtractionSettings

# What a result's file has of a `CanaryResult`.
_FIELDS = (
    "log_perplexity",
    "memorized_rs",
    "memorized_bs",
    "rank",
    "rank_standard_error",
    "rank_method",
    "exposure",
)


@dataclass(frozen=True)
class MemorizationAudit:
    """How the models of one seed are audited."""

    tokenizer: Tokenizer
    settings: ExtractionSettings
    held_out: Sequence[Sequence[int]]  # texts of test users, as tokens
    seed: int
    frequencies: Frequencies | None = None  # by which the canaries' words were drawn

    def of(
        self,
        model: LanguageModel,
        planted: Sequence[Planted],
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> dict[str, Any]:
        """Held-out metrics, and one row for each canary and each control, as JSON.

        Exposure takes the longest, so that only `ranked_controls` of the controls have it.
        `progress` is told how many phrases are done, and of how many.
        """
        canaries = [one.canary.tokens for one in planted]
        controls = draw_controls(
            self.settings.controls, canaries, self.tokenizer, self.seed, self.frequencies
        )
        ranked = self.settings.ranked_controls if self.settings.ranks else len(controls)
        first, others = canaries + controls[:ranked], controls[ranked:]
        total = len(canaries) + len(controls)

        def rescaled(done: int, of: int) -> None:
            progress(len(first) * done // of, total)

        results = self._extract(model, first, self.settings.ranks, rescaled)
        results += self._extract(model, others, False) if others else []
        progress(total, total)
        rows = [{name: getattr(result, name) for name in _FIELDS} for result in results]
        metrics = evaluate(model, self.held_out, bos=self.tokenizer.bos, unk=self.tokenizer.unk)
        return {
            "held_out": metrics.as_row(),
            "canaries": [
                one.as_row() | row for one, row in zip(planted, rows[: len(planted)], strict=True)
            ],
            "controls": rows[len(planted) :],
        }

    def _extract(
        self,
        model: LanguageModel,
        phrases: Sequence[tuple[int, ...]],
        ranks: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[CanaryResult]:
        """What is found of each phrase; `ranks` asks for rank and exposure as well."""
        extraction = Extraction(
            samples=self.settings.samples,
            beam_width=self.settings.beam_width,
            top=self.settings.top,
            ranks=ranks,
            rank_budget=self.settings.rank_budget,
        )
        return extraction.extract(
            model,
            phrases,
            bos=self.tokenizer.bos,
            candidates=word_tokens(self.tokenizer),
            rng=np.random.default_rng([self.seed, 20]),  # the same suffixes every time
            progress=progress,
        )
