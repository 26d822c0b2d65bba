"""A softmax over a user's own words and some others, instead of over the whole vocabulary.

The loss at a position whose target has the score s_t is log Z - s_t with Z = sum_v exp(s_v).  Most
of a step's work is in the words of that sum that the user never writes.  Here the user's own words
O are all in it, and of the others a sample N, in which word v is with the known probability pi_v:

    Z' = sum_{v in O} exp(s_v) + sum_{v in N} exp(s_v) / pi_v
       = sum_{v in O or N} exp(s_v + c_v),   c_v = -log pi_v in N, and 0 in O.

So every candidate's score is corrected by its log-probability of being there; the user's own words
are there with probability 1.  E Z' = Z whatever pi is (Horvitz and Thompson 1952); pi decides about
the variance only.  It is proportional to a public law as far as that stays within 1, and the sample
is systematic: of a fixed size, and spread evenly over frequent and rare words.

What it costs.  The gradient, an average over the candidates with weights exp(s_v + c_v) / Z', is a
quotient of two estimates and therefore biased, by O(1 / |N|) (Bengio and Senecal 2008, section IV);
by Jensen's inequality log Z' is below log Z on average.  A sample serves all local steps of a user
in a round, as in Jean et al. 2015, section 3.2, so that later steps meet words which the earlier
ones have already lowered.  Words that are not candidates do not move at all; in expectation the
sampled ones make up for them, with larger steps, so that the norm of an update grows.  The training
loss that is reported is the estimate.  Held-out metrics are never sampled.

Guarantee: none of the plan's guarantee rests on any of this.  Candidates are a function of the
user's own tokens, the vocabulary's size, public constants and the user's own stream, never of other
users' words (design rule 8); what comes out is clipped, weighed and noised as any other update.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.kernels.local_sgd import LocalSGD, LocalSteps, Weights
from tacit.kernels.rows import TokenRows
from tacit.privacy.records import Record, at_least
from tacit.privacy.stream import Stream

# Whatever is this likely is certain: a float sum of such probabilities is not exact enough to tell.
_CERTAIN = 1 - 1e-9


@dataclass(frozen=True)
class Candidates:
    """Words in ascending order, and what is added to the score of each."""

    words: NDArray[np.int64]
    correction: NDArray[np.float32]


@dataclass(frozen=True)
class SampledSoftmax(Record):
    """A softmax over the user's own words and at least `negatives` others.

    They follow the log-uniform law over token ids, pi_v ~ log((v + 2) / (v + 1)), which is Zipf's
    with its sum in closed form.  It fits vocabularies in which ids go by public frequency, as those
    of words do here; in another it is as right and more noisy.

    There are as many more negatives as make the number of candidates a multiple of `multiple_of`:
    every number of words needs buffers of its own, which are kept.
    """

    negatives: Annotated[int, at_least(1)]
    multiple_of: Annotated[int, at_least(1)] = 256

    def of(self, sgd: LocalSGD, rows: TokenRows, stream: Stream) -> LocalSteps:
        """Local steps on these rows over candidates; the exact ones if that would be all words."""
        vocab_size = sgd.config.vocab_size
        rows.check_tokens(vocab_size)
        candidates = self.candidates(rows, vocab_size, stream)
        return sgd if candidates is None else CandidateSGD(sgd, candidates)

    def candidates(self, rows: TokenRows, vocab_size: int, stream: Stream) -> Candidates | None:
        """The user's words and a sample of the others; None if there are not enough others."""
        is_own = np.zeros(vocab_size, np.bool_)
        is_own[rows.inputs.numpy()] = True
        is_own[rows.targets.numpy()] = True
        own = int(is_own.sum())
        words = math.ceil((own + self.negatives) / self.multiple_of) * self.multiple_of
        if words >= vocab_size:
            return None
        others = np.flatnonzero(~is_own)
        pi = _inclusion_probabilities(_log_uniform(vocab_size)[others], words - own)
        chosen = _systematic_sample(pi, stream)
        correction = np.zeros(vocab_size)
        correction[others[chosen]] = -np.log(pi[chosen])
        is_own[others[chosen]] = True
        candidates = np.flatnonzero(is_own)
        return Candidates(candidates, correction[candidates].astype(np.float32))


class CandidateSGD:
    """Local steps of a model whose words are the candidates only, in a vector of the whole model.

    Their rows of the embedding are gathered into a model of few words, with an output bias that
    holds the correction.  If the whole model has no such bias, it is put back after every step.
    """

    def __init__(self, sgd: LocalSGD, candidates: Candidates) -> None:
        config: Any = sgd.config
        self._words, self._correction = candidates.words, candidates.correction
        self._few = sgd.resized(len(self._words))
        self._vectors = (config.vocab_size, config.embedding_size)
        self._has_bias: bool = config.output_bias
        # Padding may be any word; as all that is masked, it has no effect.
        self._index = np.zeros(config.vocab_size, np.int64)
        self._index[self._words] = np.arange(len(self._words))
        # What the words that are no candidates are taken from, and theta^0.
        self._whole = self._start = np.empty(0, np.float32)

    def load(self, weights: Weights) -> None:
        """Begin at these weights of the whole model; the candidates' rows are gathered."""
        self._whole = self._start = weights
        self._few.load(self._gathered(weights))

    def step(
        self, rows: TokenRows, learning_rate: float, *, penalty: float = 0.0, project: bool = True
    ) -> float:
        """One step of the small model; rows outside of the candidates stay where they are."""
        few = self._renamed(rows)
        total = self._few.step(few, learning_rate, penalty=penalty, project=project)
        self._put_back()
        return total

    def steps(
        self, batches: Iterable[TokenRows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A step on each batch in turn."""
        few = map(self._renamed, batches)
        for taken in self._few.steps(few, learning_rate, penalty=penalty):
            self._put_back()
            yield taken

    def _renamed(self, rows: TokenRows) -> TokenRows:
        """The rows with every word replaced by its index among the candidates."""
        inputs, targets = (self._index[part.numpy()] for part in (rows.inputs, rows.targets))
        return TokenRows(torch.from_numpy(inputs), torch.from_numpy(targets), rows.mask)

    def _put_back(self) -> None:
        """A bias that the whole model does not have is the correction and nothing else."""
        if not self._has_bias:
            self._few.set_part(len(self._words) * self._vectors[1], self._correction)

    def weights(self) -> Weights:
        """The whole model's weights, with the candidates' rows as they are now."""
        whole, few = self._whole.copy(), self._few.weights()
        vectors, bias, rest = self._split(whole, self._vectors[0], self._has_bias)
        few_vectors, few_bias, rest[:] = self._split(few, len(self._words), True)
        vectors[self._words] = few_vectors
        if self._has_bias:
            bias[self._words] = few_bias - self._correction
        return whole

    def update(self) -> Weights:
        """theta - theta^0 of the whole model: zero for every word that is not a candidate."""
        if self._whole is not self._start:
            return self.weights() - self._start
        update = np.zeros_like(self._start)
        vectors, bias, rest = self._split(update, self._vectors[0], self._has_bias)
        few_vectors, few_bias, rest[:] = self._split(self._few.update(), len(self._words), True)
        vectors[self._words] = few_vectors
        if self._has_bias:
            bias[self._words] = few_bias
        return update

    def set_weights(self, weights: Weights) -> None:
        """Replace the weights of the whole model; theta^0 stays."""
        self._whole = weights
        self._few.set_weights(self._gathered(weights))

    def _gathered(self, weights: Weights) -> Weights:
        """The small model's weights: the candidates' rows, their corrected biases, and the rest."""
        vectors, bias, rest = self._split(weights, self._vectors[0], self._has_bias)
        own_bias = bias[self._words] + self._correction if self._has_bias else self._correction
        return np.concatenate([vectors[self._words].ravel(), own_bias, rest])

    def _split(self, flat: Weights, words: int, has_bias: bool) -> tuple[Weights, Weights, Weights]:
        """Views of the embedding, of the output bias if any, and of the rest."""
        size = words * self._vectors[1]
        end = size + words * has_bias
        return flat[:size].reshape(words, -1), flat[size:end], flat[end:]


@functools.lru_cache(maxsize=4)
def _log_uniform(vocab_size: int) -> NDArray[np.float64]:
    """The default public law: q_v = log((v + 2) / (v + 1)) / log(V + 1)."""
    law = np.log1p(1 / np.arange(1, vocab_size + 1)) / math.log(vocab_size + 1)
    law.flags.writeable = False
    return law


def _inclusion_probabilities(law: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Proportional to the law but at most 1, and `size` in sum: pi = min(1, factor * law)."""
    pi = np.empty_like(law)
    is_certain = np.zeros(len(law), np.bool_)
    while True:
        room = size - int(is_certain.sum())
        pi[:] = law * (room / law[~is_certain].sum()) if room else 0.0
        pi[is_certain] = 1
        more = ~is_certain & (pi >= _CERTAIN)
        if not more.any():
            return pi
        is_certain |= more


def _systematic_sample(pi: NDArray[np.float64], stream: Stream) -> NDArray[np.int64]:
    """Indices in ascending order, each index i with probability pi[i]; sum(pi) of them.

    The probabilities are laid end to end on a line, and points at distance 1 from each other, the
    first of them uniform, choose where they fall.  One word of the stream.
    """
    certain, others = np.flatnonzero(pi == 1), np.flatnonzero(pi < 1)
    size = round(float(pi[others].sum()))
    points = np.arange(size) + stream.uniform(1)
    ends = np.cumsum(pi[others])
    index = np.searchsorted(ends, points, side="right")
    chosen = others[np.minimum(index, len(others) - 1)] if size else others[:0]
    return np.sort(np.concatenate([certain, chosen]))
