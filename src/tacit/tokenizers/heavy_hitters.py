"""Which words people use, learnt under local differential privacy: the "heavy hitters" baseline.

Bagdasaryan et al. 2022, section 5.3: each user contributes three words out of a public list, with a
local budget of epsilon = 8, by the algorithm of Apple (2017).  That is `count_mean_sketch`; each of
the three reports has epsilon / 3, and pure differential privacy adds up.

A user's words are drawn from the user's own text, occurrence by occurrence with replacement, so
that frequent words are reported more often.  Words that are no candidates are passed over, and who
has none sends reports of "nothing".

Guarantee: the number of reports is `population` times `words_per_user` whoever is there.  An absent
person's are "nothing", as if sent by a device without text.  So when a person leaves, each of the
person's reports changes from a word to nothing, at a cost of half its epsilon: epsilon / 2 in all,
under add/remove-one.  When a person is replaced by another, the cost is epsilon.  The event states
the larger figure for add/remove-one, the adjacency of everything else: epsilon is what is meant by
the local guarantee, where no two texts of a person can be told apart, and it is no less than what
add/remove-one asks for.

The threshold is a public number of standard deviations, which are computed from the reports alone.
What falls below it is dropped after the fact, at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.corpus.source import UserSource
from tacit.privacy import checks
from tacit.privacy.claims import format_number
from tacit.privacy.events import Adjacency, PureDP
from tacit.tokenizers import word_counts
from tacit.tokenizers.count_mean_sketch import NOTHING, CountMeanSketch
from tacit.tokenizers.normalisation import Normalisation, split_words
from tacit.tokenizers.normalisation import check as check_normalisation
from tacit.tokenizers.word_counts import WordCounts


@dataclass(frozen=True)
class HeavyHitters:
    """Count-mean sketch of a few words per user; `epsilon` is for all of a user's words together.

    An estimate is kept if it is above `threshold` standard deviations of the estimator.  Left out,
    it is set so that of candidates that nobody uses about one is expected to be kept.
    """

    epsilon: float = 8.0
    words_per_user: int = 3
    hashes: int = 1024
    width: int = 1024
    hash_seed: int = 0
    threshold: float | None = None
    normalisation: Normalisation = "papers"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("words_per_user", self.words_per_user, at_least=1)
        if self.threshold is not None:
            checks.non_negative("threshold", self.threshold)
        check_normalisation(self.normalisation)
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
        word_counts.check_users(users, population, key)
        index = _indexed(candidates, self.normalisation)
        reported = self._reported(users, index, population, key)
        sketch = self.sketch.collect(candidates, reported, word_counts.stream(key, "reports"))
        estimates = sketch.estimate(candidates)
        enough = estimates > self.deviations(len(candidates)) * sketch.stddev
        found = {candidates[i]: float(estimates[i]) for i in np.flatnonzero(enough).tolist()}
        return WordCounts(found, (self.event,), self._how())

    def deviations(self, candidates: int) -> float:
        """The threshold for so many candidates, in standard deviations; never below 0."""
        if self.threshold is not None:
            return self.threshold
        return float(-ndtri(min(1 / candidates, 0.5)))

    def _reported(
        self, users: UserSource, index: dict[str, int], population: int, key: bytes
    ) -> NDArray[np.int64]:
        """What each report of the population is about: a candidate's index, or nothing."""
        reported = np.full((population, self.words_per_user), NOTHING, np.int64)
        for user, words in enumerate(word_counts.words_by_user(users, self.normalisation)):
            own = [place for word in words if (place := index.get(word)) is not None]
            if own:
                stream = word_counts.stream(key, "a user's words", users.user_id(user))
                drawn = stream.integers(len(own), self.words_per_user)
                reported[user] = [own[i] for i in drawn]
        return reported.ravel()

    def _how(self) -> str:
        return (
            f"heavy hitters (count-mean sketch, local epsilon {format_number(self.epsilon)} for"
            f" {self.words_per_user} words per user)"
        )


def _indexed(candidates: Sequence[str], normalisation: Normalisation) -> dict[str, int]:
    """The place of each candidate; each must be one word, and there once."""
    if not candidates:
        raise ValueError("candidates must be a public list of words, got none")
    index: dict[str, int] = {}
    split = split_words(candidates, normalisation)
    for place, (word, found) in enumerate(zip(candidates, split, strict=True)):
        if found != [word]:
            raise ValueError(
                f"candidate {word!r} must be one word as the normalisation {normalisation!r}"
                f" leaves it, which makes {found} of it"
            )
        if index.setdefault(word, place) != place:
            raise ValueError(f"candidate {word!r} is in the list twice")
    return index
