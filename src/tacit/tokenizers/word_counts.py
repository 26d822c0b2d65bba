"""Words with counts that were learnt privately, what they cost, and the tokenizers made of them.

A method of learning which words people use, such as `partition_selection` here and heavy hitters in
`tacit_papers`, returns `WordCounts`.  Methods share what is here: whom they may ask, and how their
randomness is keyed.
"""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tacit.corpus.source import UserSource
from tacit.privacy import checks
from tacit.privacy.events import Event
from tacit.tokenizers import build, provenance
from tacit.tokenizers.normalisation import split_words
from tacit.tokenizers.tokenizer import Kind, Tokenizer

KEY_SIZE = 32
_WORDS_PER_TEXT = 100_000


@dataclass(frozen=True)
class WordCounts:
    """A private release: words, noisy counts in any unit, the events it costs, and how it was made.

    Everything computed from it, such as a tokenizer, is post-processing and costs nothing more.
    """

    counts: dict[str, float]
    events: tuple[Event, ...]
    how: str

    def __post_init__(self) -> None:
        provenance.check(f"private: {self.how}")
        if not self.events:
            raise ValueError("events must say what the counts cost, got none")
        for word, count in self.counts.items():
            if not (count > 0 and math.isfinite(count)):
                raise ValueError(f"the count of {word!r} must be a finite number above 0: {count}")

    def tokenizer(self, kind: Kind, size: int) -> Tokenizer:
        """The most frequent words, or what BPE, WordPiece or characters make of them.

        A dictionary ends with ASCII punctuation, as those from public lists of words do: three
        words per user seldom include it, and it is public knowledge.
        """
        if not self.counts:
            raise ValueError(
                f"no word was found by {self.how}, so there is nothing to make a tokenizer of;"
                " allow a larger epsilon or ask more people"
            )
        origin = f"private: {self.how}"
        if kind == "word":
            return build.dictionary(self.counts, size, provenance=origin)
        texts = build.texts_of(self.counts, _WORDS_PER_TEXT)
        return build.learn(kind, texts, size, provenance=origin)


def check_users(users: UserSource, population: int, key: bytes) -> None:
    """The population is declared and never counted, and the key is a secret of full length."""
    checks.whole("population", population, at_least=1)
    if len(users) > population:
        raise ValueError(
            f"population must be at least the {len(users)} users there are, got {population}"
        )
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        got = f"{len(key)}" if isinstance(key, bytes) else type(key).__name__
        raise ValueError(f"key must be {KEY_SIZE} secret bytes, got {got}")


def words_by_user(users: UserSource) -> Iterator[list[str]]:
    """The words of each user in turn, in the order of the user's text, repetitions included.

    One call of `split_words` serves all users: what it sets up takes longer than a short text.
    """
    texts: deque[str] = deque()
    split = split_words(iter(texts.popleft, None), "papers")  # asked only when there are some
    for user in range(len(users)):
        own = users.texts(user)
        texts.extend(own)
        yield [word for _ in own for word in next(split)]


def derive_key(key: bytes, purpose: str, of: str = "") -> bytes:
    """The key of one purpose, such as a user's own choices: independent of all others.

    No purpose has a NUL in it, so no two pairs of purpose and `of` are spelled alike.
    """
    return hmac.digest(key, f"tacit words, 1: {purpose}\0{of}".encode(), "sha256")
