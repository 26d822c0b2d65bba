r"""Figures that compare across tokenizers, because they count words (Bagdasaryan et al. 2022, 3.2).

Word-level accuracy: "repeatedly generate the best tokens within each word's bounds and only accept
the word as accurate if all generated tokens were correct".  Up to the first wrong token the model
has generated the very text, so this is the same as each token of the word being the first choice
after the true tokens before it.  A word with an unknown token is a mistake.

Perplexity per word, equation 2, over all texts together:

    ppl(s) = exp(-log P(s) / |s|_w)

log P(s) sums over all tokens of a text, EOS with them; |s|_w counts words and nothing else.  It is
comparable between tokenizers that can write every word.  A closed dictionary pays for UNK instead
of for the word, which is too cheap: `unknown_rate` says for how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from tacit.evaluation.accuracy import Additive, perplexity
from tacit.evaluation.predictors import Predictor, as_predictor
from tacit.evaluation.scores import Scores, score
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class WordMetrics(Additive):
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
    words = right = unknown = 0
    is_right = scores.ranks == 0
    is_unknown = scores.targets == unk if unk is not None else np.zeros_like(is_right)
    for text, owner in enumerate(owners):
        where = scores.of(text)
        word = np.asarray(owner[1:], dtype=np.int64)
        inside = word >= 0
        if not inside.any():
            continue
        names, index = np.unique(word[inside], return_inverse=True)
        failed = np.bincount(index, weights=~is_right[where][inside], minlength=len(names)) > 0
        broken = np.bincount(index, weights=is_unknown[where][inside], minlength=len(names)) > 0
        words += len(names)
        right += int((~failed & ~broken).sum())
        unknown += int(broken.sum())
    return WordMetrics(words, right, unknown, len(scores.targets), float(scores.log_probs.sum()))


def evaluate_words(
    predictor: Predictor | nn.Module, tokenizer: Tokenizer, texts: Sequence[str]
) -> WordMetrics:
    """Score whole texts, each from a fresh state, and count words.

    Only between tokenizers of one normalisation are the figures of the same words.
    """
    tokens, owners = [], []
    for text in texts:
        ids, owner = tokenizer.word_ids(text)
        tokens.append(ids)
        owners.append(owner)
    scores = score(as_predictor(predictor), tokens, never=tokenizer.unk)
    return word_metrics(scores, owners, unk=tokenizer.unk)
