"""What holds people's text: users addressed 0..len-1, each with a list of texts.

`UserSource` is what everything downstream (tokenizers, training, evaluation) reads from: a corpus
on disk, a generated one, or a view of either.  A subclass must say how many users there are, who
they are and what they wrote; access to single texts follows from that, correct if slow, and is
overridden where it can be faster.  `UserCorpus` is a source that is whole: it has training and
test users, and knows whose text it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]


class UserSource(ABC):
    """Users and their texts, read only, one user at a time."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of users."""

    @abstractmethod
    def user_id(self, index: int) -> str:
        """The user's hashed id, in hexadecimal."""

    @abstractmethod
    def texts(self, index: int) -> list[str]:
        """The user's texts, in their order."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes when any user or text does: the key of caches."""

    @property
    def is_synthetic_users(self) -> bool:
        """Whether a user of this view is not one person, so that no claim is about people."""
        return False

    def text(self, index: int, position: int) -> str:
        """One text of a user."""
        return self.texts(index)[position]

    def text_count(self, index: int) -> int:
        """The number of texts of a user."""
        return len(self.texts(index))

    def text_counts(self) -> Counts:
        """The number of texts of each user."""
        return np.fromiter((self.text_count(i) for i in range(len(self))), np.int64, len(self))

    def held_out_mask(self, index: int) -> Mask:
        """For each of a user's texts, whether it is held out from training."""
        raise ValueError(f"{type(self).__name__} does not say which texts are held out")

    def _checked(self, index: int) -> int:
        """A user's index as an int; negative indices and those past the end are refused."""
        value = int(index)
        if not 0 <= value < len(self):
            raise IndexError(f"user {index} of {len(self)}: users are numbered from 0")
        return value


class UserCorpus(UserSource):
    """All users, divided into those to train on and those to test on."""

    @property
    @abstractmethod
    def train(self) -> UserSource:
        """The users to train on."""

    @property
    @abstractmethod
    def test(self) -> UserSource:
        """The users to test on: disjoint from the training users, and unprotected."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Whose text it is: the same id for every corpus of the same people.  Public."""

    @property
    @abstractmethod
    def split_identity(self) -> str:
        """The same for corpora that divide the same users into the same parts.  Public."""

    @property
    @abstractmethod
    def about_people(self) -> bool:
        """Whether the users are people, recorded at ingest; a generated corpus is about nobody."""

    @property
    @abstractmethod
    def commitment(self) -> str:
        """A digest for public files.

        It changes with any byte of the users' text or of the split, and reveals nothing about
        them to a reader who does not know the salt.
        """

    @abstractmethod
    def verify(self, progress: Progress | None = None) -> None:
        """Read everything and raise if it is not what was written.

        `progress` is called with the bytes read so far and the bytes to read in all.
        """

    @property
    def declarations(self) -> tuple[str, ...]:
        """What was declared about its people, for a claim to list as excluded."""
        return ()

    @abstractmethod
    def info(self) -> Mapping[str, Any]:
        """Facts about the corpus for people to read; without the salt."""
