"""The log-perplexity of suffixes, word by word: what a search for canaries compares.

The log-perplexity of a suffix (Thakkar et al. 2020, section 3) is the sum of -log p over its words,
in nats, after BOS and the prefix; p is the softmax over the whole vocabulary, special tokens
included.  No word's cost, -log p, is below 0, so the log-perplexity of a partial suffix only grows:
that lets a search leave out all suffixes that begin with one already worse than the canary.

Where only few words follow a row, a bound comes first: a normaliser over the likeliest few hundred
words is below the true one, hence so is the cost, and most rows end there without their logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tacit.audit.partial_texts import ROWS, IntArray, Partials, PartialTexts
from tacit.models.base import LanguageModel

FloatArray = NDArray[np.float64]
Split = tuple[tuple[int, ...], tuple[int, ...]]  # a canary's prefix and suffix

# Log-perplexities closer than this are ties: in float32 the order of the operations, which depends
# on the batch, moves them by up to about a tenth of it.
TIE = 1e-5
_FEW_WORDS = 8  # per row: up to here the bound saves more than it costs


class SuffixScorer:
    """A model with the words that a suffix may be made of (`candidates`; no BOS, EOS or UNK).

    For a tokenizer that splits words, "word" means token, and the candidates are all tokens that
    are not special.  A weight, or a logit in use, that is not finite raises `ValueError`.
    """

    def __init__(self, model: LanguageModel, *, bos: int, candidates: ArrayLike) -> None:
        self.vocab_size = model.config.vocab_size
        if not 0 <= bos < self.vocab_size:
            raise ValueError(f"bos must be a token of the model's {self.vocab_size}, got {bos}")
        self.candidates = _checked_candidates(candidates, self.vocab_size)
        self._is_candidate = np.zeros(self.vocab_size, np.bool_)
        self._is_candidate[self.candidates] = True
        self._excluded = torch.from_numpy(np.flatnonzero(~self._is_candidate))
        for values in model.state_dict().values():
            _check_finite(values, "weights")
        self.texts = PartialTexts(model, bos)

    def all_costs(self, partials: Partials) -> FloatArray | NDArray[np.float32]:
        """-log p of every word after each row, [rows, vocabulary]; infinite for no candidate."""
        logits = self.texts.logits(partials.outputs)
        costs = (_normaliser(logits).unsqueeze(1) - logits).clamp_(min=0)
        _check_finite(costs)
        costs[:, self._excluded] = torch.inf
        found: FloatArray | NDArray[np.float32] = costs.numpy()
        return found

    def word_costs(
        self, partials: Partials, rows: IntArray, words: IntArray, at_most: FloatArray | None = None
    ) -> FloatArray:
        """-log p of each word after its row.

        With `at_most`, a cost above it may be given as infinite, if that is cheaper.
        """
        are_few = len(words) <= _FEW_WORDS * len(partials)
        if at_most is not None and are_few and self.texts.embedding is not None:
            return self._bounded_costs(partials, rows, words, at_most)
        logits = self.texts.logits(partials.outputs)
        row, word = torch.from_numpy(rows), torch.from_numpy(words)
        return _as_costs(_normaliser(logits)[row] - logits[row, word])

    def suffix_costs(self, start: Partials, suffixes: IntArray) -> FloatArray:
        """The log-perplexity of each suffix, [rows, words], after its row of `start`."""
        totals = np.zeros(len(suffixes))
        for first in range(0, len(suffixes), ROWS):
            piece = slice(first, first + ROWS)
            partials = start.take(piece)
            rows = np.arange(len(partials))
            for depth, words in enumerate(suffixes[piece].T):
                if depth:
                    partials = self.texts.step(partials, suffixes[piece, depth - 1])
                totals[piece] += self.word_costs(partials, rows, words)
        return totals

    def check_phrase(self, phrase: Sequence[int]) -> tuple[int, ...]:
        """A canary of words that a random suffix could be made of too."""
        for token in phrase:
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"a canary has the token {token}, which is outside the model's vocabulary of"
                    f" {self.vocab_size}"
                )
            if not self._is_candidate[token]:
                raise ValueError(
                    f"a canary has the token {token}, which is no word of the vocabulary: only"
                    " words (not BOS, EOS or UNK) can be searched for"
                )
        return tuple(int(token) for token in phrase)

    def _bounded_costs(
        self, partials: Partials, rows: IntArray, words: IntArray, at_most: FloatArray
    ) -> FloatArray:
        """Costs of a few words after built-in models; infinite where the bound is too high."""
        scores = _numpy(self.texts.few_logits(partials.outputs, rows, words))
        least = _normaliser(self.texts.likeliest_logits(partials.outputs))
        bounds = _numpy(least)[rows] - scores
        _check_finite(torch.from_numpy(bounds))
        promising = np.flatnonzero(bounds <= at_most + TIE)
        costs = np.full(len(words), np.inf)
        if len(promising):
            needed, place = np.unique(rows[promising], return_inverse=True)
            totals = _normaliser(self.texts.logits(partials.take(needed).outputs))
            costs[promising] = np.maximum(_numpy(totals)[place] - scores[promising], 0)
        return costs


def split_all(
    scorer: SuffixScorer, canaries: Sequence[Sequence[int]], prefix_words: Sequence[int]
) -> list[Split]:
    """Each canary as its prefix, of so many words, and its suffix."""
    if not len(canaries):
        raise ValueError("canaries must not be empty: there is nothing to search for")
    found = []
    for canary, words in zip(canaries, prefix_words, strict=True):
        tokens = scorer.check_phrase(canary)
        if not 0 <= words < len(tokens):
            raise ValueError(
                f"the prefix must be shorter than the canary, got a prefix of {words} words for a"
                f" canary of {len(tokens)}"
            )
        found.append((tokens[:words], tokens[words:]))
    return found


def log_perplexity(
    model: LanguageModel, prefix: Sequence[int], suffix: Sequence[int], *, bos: int
) -> float:
    """The summed -log p, in nats, of the suffix's tokens after BOS and the prefix."""
    if not len(suffix):
        raise ValueError("suffix must have at least one token")
    scorer = SuffixScorer(model, bos=bos, candidates=np.arange(model.config.vocab_size))
    scorer.check_phrase([*prefix, *suffix])
    return float(scorer.suffix_costs(scorer.texts.start([prefix]), np.array([suffix]))[0])


def _normaliser(logits: Tensor) -> Tensor:
    """log of the sum of exponentials of each row."""
    totals = torch.logsumexp(logits, 1)
    _check_finite(totals)
    return totals


def _as_costs(values: Tensor) -> FloatArray:
    """Rounding must not make a cost negative: a partial suffix would no longer bound its own."""
    _check_finite(values)
    return _numpy(values.clamp_(min=0))


def _numpy(values: Tensor) -> FloatArray:
    found: FloatArray = values.to(torch.float64).numpy()
    return found


def _check_finite(values: Tensor, what: str = "logits") -> None:
    if not torch.isfinite(values).all():
        raise ValueError(
            f"the model's {what} are not finite numbers, which would rank every canary first"
        )


def _checked_candidates(candidates: ArrayLike, vocab_size: int) -> IntArray:
    found = np.unique(np.asarray(candidates, np.int64))
    if not len(found):
        raise ValueError("candidates must name at least one token")
    if found[0] < 0 or found[-1] >= vocab_size:
        raise ValueError(
            f"candidates must be tokens of the model's {vocab_size}, got {found[0]} to {found[-1]}"
        )
    return found
