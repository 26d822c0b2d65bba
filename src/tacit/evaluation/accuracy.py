"""AccuracyTop1, Top3, Top5 and perplexity (McMahan et al. 2018, section 3 and appendix B).

What counts, here and in every other metric of tacit:

- Every token but the first of a sequence is a target, except BOS, which is never one: where texts
  follow each other in one sequence, that the next one begins is nothing to predict.
- EOS is a target like a word.  A model has to know when a message ends, and the probability of
  a text is only a probability if its end is part of it.
- UNK is a target, and always a mistake, even if the model predicts UNK: otherwise the smallest
  dictionary would win.  Nor is it ever a choice: "unknown" is no suggestion to show, so the
  choices are the model's words without it.  In the perplexity it counts with the probability
  that the model gives to UNK, as is usual; so perplexities compare only between models of the same
  dictionary, which is why the share of unknown targets stands beside them.
- Of equally probable tokens, the one with the smaller id is predicted first.

Words.  Figures that compare across tokenizers count words (Bagdasaryan et al. 2022, section 3.2):

- Word-level accuracy: "repeatedly generate the best tokens within each word's bounds and only
  accept the word as accurate if all generated tokens were correct".  Up to the first wrong token
  the model has generated the very text, so this is the same as each token of the word being the
  first choice after the true tokens before it.  A word with an unknown token is a mistake.
- Perplexity per word, equation 2, over all texts together: ppl(s) = exp(-log P(s) / |s|_w).  Here
  log P(s) sums over all tokens of a text, EOS with them, and |s|_w counts words and nothing else.
  It is comparable between tokenizers that can write every word.  A closed dictionary pays for UNK
  instead of for the word, which is too cheap: `unknown_rate` says for how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import nn

from tacit.evaluation.predictors import (
    Predictor,
    Tokens,
    as_predictor,
)
from tacit.evaluation.scores import Scores, score
from tacit.tokenizers.tokenizer import Tokenizer


class _Additive:
    """Counts and sums, so that the metrics of two sets of texts add up to those of both."""

    def __add__(self, other: Self) -> Self:
        ours, others = astuple(self), astuple(other)  # type: ignore[call-overload]
        return type(self)(*(one + another for one, another in zip(ours, others, strict=True)))

    def _finite(self, *names: str) -> dict[str, Any]:
        """Some figures by name; one that is not a finite number is null."""
        values = {name: getattr(self, name) for name in names}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


@dataclass(frozen=True)
class Metrics(_Additive):
    """How many targets there were and how many were predicted right; see the module."""

    targets: int = 0
    unknown: int = 0  # of these, targets outside the dictionary
    top1: int = 0
    top3: int = 0
    top5: int = 0
    log_prob: float = 0.0  # the sum of the targets' natural log-probabilities

    @property
    def accuracy_top1(self) -> float:
        """Share of targets that are the model's first choice; unknown ones never are."""
        return self._share(self.top1)

    @property
    def accuracy_top3(self) -> float:
        """Share of targets among the first three choices."""
        return self._share(self.top3)

    @property
    def accuracy_top5(self) -> float:
        """Share of targets among the first five choices."""
        return self._share(self.top5)

    @property
    def unknown_rate(self) -> float:
        """Share of targets outside the dictionary."""
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
        accuracies = ("accuracy_top1", "accuracy_top3", "accuracy_top5")
        return {"targets": self.targets} | self._finite(*accuracies, "perplexity", "unknown_rate")


def perplexity(loss: float) -> float:
    """exp(loss), and infinity where that is too large for a float."""
    return math.exp(loss) if not loss > 700 else math.inf


def metrics(scores: Scores, *, bos: int, unk: int | None) -> Metrics:
    """The metrics of scored texts; see the module for what counts."""
    kept = scores.targets != bos
    unknown = kept & (scores.targets == _token(unk))
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


@dataclass(frozen=True)
class WordMetrics(_Additive):
    """How many words there were and how many were predicted right; see the module."""

    words: int = 0
    right: int = 0
    unknown: int = 0  # words with a token outside the dictionary
    tokens: int = 0  # all targets, EOS with them
    log_prob: float = 0.0

    @property
    def word_accuracy(self) -> float:
        """Share of words all of whose tokens are first choices."""
        return self.right / self.words if self.words else math.nan

    @property
    def unknown_rate(self) -> float:
        """Share of words with a token outside the dictionary."""
        return self.unknown / self.words if self.words else math.nan

    @property
    def perplexity_per_word(self) -> float:
        """exp(-log P / words), over all texts together: equation 2 of the paper."""
        return perplexity(-self.log_prob / self.words) if self.words else math.nan

    def as_row(self) -> dict[str, Any]:
        """Under the names that files and scripts rely on; what is not a number is null."""
        figures = self._finite("word_accuracy", "perplexity_per_word", "unknown_rate")
        return {"words": self.words, "tokens": self.tokens} | figures


def word_metrics(
    scores: Scores, owners: Sequence[Sequence[int]], *, unk: int | None
) -> WordMetrics:
    """Metrics of scored texts; `owners` has the word of each token of each text, BOS included."""
    none = np.empty(0, np.int64)
    word = np.concatenate([none, *(np.asarray(owner[1:], np.int64) for owner in owners)])
    text = np.repeat(np.arange(len(owners)), np.diff(scores.first))
    inside = word >= 0
    each = text[inside] * (1 + word.max(initial=0)) + word[inside]  # one number for each word
    names, index = np.unique(each, return_inverse=True)

    def has(tokens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which words have one of these tokens."""
        return np.bincount(index, weights=tokens[inside], minlength=len(names)) > 0

    failed, unknown = has(scores.ranks != 0), has(scores.targets == _token(unk))
    return WordMetrics(
        words=len(names),
        right=int((~failed & ~unknown).sum()),
        unknown=int(unknown.sum()),
        tokens=len(scores.targets),
        log_prob=float(scores.log_probs.sum()),
    )


def _token(unk: int | None) -> int:
    """The id of UNK, or -1, which no token has, for a tokenizer without it."""
    return -1 if unk is None else unk


def evaluate_words(
    predictor: Predictor | nn.Module, tokenizer: Tokenizer, texts: Sequence[str]
) -> WordMetrics:
    """Score whole texts, each from a fresh state, and count words.

    Only between tokenizers of one normalisation are the figures of the same words.
    """
    split = [tokenizer.word_ids(text) for text in texts]
    tokens, owners = [ids for ids, _ in split], [words for _, words in split]
    scores = score(as_predictor(predictor), tokens, never=tokenizer.unk)
    return word_metrics(scores, owners, unk=tokenizer.unk)
