"""Which words people use, learnt by a trusted server: noisy counts above a threshold.

The words need not be known beforehand.  This is partition selection, or the private union of sets
(Gopi et al. 2020, "Differentially private set union"), with weights of 1/sqrt(t) and
Gaussian noise:

1. A user gives t = min(L, number of the user's distinct words) words, a uniform choice of them.
   Each gets the weight w_t = 1/sqrt(t), so a user's weights have the norm 1 at most.
   The alternative, 1/sqrt(L) for all, would waste most of the norm of people with little text
   and lower the threshold hardly at all.
2. Each word that somebody gave gets Gaussian noise of standard deviation z on its sum of weights.
3. Words above the threshold rho are released with their noisy sums.

Guarantee, user-level under add/remove-one: (Gaussian(z), Lapse(selection_delta)).  Fix everybody's
choice of words; it depends on each user's own text and own stream alone.  Let U be the words of the
others.  On U, one user's coming or going moves the sums by a vector of norm at most 1, so what is
released of U is Gaussian(z).  Words outside U are only in the release of the dataset with the user.
If the user gave t words, and all are outside U, none of them is released with probability

    1 - p_t = Phi((rho - w_t) / z)^t

independently of what happens on U; if some are in U, p is smaller.  With P and Q the laws on U with
and without the user, the release with the user is (1-p) P plus something else of mass p, so for
both orders of the pair, since (1-p) P - e^epsilon Q <= (1-p) (P - e^epsilon Q)_+ and
Q - e^epsilon (1-p) P = (1-p) (Q - e^epsilon P) + p Q,

    delta(epsilon) <= (1-p) delta_Gaussian(epsilon) + p.

That is what `Lapse(p)` says.  p_t is at most `selection_delta` for all t from 1 to L if

    rho = max over t of  w_t + z Phi^-1((1 - selection_delta)^(1/t)).

All sums are integers: weights are rounded down to a grid and noise to the nearest point of it, as
in `tacit.mechanisms.noise`, whose code this package may not import.  A word's noise is a function
of the key and the word, so neither the order of the words nor who else is there has a part in it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.corpus.source import UserSource
from tacit.privacy import checks
from tacit.privacy.accountants import accountant_named
from tacit.privacy.calibration import noise_for_epsilon
from tacit.privacy.claims import format_number
from tacit.privacy.events import Composition, Event, Gaussian, Lapse
from tacit.privacy.stream import Stream, normal_from_words
from tacit.tokenizers.word_counts import WordCounts, check_users, derive_key, words_by_user

_FINEST_BITS = 24
_LARGEST_NOISE_BITS = 28  # in steps of the grid, as in `mechanisms.fixed_point`
_LARGEST_NOISE = 1 << (_LARGEST_NOISE_BITS - 8)  # the coarsest grid has 8 bits
_LARGEST_SUM_BITS = 62
_MOST_WORDS = 100_000


@dataclass(frozen=True)
class PartitionSelection:
    """Noise of `noise_multiplier` on weighted counts of up to `words_per_user` words each.

    A person's own words get out with a probability of at most `selection_delta`.
    """

    noise_multiplier: float
    selection_delta: float
    words_per_user: int = 300

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)
        if not self.noise_multiplier <= _LARGEST_NOISE:
            raise ValueError(
                f"noise_multiplier must be at most {_LARGEST_NOISE:,}, got {self.noise_multiplier}"
            )
        checks.open_unit("selection_delta", self.selection_delta)
        checks.whole("words_per_user", self.words_per_user, at_least=1)
        if self.words_per_user > _MOST_WORDS:
            raise ValueError(
                f"words_per_user must be at most {_MOST_WORDS:,}, got {self.words_per_user}"
            )

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, words_per_user: int = 300) -> Self:
        """The least noise that makes it (epsilon, delta)-DP, with half of delta for selection."""
        checks.open_unit("delta", delta)
        selection_delta = delta / 2
        z = noise_for_epsilon(
            lambda z: Composition.of([Lapse(selection_delta), Gaussian(z)]),
            delta=delta,
            target_epsilon=epsilon,
            accountant=accountant_named("pld"),
        )
        return cls(z, selection_delta, words_per_user)

    @property
    def events(self) -> tuple[Event, ...]:
        """What learning costs: see the guarantee above."""
        return Gaussian(self.noise_multiplier), Lapse(self.selection_delta)

    @property
    def threshold(self) -> float:
        """rho, in weights: 1 is the whole weight of a user who has a single word."""
        t = np.arange(1, self.words_per_user + 1)
        one_survives = -np.expm1(np.log1p(-self.selection_delta) / t)
        return float(np.max(1 / np.sqrt(t) - self.noise_multiplier * ndtri(one_survives)))

    @property
    def grid_bits(self) -> int:
        """The grid's step is 2^-bits of a weight: coarser where the noise is large."""
        return min(_FINEST_BITS, math.floor(_LARGEST_NOISE_BITS - math.log2(self.noise_multiplier)))

    def weight(self, words: int) -> int:
        """The weight of each of a user's `words` words in steps: floor(2^bits / sqrt(words))."""
        return math.isqrt(4**self.grid_bits // words)

    def learn(self, users: UserSource, population: int, key: bytes) -> WordCounts:
        """The words that enough people have, with their noisy sums of weights, largest first.

        `key`: 32 secret bytes, of which the same never serve for two releases.
        """
        check_users(users, population, key)
        if population.bit_length() + self.grid_bits > _LARGEST_SUM_BITS:
            raise ValueError(f"population must be smaller for sums in 64 bits, got {population}")
        totals = self._totals(users, key)
        words = list(totals)
        noise = _noise(words, key) * math.ldexp(self.noise_multiplier, self.grid_bits)
        noisy = np.fromiter(totals.values(), np.int64, len(words)) + np.rint(noise).astype(np.int64)
        # Above the threshold's grid point, so a rounding can only keep a word in.
        least = math.ceil(math.ldexp(self.threshold, self.grid_bits))
        kept = [(int(noisy[i]), words[i]) for i in np.flatnonzero(noisy > least)]
        kept.sort(key=lambda item: (-item[0], item[1]))
        counts = {word: math.ldexp(total, -self.grid_bits) for total, word in kept}
        how = (
            f"partition selection (noise multiplier {format_number(self.noise_multiplier)},"
            f" selection delta {self.selection_delta:g}, {self.words_per_user} words per user)"
        )
        return WordCounts(counts, self.events, how)

    def _totals(self, users: UserSource, key: bytes) -> Counter[str]:
        """The sum of weights, in steps, of each word that somebody gives."""
        totals: Counter[str] = Counter()
        for user, words in enumerate(words_by_user(users)):
            chosen = self._choose(words, users.user_id(user), key)
            weight = self.weight(max(len(chosen), 1))
            for word in chosen:
                totals[word] += weight
        return totals

    def _choose(self, words: list[str], user_id: str, key: bytes) -> list[str]:
        """The distinct words that a user gives, a function of the user's text and own stream."""
        distinct = list(dict.fromkeys(words))
        if len(distinct) <= self.words_per_user:
            return distinct
        stream = Stream(derive_key(key, "a user's words", user_id))
        return [distinct[i] for i in stream.subset(len(distinct), self.words_per_user)]


def _noise(words: list[str], key: bytes) -> NDArray[np.float64]:
    """A standard normal value for each word, from 128 bits that are a function of key and word.

    The law is that of `Stream.normal`: the second half is the fraction of the first.
    """
    keyed = hashlib.blake2b(key=derive_key(key, "noise of words"), digest_size=16)
    digests = []
    for word in words:
        digest = keyed.copy()
        digest.update(word.encode())
        digests.append(digest.digest())
    drawn = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2).astype(np.uint64)
    return normal_from_words(drawn[:, 0], (drawn[:, 1].astype(np.float64) + 0.5) * 2.0**-64)
