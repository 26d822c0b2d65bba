"""Users who do not exist: any number of them, each computed when it is asked for.

A word is drawn by its rank from Zipf's law over the vocabulary.  Of the words, half follow from
the `order` words before them (one of BRANCHES successors of that context, the same for all
users), so there is something to learn; of the rest, half are drawn from the user's topic (the
same law over a vocabulary in another order), so users differ.  Every draw is a function of (seed,
user, position): user i is the same in every corpus of that seed, whatever the number of users.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.corpus import hashing
from tacit.corpus.hashing import Words, mixed
from tacit.corpus.source import Mask, Progress, UserCorpus, UserSource
from tacit.corpus.views import Subset

BRANCHES = 4
_BLOCK = 1024
_STEP = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment
_SYLLABLES = [consonant + vowel for vowel in "aeiou" for consonant in "tnsrhldcmfpgwybvkjxz"]


@dataclass(frozen=True)
class SyntheticOptions:
    """How many users of how many words, and how their words are drawn.

    words, words_per_text: words of each user in all, and of each text but perhaps the last.
    vocabulary: the number of different words.
    topics: users are divided into this many groups that prefer different words.
    order: the number of words before a word that it may follow from; 0 for none.
    """

    users: int = 1000
    words: int = 100
    words_per_text: int = 10
    vocabulary: int = 10_000
    topics: int = 10
    order: int = 1
    seed: int = 0
    test_fraction: float = 0.1
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        for name in ("users", "words", "words_per_text", "vocabulary", "topics"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.order <= 5:
            raise ValueError(f"order must be from 0 to 5, got {self.order}")
        for name in ("test_fraction", "held_out_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} must be at least 0 and at most 1, got {getattr(self, name)}"
                )


class SyntheticCorpus(UserCorpus):
    """Users drawn from a fixed law; nothing is stored but the vocabulary.

    Splits go by the same hashes as in an ingested corpus, so that ingesting these users gives the
    same test users and the same held-out texts.  They are about nobody: no claim about people is
    made, and nothing is remembered of them.
    """

    def __init__(self, options: SyntheticOptions | None = None) -> None:
        self.options = options or SyntheticOptions()
        ranks = np.arange(1, self.options.vocabulary + 1)
        weights = np.cumsum(1.0 / ranks)
        self._below = weights / weights[-1]
        self._spelling = [_spelled(rank) for rank in range(self.options.vocabulary)]
        digest = hashlib.sha256(f"tacit synthetic {self.options.seed}".encode()).digest()
        self._key = np.frombuffer(digest[:8], "<u8")[0]

    def __len__(self) -> int:
        return self.options.users

    def raw_id(self, index: int) -> str:
        """The id that the user has when the corpus is ingested."""
        return f"synthetic-{self.options.seed}-{index}"

    def user_id(self, index: int) -> str:
        index = self._checked(index)
        return hashing.derived("synthetic user", self.raw_id(index))[:32]

    def texts(self, index: int) -> list[str]:
        return self._block(np.array([self._checked(index)]))[0]

    def text_count(self, index: int) -> int:
        self._checked(index)
        return -(-self.options.words // self.options.words_per_text)

    def text_counts(self) -> npt.NDArray[np.int64]:
        return np.full(len(self), self.text_count(0))

    def held_out_mask(self, index: int) -> Mask:
        key = hashing.user_key(self.raw_id(index))
        below = hashing.threshold(self.options.held_out_fraction)
        texts = [text.encode() for text in self.texts(index)]
        return np.array([hashing.held_out_draw(key, text) < below for text in texts])

    def records(self) -> Iterator[tuple[str, list[str]]]:
        """(raw id, texts) of all users, for an ingest.

        A block of users is drawn at once, which is much faster than one user at a time.
        """
        for start in range(0, len(self), _BLOCK):
            users = np.arange(start, min(start + _BLOCK, len(self)))
            for user, texts in zip(users, self._block(users), strict=True):
                yield self.raw_id(int(user)), texts

    @property
    def identity(self) -> str:
        return self.fingerprint[:16]

    @property
    def split_identity(self) -> str:
        return self.identity

    @property
    def about_people(self) -> bool:
        return False

    @property
    def commitment(self) -> str:
        return hashing.derived("corpus commitment", self.fingerprint)

    def verify(self, progress: Progress | None = None) -> None:
        """Nothing is stored, so nothing can have been changed."""

    @property
    def fingerprint(self) -> str:
        return hashing.derived("synthetic", self.options)

    @property
    def train(self) -> UserSource:
        return Subset(self, np.flatnonzero(~self._is_test))

    @property
    def test(self) -> UserSource:
        return Subset(self, np.flatnonzero(self._is_test))

    def info(self) -> dict[str, Any]:
        return {
            "format": "synthetic",
            "users": len(self),
            "test_users": int(self._is_test.sum()),
            "texts": len(self) * self.text_count(0),
            "words": len(self) * self.options.words,
            "options": asdict(self.options),
            "fingerprint": self.fingerprint,
        }

    @cached_property
    def _is_test(self) -> Mask:
        """For each user, whether it is a test user."""
        fraction = self.options.test_fraction
        marks = (
            hashing.is_test(hashing.user_key(self.raw_id(i)), fraction) for i in range(len(self))
        )
        return np.fromiter(marks, np.bool_, len(self))

    def _block(self, users: npt.NDArray[np.int64]) -> list[list[str]]:
        """The texts of some users."""
        words, size = self.options.words, self.options.words_per_text
        ranks = self._ranks(users).reshape(len(users), -1)[:, :words].tolist()
        spell = self._spelling.__getitem__
        return [
            [" ".join(map(spell, row[i : i + size])) for i in range(0, words, size)]
            for row in ranks
        ]

    def _ranks(self, users: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The words' ranks, [user, text, position].

        Positions are drawn one after the other, for all users and texts at once, since a word may
        follow from those before it; a text knows nothing of the one before.
        """
        options = self.options
        texts, size = self.text_count(0), options.words_per_text
        own = mixed(self._key + users.astype(np.uint64) * _STEP)
        topic = (own % np.uint64(options.topics)).astype(np.int64)[:, None]
        context: list[Words] = [np.zeros((len(users), texts), np.uint64)] * options.order
        ranks = np.empty((len(users), texts, size), np.int64)
        for position in range(size):
            index = (np.arange(texts) * size + position).astype(np.uint64)[None, :]
            draw = mixed(own[:, None] + (index + np.uint64(1)) * _STEP)
            rank = self._rank(mixed(draw + _STEP))
            # Topics take every t-th word of the vocabulary, starting elsewhere.
            topical = (rank * (2 * topic + 3) + 31 * topic) % options.vocabulary
            bits = draw >> np.uint64(56)
            rank = np.where(bits & np.uint64(1), topical, rank)
            if context:
                state = np.full_like(draw, self._key)
                for word in context:
                    state = mixed(state + (word + np.uint64(1)) * _STEP)
                branch = (draw >> np.uint64(32)) % np.uint64(BRANCHES)
                follows = self._rank(mixed(state + branch * _STEP))
                rank = np.where(bits & np.uint64(2), follows, rank)
                context = [*context[1:], rank.astype(np.uint64) + np.uint64(1)]
            ranks[:, :, position] = rank
        return ranks

    def _rank(self, bits: Words) -> npt.NDArray[np.int64]:
        """Zipf's law by inversion of 53-bit uniform draws."""
        uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(self._below, uniform, side="right").astype(np.int64)


def _spelled(rank: int) -> str:
    """A made-up word for each rank: the more frequent, the shorter."""
    word = _SYLLABLES[rank % 100]
    while rank := rank // 100:
        rank -= 1
        word = _SYLLABLES[rank % 100] + word
    return word
