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

A sample serves all local steps of a user in a round, as in Jean et al. 2015, section 3.2.  The
gradient of Z' would move a word of N by 1 / pi_v times what the whole softmax does, and the next
step, which has the same words, would find them lowered that much too far.  So every word moves as
it would in the whole softmax, by the derivative exp(s_v) / Z' of its own score, and the estimate
comes at the end: the update of a word of N is what it has moved, d_v, over pi_v.  Again by Horvitz
and Thompson, the words' updates are then right on average as far as Z' is Z.

What it costs.  1 / Z' is above 1 / Z on average, by about the variance of Z' / Z (Bengio and
Senecal 2008, section IV; by Jensen's inequality log Z' is below log Z); so the law matters.  Words
that are not candidates do not move at all; those of N make up for them with larger updates, so that
the norm of an update grows a little.  The training loss that is reported is the estimate.  Held-out
metrics are never sampled.  docs/results/speed.md has figures.

Guarantee: none of the plan's guarantee rests on any of this.  Candidates are a function of the
user's own tokens, the released weights, public constants and the user's own stream, never of other
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

    Where the model has an output bias b, half of the law is exp(b_v) / sum_w exp(b_w), the words'
    frequencies as the released model has them.  The rest of it, or all, is log-uniform over token
    ids, q_v ~ log((v + 2) / (v + 1)): Zipf's law with its sum in closed form.  That fits
    vocabularies in which ids go by public frequency; in another it is as right and more noisy.

    There are as many more negatives as make the number of candidates a multiple of `multiple_of`:
    every number of words needs buffers of its own, which are kept.
    """

    negatives: Annotated[int, at_least(1)]
    multiple_of: Annotated[int, at_least(1)] = 256

    def of(self, sgd: LocalSGD, start: Weights, rows: TokenRows, stream: Stream) -> LocalSteps:
        """Local steps on these rows over candidates, loaded with the released weights `start`.

        They are the exact ones if the candidates would be all words.
        """
        rows.check_tokens(sgd.config.vocab_size)
        law = _law(sgd, start)
        candidates = self.candidates(rows, law, stream)
        steps = sgd if candidates is None else CandidateSGD(sgd, candidates)
        steps.load(start)
        return steps

    def candidates(
        self, rows: TokenRows, law: NDArray[np.float64], stream: Stream
    ) -> Candidates | None:
        """The user's words and a sample of the others; None if there are not enough others."""
        vocab_size = len(law)
        is_own = np.zeros(vocab_size, np.bool_)
        is_own[rows.inputs.numpy()] = True
        is_own[rows.targets.numpy()] = True
        own = int(is_own.sum())
        words = math.ceil((own + self.negatives) / self.multiple_of) * self.multiple_of
        if words >= vocab_size:
            return None
        others = np.flatnonzero(~is_own)
        pi = _inclusion_probabilities(law[others], words - own)
        chosen = _systematic_sample(pi, stream)
        correction = np.zeros(vocab_size)
        correction[others[chosen]] = -np.log(pi[chosen])
        is_own[others[chosen]] = True
        candidates = np.flatnonzero(is_own)
        return Candidates(candidates, correction[candidates].astype(np.float32))


class CandidateSGD:
    """Local steps of a model whose words are the candidates only, in a vector of the whole model.

    Their rows of the embedding are gathered into a model of few words, with an output bias that
    has the correction added.  If the whole model has no such bias, that one is frozen.
    """

    def __init__(self, sgd: LocalSGD, candidates: Candidates) -> None:
        config: Any = sgd.config
        self._sgd, self._words = sgd, candidates.words
        self._correction = candidates.correction
        self._pi = np.exp(-candidates.correction)
        self._few = sgd.resized(len(self._words))
        self._table = (config.vocab_size, config.embedding_size)
        self._has_bias: bool = config.output_bias
        # Padding may be any word; as all that is masked, it has no effect.
        self._index = np.zeros(config.vocab_size, np.int64)
        self._index[self._words] = np.arange(len(self._words))
        self._start = self._few_start = np.empty(0, np.float32)  # theta^0, of all words and of few
        self._others: Weights | None = None  # how far other words were moved by `set_weights`

    def load(self, weights: Weights) -> None:
        """Begin at these weights of the whole model; the candidates' rows are gathered."""
        self._start, self._others = weights, None
        whole = self._sgd.whole(weights)
        count, size = self._table
        vectors = whole[: count * size].reshape(count, size)[self._words]
        end = count * (size + self._has_bias)
        biases = whole[count * size : end][self._words] if self._has_bias else np.float32(0)
        self._few_start = np.concatenate([vectors.ravel(), biases + self._correction, whole[end:]])
        self._few.load(self._few_start)
        self._few.set_word_rates(self._pi)

    def step(
        self, rows: TokenRows, learning_rate: float, *, penalty: float = 0.0, project: bool = True
    ) -> float:
        """One step of the small model; rows outside of the candidates stay where they are."""
        return self._few.step(self._renamed(rows), learning_rate, penalty=penalty, project=project)

    def steps(
        self, batches: Iterable[TokenRows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A step on each batch in turn."""
        return self._few.steps(map(self._renamed, batches), learning_rate, penalty=penalty)

    def _renamed(self, rows: TokenRows) -> TokenRows:
        """The rows with every word replaced by its index among the candidates."""
        inputs, targets = (self._index[part.numpy()] for part in (rows.inputs, rows.targets))
        return TokenRows(torch.from_numpy(inputs), torch.from_numpy(targets), rows.mask)

    def weights(self) -> Weights:
        """theta^0 + `update()`."""
        return self._start + self.update()

    def update(self) -> Weights:
        """The estimate of theta - theta^0: zero for every word that is not a candidate."""
        update = np.zeros_like(self._start) if self._others is None else self._others.copy()
        for values, few, is_words in self._trained_parts(update, self._few.update()):
            if is_words:
                values[self._words] = few / self._pi[:, None]
            else:
                values[:] = few
        return update

    def set_weights(self, weights: Weights) -> None:
        """Replace the weights of the whole model; theta^0 stays."""
        self._others, few_update = weights - self._start, np.zeros_like(self._few_start)
        for values, few, is_words in self._trained_parts(self._others, few_update):
            few[:] = values[self._words] * self._pi[:, None] if is_words else values
        self._few.set_weights(self._few_start + few_update)

    def _trained_parts(
        self, theta: Weights, few: Weights
    ) -> Iterator[tuple[Weights, Weights, bool]]:
        """Views of what is trained, in a vector of theta and in one of all of the small model.

        The table of words and their biases come with a row for each word, and True.
        """
        (count, size), few_count = self._table, len(self._words)
        bounds = [(0, count * size, 0, size)]
        if self._has_bias:
            bounds.append((count * size, count * (size + 1), few_count * size, 1))
        rest = bounds[-1][1]
        less = rest - few_count * (size + 1)
        first = 0
        for each in self._sgd.trained:
            for begin, end, few_begin, width in bounds:
                if each.start <= begin and end <= each.stop:
                    values = theta[first : first + end - begin].reshape(-1, width)
                    few_end = few_begin + few_count * width
                    yield values, few[few_begin:few_end].reshape(-1, width), True
                    first += end - begin
            begin, end = max(each.start, rest), each.stop
            if begin < end:
                yield theta[first : first + end - begin], few[begin - less : end - less], False
                first += end - begin


def _law(sgd: LocalSGD, start: Weights) -> NDArray[np.float64]:
    """The public law of the words that are not a user's own, from the released weights."""
    config: Any = sgd.config
    law = _log_uniform(config.vocab_size)
    if not getattr(config, "output_bias", False):
        return law
    first = config.vocab_size * config.embedding_size
    bias = sgd.whole(start)[first : first + config.vocab_size].astype(np.float64)
    if not np.isfinite(bias).all():  # nothing that is computed from them will count
        return law
    frequencies = np.exp(bias - bias.max())
    mixed: NDArray[np.float64] = (law + frequencies / frequencies.sum()) / 2
    return mixed


@functools.lru_cache(maxsize=4)
def _log_uniform(vocab_size: int) -> NDArray[np.float64]:
    """The law over ids: q_v = log((v + 2) / (v + 1)) / log(V + 1)."""
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
