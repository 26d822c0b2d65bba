"""Which words people use, learnt under local differential privacy: the "heavy hitters" baseline.

Bagdasaryan et al. 2022, section 5.3: each user contributes three words out of a public list, with a
local budget of epsilon = 8, by the algorithm of Apple (2017).  That is the count-mean sketch below;
each of the three reports has epsilon / 3, and pure differential privacy adds up.

A user's words are drawn from the user's own text, occurrence by occurrence with replacement, so
that frequent words are reported more often.  Words that are no candidates are passed over, and a
user who has none sends reports of "nothing".

Guarantee: the number of reports is `population` times `words_per_user`, however many users there
are.  An absent person's are "nothing", as if sent by a device without text.  So when a person
leaves, each of the person's reports changes from a word to nothing, at a cost of half its epsilon:
epsilon / 2 in all, under add/remove-one.  When a person is replaced by another, the cost is
epsilon.  The event states the larger figure for add/remove-one, the adjacency of everything else:
epsilon is what is meant by the local guarantee, where no two texts of a person can be told apart,
and it is no less than what add/remove-one asks for.

The threshold is a public number of standard deviations, which are computed from the reports alone.
What falls below it is dropped after the fact, at no cost.

The count-mean sketch (Apple's Differential Privacy Team, "Learning with Privacy at Scale", 2017,
algorithms CMS): k public hash functions into m buckets.  A client draws one of them, j, writes +1
into bucket h_j(word) of a vector of -1, and flips each of the m entries with probability
p = 1 / (1 + e^(epsilon/2)).  The server adds x = k (c/2 v + 1/2), with
c = (e^(epsilon/2) + 1) / (e^(epsilon/2) - 1), to row j of a matrix M, and estimates

    f(d) = m/(m-1) (1/k sum_l M[l, h_l(d)] - N/m),   N the number of reports.

Guarantee: a report is epsilon-DP in its word, and epsilon/2-DP between a word and "nothing" (a
vector of -1 throughout).  Entries are flipped independently, and one that differs changes the
probability of a report by at most (1-p)/p = e^(epsilon/2).  Two words in different buckets differ
in two entries, a word and nothing in one.  The row is drawn without looking at the word.

Here a report may be "nothing", so N in the formula is the number of *words* reported, which is
secret.  It is estimated from the same reports, by the sum of all of M over k; what comes out is

    f(d) = sum over reports of (x[h(d)] - mean of x at the m - 1 other buckets),  x = c/2 v + 1/2.

Unbiased, over flips and hash functions: a report's x has the expectation 1 in its word's bucket and
0 elsewhere, and another word shares d's bucket with probability 1/m.  Variance, for n reports:

    n V m/(m-1)  +  sum over other words w of (f_w + f_w (f_w - 1)/k) / (m - 1),
    V = p (1-p) / (1-2p)^2 = e^(epsilon/2) / (e^(epsilon/2) - 1)^2

The first term is the flips.  The second is shared buckets, and takes the hash functions to be
independent on three words; ours are on two, for which only the mean is proved.

The reports themselves are never made.  Of the n_j reports of row j, c have +1 in a given bucket
before the flips and n_j - c have -1, so the number that has +1 after them is

    c - Binomial(c, p) + Binomial(n_j - c, p),

independent of all other cells given the rows and words, because all flips are.  The matrix is a
function of these numbers and of n_j, and so has exactly the law it has with real reports.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.corpus.source import UserSource
from tacit.privacy import checks
from tacit.privacy.claims import format_number
from tacit.privacy.events import Adjacency, PureDP
from tacit.privacy.stream import Stream
from tacit.tokenizers.build import most_frequent
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.learn import Users, release
from tacit.tokenizers.normalisation import index_words
from tacit.tokenizers.public import PublicSource, declare
from tacit.tokenizers.tokenizer import Kind
from tacit.tokenizers.word_counts import WordCounts, check_users, derive_key, words_by_user

NOTHING = -1  # instead of a word's index: a report without a word

_LARGEST_EPSILON = 60.0  # beyond it a flip is rarer than 2^-43, and a float of p loses its meaning
_LARGEST_WIDTH = 1 << 16
_DIGEST_BYTES = 6  # 48 bits and a bucket of 16 fit into the 64 + 1 bits of `_bucket`
_WORDS_AT_ONCE = 1 << 22

_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class HeavyHitters:
    """Count-mean sketch of a few words per user; `epsilon` is for all of a user's words together.

    An estimate is kept if it is above `threshold` standard deviations of the estimator.  Left out,
    it is set so that about one candidate that no user has is expected to be kept.
    """

    epsilon: float = 8.0
    words_per_user: int = 3
    hashes: int = 1024
    width: int = 1024
    hash_seed: int = 0
    threshold: float | None = None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("words_per_user", self.words_per_user, at_least=1)
        if self.threshold is not None:
            checks.non_negative("threshold", self.threshold)
        self.sketch  # noqa: B018  (checks the rest)

    @property
    def sketch(self) -> CountMeanSketch:
        """How a single report is made."""
        share = self.epsilon / self.words_per_user
        return CountMeanSketch(share, self.hashes, self.width, self.hash_seed)

    @property
    def event(self) -> PureDP:
        """What learning costs: see the guarantee above."""
        return PureDP(self.epsilon, Adjacency.ADD_REMOVE)

    def learn(
        self, users: UserSource, candidates: Sequence[str], population: int, key: bytes
    ) -> WordCounts:
        """The candidates that stand out, with how many of the reports are estimated to name them.

        `key`: 32 secret bytes, of which the same never serve for two releases.
        """
        check_users(users, population, key)
        if not candidates:
            raise ValueError("candidates must be a public list of words, got none")
        index = index_words(candidates, what="candidate")
        reported = self._reported(users, index, population, key)
        stream = Stream(derive_key(key, "reports"))
        sketch = self.sketch.collect(candidates, reported, stream)
        estimates = sketch.estimate(candidates)
        enough = estimates > self.deviations(len(candidates)) * sketch.stddev
        counts = {candidates[i]: float(estimates[i]) for i in np.flatnonzero(enough).tolist()}
        how = (
            f"heavy hitters (count-mean sketch, local epsilon {format_number(self.epsilon)} for"
            f" {self.words_per_user} words per user)"
        )
        return WordCounts(counts, (self.event,), how)

    def deviations(self, candidates: int) -> float:
        """The threshold for this number of candidates, in standard deviations; never below 0."""
        if self.threshold is not None:
            return self.threshold
        return float(-ndtri(min(1 / candidates, 0.5)))

    def _reported(
        self, users: UserSource, index: dict[str, int], population: int, key: bytes
    ) -> NDArray[np.int64]:
        """What each report of the population is about: a candidate's index, or nothing."""
        reported = np.full((population, self.words_per_user), NOTHING, np.int64)
        for user, words in enumerate(words_by_user(users)):
            own = [index[word] for word in words if word in index]
            if own:
                stream = Stream(derive_key(key, "a user's words", users.user_id(user)))
                drawn = stream.integers(len(own), self.words_per_user)
                reported[user] = [own[i] for i in drawn]
        return reported.ravel()


def learn_tokenizer(
    users: Users,
    candidates: str,
    method: HeavyHitters,
    kind: Kind = "bpe",
    size: int = 10_000,
    seed: int | None = None,
) -> LearntTokenizer:
    """A tokenizer from a few words of each user, out of those of a public text or list.

    What it costs is charged, and stands in the tokenizer's history: see `tacit.tokenizers.learn`.
    """
    words = most_frequent(PublicSource(candidates).word_weights())
    return release(
        users,
        (method.event,),
        lambda source, population, key: method.learn(source, words, population, key),
        {"candidates": candidates, **asdict(method)},
        kind,
        size,
        seed=seed,
        public_inputs=(declare("candidates", candidates, users.corpus),),
    )


@dataclass(frozen=True)
class CountMeanSketch:
    """How reports are made and read: all of it is public.  `epsilon` is that of one report."""

    epsilon: float
    hashes: int = 1024
    width: int = 1024
    hash_seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        if not self.epsilon <= _LARGEST_EPSILON:
            raise ValueError(
                f"epsilon of a report must be at most {_LARGEST_EPSILON}, got {self.epsilon}"
            )
        checks.whole("hashes", self.hashes, at_least=1)
        checks.whole("width", self.width, at_least=2)
        checks.whole("hash_seed", self.hash_seed)
        if self.width > _LARGEST_WIDTH or self.width & (self.width - 1):
            raise ValueError(
                f"width must be a power of two of at most {_LARGEST_WIDTH}, got {self.width}"
            )

    @property
    def flip_prob(self) -> float:
        """p = 1 / (1 + e^(epsilon/2)), and a little more for the rounding of floats.

        So ((1-p)/p)^2 is at most e^epsilon, and reports that share an epsilon stay within it.
        """
        return (1 + 2.0**-46) / (1 + math.exp(self.epsilon / 2))

    def collect(self, words: Sequence[str], reported: _Integers, stream: Stream) -> _Sketch:
        """The sketch of one report for each index into `words`, or `NOTHING`, in `reported`."""
        if reported.size and not -1 <= int(reported.min()) <= int(reported.max()) < len(words):
            raise ValueError(
                f"reported must hold indices from 0 to {len(words) - 1}, or -1 for nothing"
            )
        rows = stream.integers(self.hashes, len(reported))
        with_word = reported != NOTHING
        buckets = self._bucket(_digests(words)[reported[with_word]], rows[with_word])
        cells = rows[with_word] * self.width + buckets
        size = (self.hashes, self.width)
        before = np.bincount(cells, minlength=self.hashes * self.width).reshape(size)
        in_row = np.bincount(rows, minlength=self.hashes)
        lost = _binomials(before, self.flip_prob, stream)
        won = _binomials(in_row[:, None] - before, self.flip_prob, stream)
        return _Sketch(self, before - lost + won, in_row)

    def _bucket(self, digests: NDArray[np.uint64], rows: _Integers) -> _Integers:
        """(a x + b mod 2^64) >> (64 - log2 m): pairwise independent (Dietzfelbinger 1996).

        That holds for x of at most 65 - log2 m bits, so for words whose 48-bit digests differ.
        """
        drawn = _coefficients(self.hash_seed, self.hashes)[rows]
        shift = np.uint64(64 - (self.width.bit_length() - 1))
        return ((drawn[:, 0] * digests + drawn[:, 1]) >> shift).astype(np.int64)


@dataclass(frozen=True)
class _Sketch:
    """What the server has: in each cell how many reports have +1 there, and the reports per row."""

    protocol: CountMeanSketch
    pluses: _Integers
    in_row: _Integers

    def estimate(self, words: Sequence[str]) -> NDArray[np.float64]:
        """f(d) for each word: unbiased, so for rare words often below 0."""
        protocol = self.protocol
        digests = _digests(words)
        own = np.zeros(len(words), np.int64)
        for row in range(protocol.hashes):
            own += self.pluses[row, protocol._bucket(digests, np.full(1, row))]
        others = (self.pluses.sum() - own) / (protocol.width - 1)
        # x is (1 - p)/(1 - 2p) where v is +1 and that less 1/(1 - 2p) where it is -1.  The constant
        # is the same in all buckets and falls out of the difference.
        estimates: NDArray[np.float64] = (own - others) / (1 - 2 * protocol.flip_prob)
        return estimates

    @property
    def stddev(self) -> float:
        """The standard deviation of an unreported word's estimate, given the reports.

        Such a word's bucket is uniform in each row, so the variance is the sum over rows of the
        variance over buckets: flips and shared buckets are both in it, whatever words there are.
        It is computed from the reports alone, so it costs nothing.
        """
        p, m = self.protocol.flip_prob, self.protocol.width
        return math.sqrt(float(self.pluses.var(axis=1).sum())) * m / (m - 1) / (1 - 2 * p)


@functools.lru_cache(maxsize=8)
def _coefficients(hash_seed: int, hashes: int) -> NDArray[np.uint64]:
    """Uniform (a, b) for each row, a function of the public seed; not to be changed."""
    seed = hashlib.sha256(b"tacit count-mean sketch, 1: %d" % hash_seed).digest()
    drawn = Stream(seed).words(2 * hashes).reshape(hashes, 2)
    drawn.flags.writeable = False
    return drawn


def _binomials(counts: _Integers, p: float, stream: Stream) -> _Integers:
    """An independent Binomial(count, p) for each count: `Stream.binomial`, for arrays.

    Each event is U < p for a uniform U whose bits are compared with those of p.  Of the events
    still undecided in a cell, those with a 1 in the next bit are counted as the ones among as many
    random bits.

    Guarantee: exact, given uniform words: p is a finite binary fraction.
    """
    flat = np.asarray(counts, np.int64).ravel()
    happened = np.zeros(len(flat), np.int64)
    where = np.flatnonzero(flat)
    undecided = flat[where]
    numerator, denominator = p.as_integer_ratio()
    while len(where) and numerator:
        numerator *= 2
        ones = _ones(undecided, stream)
        if numerator >= denominator:  # p's bit is 1: a 0 in U decides for U < p
            numerator -= denominator
            happened[where] += undecided - ones
            undecided = ones
        else:
            undecided = undecided - ones
        open_still = undecided > 0
        where, undecided = where[open_still], undecided[open_still]
    return happened.reshape(np.shape(counts))


def _ones(bits: _Integers, stream: Stream) -> _Integers:
    """For each number of bits (above 0), how many of as many random bits are 1."""
    ones = np.empty_like(bits)
    ends = np.cumsum((bits + 63) // 64)
    first = 0
    while first < len(bits):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _WORDS_AT_ONCE, "right")), first + 1)
        words = stream.words(int(ends[last - 1]) - before)
        end = ends[first:last] - before
        # The last word of a cell keeps bits % 64 of its bits; a shift by 0 keeps all.
        words[end - 1] >>= (-bits[first:last] % 64).astype(np.uint64)
        starts = np.concatenate([[0], end[:-1]])
        ones[first:last] = np.add.reduceat(np.bitwise_count(words).astype(np.int64), starts)
        first = last
    return ones


def _digests(words: Sequence[str]) -> NDArray[np.uint64]:
    """48 bits of a hash of each word."""
    joined = b"".join(
        hashlib.blake2b(word.encode(), digest_size=_DIGEST_BYTES).digest() + b"\0\0"
        for word in words
    )
    return np.frombuffer(joined, "<u8").astype(np.uint64)
