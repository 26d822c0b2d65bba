"""What holds people's text: users addressed 0..len-1, each with a list of texts.

`UserSource` is the contract that everything downstream (tokenizers, training, evaluation) relies
on, and it is small on purpose: anything with these five members can be trained on.  `Source` is
the base class of ours: it adds access to single texts and the mark of held-out texts, which the
views need and which defaults make correct, if slow, for every subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]


@runtime_checkable
class UserSource(Protocol):
    """Users and their texts, read only, one user at a time."""

    def __len__(self) -> int:
        """How many users there are."""
        ...

    def user_id(self, index: int) -> str:
        """The user's hashed id, in hexadecimal."""
        ...

    def texts(self, index: int) -> list[str]:
        """The user's texts, in their order."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest that changes when any user or text does: the key of caches."""
        ...

    @property
    def is_synthetic_users(self) -> bool:
        """Whether the users stand for nobody, so that no claim about people may be made."""
        ...


class Source(ABC):
    """A `UserSource` that also reads single texts and knows which of them are held out."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def user_id(self, index: int) -> str: ...

    @abstractmethod
    def texts(self, index: int) -> list[str]: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @property
    def is_synthetic_users(self) -> bool:
        return False

    def text(self, index: int, position: int) -> str:
        """One text of a user."""
        return self.texts(index)[position]

    def text_count(self, index: int) -> int:
        """How many texts a user has."""
        return len(self.texts(index))

    def text_counts(self) -> Counts:
        """How many texts each user has."""
        return np.fromiter((self.text_count(i) for i in range(len(self))), np.int64, len(self))

    def held_out_mask(self, index: int) -> Mask:
        """For each of a user's texts: is it held out?"""
        raise ValueError(f"{type(self).__name__} does not say which texts are held out")


class UserCorpus(Source):
    """All users, divided into those to train on and those to test on."""

    @property
    @abstractmethod
    def train(self) -> Source:
        """The users to train on."""

    @property
    @abstractmethod
    def test(self) -> Source:
        """The users to test on: disjoint from the training users, and unprotected."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Whose text it is: the same for every corpus of the same people, and public."""

    @property
    @abstractmethod
    def split_identity(self) -> str:
        """The same for corpora that divide the same users into the same parts; public."""

    @property
    @abstractmethod
    def about_people(self) -> bool:
        """Whether the users are people, so that a claim about them means something."""

    @property
    @abstractmethod
    def commitment(self) -> str:
        """A digest for public files: it changes with any byte of the users' text or of the split,
        and tells nothing to whoever does not know the salt.
        """

    @abstractmethod
    def verify(self, progress: Progress | None = None) -> None:
        """Read everything and raise if it is not what was written; `progress` is told the bytes
        read so far and in all.
        """

    @property
    def declarations(self) -> tuple[str, ...]:
        """What was declared of its people, for a claim to list as excluded."""
        return ()

    @abstractmethod
    def info(self) -> Mapping[str, Any]:
        """Facts about the corpus, for people to read."""


class Adapted(Source):
    """Any `UserSource` with the rest of `Source` added."""

    def __init__(self, source: UserSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def user_id(self, index: int) -> str:
        return self._source.user_id(index)

    def texts(self, index: int) -> list[str]:
        return self._source.texts(index)

    @property
    def fingerprint(self) -> str:
        return self._source.fingerprint

    @property
    def is_synthetic_users(self) -> bool:
        return self._source.is_synthetic_users


def as_source(source: UserSource) -> Source:
    """The source itself if it is one of ours, else an adapter around it."""
    return source if isinstance(source, Source) else Adapted(source)


def checked_index(index: int, length: int) -> int:
    """A user's index as an int; negative ones and those past the end are refused."""
    value = int(index)
    if not 0 <= value < length:
        raise IndexError(f"user {index} of {length}: users are numbered from 0")
    return value
