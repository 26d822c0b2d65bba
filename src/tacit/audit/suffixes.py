"""The log-perplexity of suffixes, word by word: what every search for canaries compares.

A canary is searched for behind a prefix of its own words.  The log-perplexity of its suffix
(Thakkar et al. 2020, section 3) is the sum of -log p over the suffix's words, in nats, after BOS
and the prefix; p is the softmax over the whole vocabulary, special tokens included.  No word's
cost, -log p, is below 0, so the log-perplexity of a partial suffix only grows: that lets a search
leave out all suffixes that begin with one already worse than the canary.

Where only few words follow a row, a bound comes first: a normaliser over the likeliest few hundred
words is below the true one, hence so is the cost, and most rows end there without their logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tacit.evaluation.decoder import Decoder, Output, decoder_for
from tacit.models.base import LanguageModel

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Log-perplexities closer than this are ties: in float32 the order of the operations, which depends
# on the batch, moves them by up to about a tenth of it.
TIE = 1e-5
ROWS = 256  # logits of this many rows at a time: 10 MB at 10,000 words
_LIKELIEST = 512  # words in the normaliser of the bound
_FEW_WORDS = 8  # per row: up to here the bound saves more than it costs


class Split(NamedTuple):
    """A canary as the words that an attacker knows and those that are searched for."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


class SuffixScorer:
    """A model with the words that a suffix may be made of (`candidates`; no BOS, EOS or UNK).

    For a tokenizer that splits words, "word" means token, and the candidates are all tokens that
    are not special.  A weight, or a logit in use, that is not finite raises `ValueError`.  The
    model must be in evaluation mode.
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
        self._bos, self._blank = bos, decoder_for(model)
        self._likeliest: Tensor | None = None  # words, known after the first bound

    def split(self, canary: Sequence[int], prefix_words: int) -> Split:
        """The canary cut behind its prefix; both must be words, and the suffix not empty."""
        for token in canary:
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
        if not 0 <= prefix_words < len(canary):
            raise ValueError(
                f"the prefix must be shorter than the canary, got a prefix of {prefix_words} words"
                f" for a canary of {len(canary)}"
            )
        tokens = tuple(int(token) for token in canary)
        return Split(tokens[:prefix_words], tokens[prefix_words:])

    def start(self, prefixes: Sequence[Sequence[int]]) -> Decoder:
        """The model after BOS and each of the prefixes, which are of one length."""
        decoder = self._blank.take(torch.zeros(len(prefixes), dtype=torch.int64))
        for column in torch.tensor([[self._bos, *prefix] for prefix in prefixes]).t():
            decoder.advance(column)
        return decoder

    def log_perplexity(self, split: Split) -> float:
        """The log-perplexity of one canary's suffix after its prefix."""
        return float(self.suffix_costs(self.start([split.prefix]), np.array([split.suffix]))[0])

    def suffix_costs(self, start: Decoder, suffixes: IntArray) -> FloatArray:
        """The log-perplexity of each suffix, [rows, words], after its row of `start`."""
        totals = np.zeros(len(suffixes))
        for first in range(0, len(suffixes), ROWS):
            some = np.arange(first, min(first + ROWS, len(suffixes)))
            decoder, rows = start.take(torch.from_numpy(some)), np.arange(len(some))
            for depth, words in enumerate(suffixes[some].T):
                totals[some] += self.word_costs(decoder.output, rows, words)
                if depth + 1 < suffixes.shape[1]:
                    decoder.advance(torch.from_numpy(words.copy()))
        return totals

    def all_costs(self, output: Output) -> FloatArray | NDArray[np.float32]:
        """-log p of every word after each row, [rows, vocabulary]; infinite for no candidate."""
        logits = output.logits()
        costs = (_normaliser(logits).unsqueeze(1) - logits).clamp_(min=0)
        _check_finite(costs)
        costs[:, self._excluded] = torch.inf
        values: FloatArray | NDArray[np.float32] = costs.numpy()
        return values

    def word_costs(
        self, output: Output, rows: IntArray, words: IntArray, at_most: FloatArray | None = None
    ) -> FloatArray:
        """-log p of each word after its row.

        With `at_most`, a cost above it may be given as infinite, if that is cheaper.
        """
        are_few = len(words) <= _FEW_WORDS * len(output)
        if at_most is not None and are_few and output.head is not None:
            return self._bounded_costs(output, rows, words, at_most)
        logits = output.logits()
        row, word = torch.from_numpy(rows), torch.from_numpy(words.copy())
        costs = _normaliser(logits)[row] - logits[row, word]
        _check_finite(costs)
        # Rounding must not make a cost negative: a partial suffix would no longer bound its own.
        return _numpy(costs.clamp_(min=0))

    def _bounded_costs(
        self, output: Output, rows: IntArray, words: IntArray, at_most: FloatArray
    ) -> FloatArray:
        """Costs of a few words after built-in models; infinite where the bound is too high."""
        if self._likeliest is None:
            shares = torch.softmax(Output(output.values[:ROWS], output.head).logits(), 1).mean(0)
            self._likeliest = shares.topk(min(_LIKELIEST, len(shares))).indices
        scores = _numpy(output.logits_at(torch.from_numpy(rows), torch.from_numpy(words)))
        least = _numpy(_normaliser(output.logits_among(self._likeliest)))
        bounds = least[rows] - scores
        _check_finite(torch.from_numpy(bounds))
        promising = np.flatnonzero(bounds <= at_most + TIE)
        costs = np.full(len(words), np.inf)
        if len(promising):
            needed, index = np.unique(rows[promising], return_inverse=True)
            totals = _numpy(_normaliser(output.take(torch.from_numpy(needed)).logits()))
            costs[promising] = np.maximum(totals[index] - scores[promising], 0)
        return costs


def extended(decoder: Decoder, rows: IntArray, words: IntArray) -> Decoder:
    """A new decoder of the texts in `rows`, each with one more word."""
    taken = decoder.take(torch.from_numpy(rows))
    if len(rows):
        taken.advance(torch.from_numpy(words))
    return taken


def _normaliser(logits: Tensor) -> Tensor:
    """log of the sum of exponentials of each row."""
    totals = torch.logsumexp(logits, 1)
    _check_finite(totals)
    return totals


def _numpy(values: Tensor) -> FloatArray:
    array: FloatArray = values.to(torch.float64).numpy()
    return array


def _check_finite(values: Tensor, what: str = "logits") -> None:
    if not torch.isfinite(values).all():
        raise ValueError(
            f"the model's {what} are not finite numbers, which would rank every canary first"
        )


def _checked_candidates(candidates: ArrayLike, vocab_size: int) -> IntArray:
    tokens = np.unique(np.asarray(candidates, np.int64))
    if not len(tokens):
        raise ValueError("candidates must name at least one token")
    if tokens[0] < 0 or tokens[-1] >= vocab_size:
        raise ValueError(
            f"candidates must be tokens of the model's {vocab_size}, got {tokens[0]} to"
            f" {tokens[-1]}"
        )
    return tokens
