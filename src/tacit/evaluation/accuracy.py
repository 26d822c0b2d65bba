"""AccuracyTop1, Top3, Top5 and perplexity (McMahan et al. 2018, section 3 and appendix B).

What counts, here and in every other metric of tacit:

- Every token but the first of a sequence is a target, except BOS, which is never one: where texts
  follow each other in one sequence, that the next one begins is nothing to predict.
- EOS is a target like a word.  A model has to know when a message ends, and the probability of
  a text is only a probability if its end is part of it.
- UNK is a target, and always a mistake, even if the model predicts UNK: otherwise the smallest
  dictionary would win.  In the perplexity it counts with the probability that the model gives to
  UNK, as is usual; so perplexities compare only between models of the same dictionary, which is why
  the share of unknown targets stands beside them.
- Of equally probable tokens, the one with the smaller id is predicted first.

There are two accuracies, which differ in what UNK may do where the true word is another one:

- `accuracy_top1`: UNK is never a choice.  "Unknown" is no suggestion to show, so the choices are
  the model's words without it: how often somebody who types is shown the right word first.
- `accuracy_top1_unk_competes`, the papers': "the probability that the word to which the model
  assigns highest probability is correct", of all of its words, among which UNK is one.  Whoever
  predicts UNK is wrong every time, so this one is never the larger.  A figure of McMahan et al. is
  compared with this.  Their perplexity has no second form: UNK is in the softmax of both.

Words.  Figures that compare across tokenizers count words (Bagdasaryan et al. 2022, section 3.2):

- Word-level accuracy: "repeatedly generate the best tokens within each word's bounds and only
  accept the word as accurate if all generated tokens were correct".  Up to the first wrong token
  the model has generated the very text, so this is the same as each token of the word being the
  first choice after the true tokens before it.  A word with an unknown token is a mistake.  The
  best tokens of a dictionary include UNK: the paper's is `word_accuracy_unk_competes`.
- Perplexity per word, equation 2, over all texts together: ppl(s) = exp(-log P(s) / |s|_w).  Here
  log P(s) sums over all tokens of a text, EOS with them, and |s|_w counts words and nothing else.
  It is comparable between tokenizers that can write every word.  A closed dictionary pays for UNK
  instead of for the word, which is too cheap: `unknown_rate` says for how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.evaluation.names import ACCURACIES
from tacit.evaluation.scoring import Predictor, Scores, Tokens, score


@dataclass(frozen=True)
class Metrics:
    """How many targets and words there were, and how many were predicted right; see the module.

    All of it are counts and sums, so that the metrics of two sets of texts add up to those of both.
    """

    targets: int = 0
    unknown: int = 0  # of these, targets outside the dictionary
    top1: int = 0  # UNK is never a choice
    top3: int = 0
    top5: int = 0
    log_prob: float = 0.0  # the sum of the targets' natural log-probabilities
    words: int = 0  # 0 where it is not known which word a token belongs to
    right_words: int = 0  # all of whose tokens are first choices
    unknown_words: int = 0  # with a token outside the dictionary
    top1_unk_competes: int = 0  # UNK is a choice, and always a mistake
    top3_unk_competes: int = 0
    top5_unk_competes: int = 0
    right_words_unk_competes: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def accuracy_top1(self) -> float:
        """Share of targets that are the model's first choice; unknown ones never are."""
        return _ratio(self.top1, self.targets)

    @property
    def accuracy_top3(self) -> float:
        """Share of targets among the first three choices."""
        return _ratio(self.top3, self.targets)

    @property
    def accuracy_top5(self) -> float:
        """Share of targets among the first five choices."""
        return _ratio(self.top5, self.targets)

    @property
    def accuracy_top1_unk_competes(self) -> float:
        """AccuracyTop1 of McMahan et al. 2018: the same, if UNK may be the first choice."""
        return _ratio(self.top1_unk_competes, self.targets)

    @property
    def accuracy_top3_unk_competes(self) -> float:
        """Share of targets among the first three choices, if UNK may be one of them."""
        return _ratio(self.top3_unk_competes, self.targets)

    @property
    def accuracy_top5_unk_competes(self) -> float:
        """Share of targets among the first five choices, if UNK may be one of them."""
        return _ratio(self.top5_unk_competes, self.targets)

    @property
    def unknown_rate(self) -> float:
        """Share of targets outside the dictionary."""
        return _ratio(self.unknown, self.targets)

    @property
    def loss(self) -> float:
        """Mean negative log-probability per target, in nats."""
        return _ratio(-self.log_prob, self.targets)

    @property
    def perplexity(self) -> float:
        """exp of the loss; infinite if some target had probability 0."""
        return perplexity(self.loss)

    @property
    def word_accuracy(self) -> float:
        """Share of words all of whose tokens are first choices."""
        return _ratio(self.right_words, self.words)

    @property
    def word_accuracy_unk_competes(self) -> float:
        """The word accuracy of Bagdasaryan et al. 2022: the same, if UNK may be a first choice."""
        return _ratio(self.right_words_unk_competes, self.words)

    @property
    def perplexity_per_word(self) -> float:
        """exp(-log P / words), over all texts together: equation 2 of the paper."""
        return perplexity(_ratio(-self.log_prob, self.words))

    def as_row(self) -> dict[str, Any]:
        """Under the names that files and scripts rely on; what is not a number is null."""
        names = [*ACCURACIES, "perplexity", "unknown_rate"]
        if self.words:
            names += ["word_accuracy", "word_accuracy_unk_competes", "perplexity_per_word"]
        figures = {name: getattr(self, name) for name in names}
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        return {"targets": self.targets} | finite


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


def perplexity(loss: float) -> float:
    """exp(loss), and infinity where that is too large for a float."""
    return math.exp(loss) if not loss > 700 else math.inf


def evaluate(
    predictor: Predictor,
    sequences: Sequence[Tokens],
    *,
    bos: int,
    unk: int | None,
    owners: Sequence[Sequence[int]] | None = None,
) -> Metrics:
    """Score the sequences, each from a fresh state, and count; see the module for what counts.

    Args:
        predictor: a model, or a baseline such as a unigram.
        sequences: tokens of each text.
        bos: the token at the beginning of a text, which is no target.
        unk: the token for what is outside the dictionary; None if there is none.
        owners: for each token of each text the number of its word, or -1 (`Tokenizer.word_ids`);
            without it no words are counted.
    """
    scores = score(predictor, sequences, never=unk)
    counted = scores.targets != bos
    is_unknown = scores.targets == (-1 if unk is None else unk)  # no token has the id -1
    unknown = counted & is_unknown
    known = counted & ~unknown
    ranks, of_all = scores.ranks[known], scores.ranks_of_all[known]
    words = right = right_of_all = with_unknown = 0
    if owners is not None:
        words, right, right_of_all, with_unknown = _count_words(scores, owners, is_unknown)
    return Metrics(
        targets=int(counted.sum()),
        unknown=int(unknown.sum()),
        top1=int((ranks < 1).sum()),
        top3=int((ranks < 3).sum()),
        top5=int((ranks < 5).sum()),
        log_prob=float(scores.log_probs[counted].sum()),
        words=words,
        right_words=right,
        unknown_words=with_unknown,
        top1_unk_competes=int((of_all < 1).sum()),
        top3_unk_competes=int((of_all < 3).sum()),
        top5_unk_competes=int((of_all < 5).sum()),
        right_words_unk_competes=right_of_all,
    )


def _count_words(
    scores: Scores, owners: Sequence[Sequence[int]], unknown: npt.NDArray[np.bool_]
) -> tuple[int, int, int, int]:
    """How many words there are, are right, are right if UNK competes, and have an unknown token."""
    none = np.empty(0, np.int64)
    word = np.concatenate([none, *(np.asarray(owner[1:], np.int64) for owner in owners)])
    text = np.repeat(np.arange(len(owners)), np.diff(scores.first))
    inside = word >= 0
    each = text[inside] * (1 + word.max(initial=0)) + word[inside]  # one number for each word
    names, index = np.unique(each, return_inverse=True)

    def has(tokens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which words have one of these tokens."""
        return np.bincount(index, weights=tokens[inside], minlength=len(names)) > 0

    with_unknown = has(unknown)
    right, right_of_all = (
        int((~has(ranks != 0) & ~with_unknown).sum())
        for ranks in (scores.ranks, scores.ranks_of_all)
    )
    return len(names), right, right_of_all, int(with_unknown.sum())
