"""AccuracyTop1, Top3, Top5 and perplexity (McMahan et al. 2018, section 3 and appendix B).

What counts, here and in every other metric of tacit:

- Every token but the first of a sequence is a target, except BOS, which is never one: where
  texts follow each other in one sequence, nobody predicts that the next one begins.
- EOS is a target like a word.  A model has to know when a message ends, and the probability of
  a text is only a probability if its end is part of it.
- UNK is a target, and always a mistake, even if the model predicts UNK: otherwise the smallest
  dictionary would win.  Nor is it ever a choice: nobody is shown "unknown" as a suggestion, so the
  choices are the model's words without it.  In the perplexity it counts with the probability
  that the model gives to UNK, as is usual; so perplexities compare only between models of the same
  dictionary, which is why the share of unknown targets stands beside them.
- Of equally probable tokens, the one with the smaller id is predicted first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from tacit.evaluation.network import as_predictor
from tacit.evaluation.predictors import IntArray, Predictor, Tokens
from tacit.evaluation.scores import Scores, score


@dataclass(frozen=True)
class Metrics:
    """Counts and one sum, so that the metrics of two sets of texts add up to those of both."""

    targets: int = 0
    unknown: int = 0  # of these, targets outside the dictionary
    top1: int = 0
    top3: int = 0
    top5: int = 0
    log_prob: float = 0.0  # the sum of the targets' natural log-probabilities

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            self.targets + other.targets,
            self.unknown + other.unknown,
            self.top1 + other.top1,
            self.top3 + other.top3,
            self.top5 + other.top5,
            self.log_prob + other.log_prob,
        )

    @property
    def accuracy_top1(self) -> float:
        return self._share(self.top1)

    @property
    def accuracy_top3(self) -> float:
        return self._share(self.top3)

    @property
    def accuracy_top5(self) -> float:
        return self._share(self.top5)

    @property
    def unknown_rate(self) -> float:
        return self._share(self.unknown)

    @property
    def loss(self) -> float:
        """Mean negative log-probability per target, in nats."""
        return -self.log_prob / self.targets if self.targets else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the loss; infinite if some target had probability 0."""
        return perplexity(self.loss)

    def _share(self, count: int) -> float:
        return count / self.targets if self.targets else math.nan

    def as_row(self) -> dict[str, Any]:
        """Under the names that files and scripts rely on; what is not a number is null."""
        row: dict[str, Any] = {"targets": self.targets}
        for name in (
            "accuracy_top1",
            "accuracy_top3",
            "accuracy_top5",
            "perplexity",
            "unknown_rate",
        ):
            value = getattr(self, name)
            row[name] = value if math.isfinite(value) else None
        return row


def perplexity(loss: float) -> float:
    """exp(loss), and infinity where that is too large for a float."""
    return math.exp(loss) if not loss > 700 else math.inf


def counted(targets: IntArray, bos: int) -> npt.NDArray[np.bool_]:
    """Which targets are scored at all."""
    kept: npt.NDArray[np.bool_] = targets != bos
    return kept


def metrics(scores: Scores, *, bos: int, unk: int | None) -> Metrics:
    """The metrics of scored texts; see the module for what counts."""
    kept = counted(scores.targets, bos)
    unknown = kept & (scores.targets == unk) if unk is not None else np.zeros_like(kept)
    ranks = scores.ranks[kept & ~unknown]
    return Metrics(
        targets=int(kept.sum()),
        unknown=int(unknown.sum()),
        top1=int((ranks < 1).sum()),
        top3=int((ranks < 3).sum()),
        top5=int((ranks < 5).sum()),
        log_prob=float(scores.log_probs[kept].sum()),
    )


def evaluate(
    predictor: Predictor | nn.Module, sequences: Sequence[Tokens], *, bos: int, unk: int | None
) -> Metrics:
    """Score the sequences, each from a fresh state, and count."""
    scores = score(as_predictor(predictor), sequences, never=unk)
    return metrics(scores, bos=bos, unk=unk)
