"""What holds people's text: users addressed 0..len-1, each with a list of texts.

`UserSource` is what everything downstream (tokenizers, training, evaluation) reads from: a corpus
on disk, a generated one, or a view of either.  A subclass must say how many users there are, who
they are and what they wrote; single texts and their number follow from that, correct if slow, and
are overridden where they can be faster.  `UserCorpus` is a source that is whole: it has training
and test users, and knows whose text it is.

The other classes are views: some users of a source, some of their texts, or all records reshuffled.
Every view is itself a `UserSource`.  It holds indices at most, and reads text only when a user is
asked for, so a view of ten million users costs no more than their indices.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.corpus.hashing import Permutation, derived

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
_Indices = range | Sequence[int] | npt.NDArray[np.integer]


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

    def text_counts(self) -> Counts:
        """The number of texts of each user."""
        return np.fromiter((len(self.texts(i)) for i in range(len(self))), np.int64, len(self))

    def held_out_mask(self, index: int) -> Mask:
        """For each of a user's texts, whether it is held out from training."""
        raise ValueError(f"{type(self).__name__} does not say which texts are held out")

    def held_out(self) -> UserSource:
        """The same users with their held-out texts only; some may have none."""
        return _TextSplit(self, True)

    def kept(self) -> UserSource:
        """The same users without their held-out texts; some may have none."""
        return _TextSplit(self, False)

    def part(self, number: int, of: int) -> UserSource:
        """One of `of` disjoint parts of the users, `number` counted from 1.

        A user's own hashed id decides its part, so one user's coming or going never moves another.
        """
        if not 1 <= number <= of:
            raise ValueError(f"part must be from 1/{of} to {of}/{of}, got {number}/{of}")
        head = np.fromiter((int(self.user_id(i)[:15], 16) for i in range(len(self))), np.int64)
        return Subset(self, np.flatnonzero(head % of == number - 1))

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
    def has_text(self) -> bool:
        """Whether the training users' text is here; that of enrolled people stays with them."""
        return True

    @property
    def silos(self) -> Mapping[str, int]:
        """How many people at most are behind each training user; empty where each is one person."""
        return {}

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

    def declarations(self, colluding: int | None = None) -> tuple[str, ...]:
        """What was declared about its people, for a claim to list as excluded.

        Where users add the noise, so many of them may know their own.
        """
        return ()

    @abstractmethod
    def info(self) -> Mapping[str, Any]:
        """Facts about the corpus for people to read; without the salt."""


class View(UserSource):
    """A source that passes everything on to another; subclasses change some of it.

    Single texts and counts are not passed on: they follow from `texts`, which most views change.
    """

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


class Subset(View):
    """The users at some indices, in that order.

    A range of indices costs nothing to hold; a list or an array is kept as it is.  The fingerprint
    names the indices, so caches of two subsets never meet.
    """

    def __init__(self, source: UserSource, indices: _Indices) -> None:
        super().__init__(source)
        if isinstance(indices, range):
            self._indices: range | npt.NDArray[np.int64] = indices
            ends = [indices[0], indices[-1]] if indices else []
            self._label = f"{indices.start}:{indices.stop}:{indices.step}"
        else:
            array = np.asarray(indices)
            if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
                raise ValueError("indices must be a list of whole numbers")
            self._indices = array.astype(np.int64)
            ends = [int(array.min()), int(array.max())] if array.size else []
            self._label = hashlib.sha256(self._indices.astype("<i8").tobytes()).hexdigest()
        if any(not 0 <= end < len(source) for end in ends):
            raise ValueError(f"indices must be from 0 to {len(source) - 1}, got {ends}")

    def __len__(self) -> int:
        return len(self._indices)

    def user_id(self, index: int) -> str:
        return self._source.user_id(self._at(index))

    def texts(self, index: int) -> list[str]:
        return self._source.texts(self._at(index))

    def text(self, index: int, position: int) -> str:
        return self._source.text(self._at(index), position)

    def text_counts(self) -> Counts:
        counts, chosen = self._source.text_counts(), self._indices
        if isinstance(chosen, range) and chosen.step == 1:
            return counts[chosen.start : chosen.stop]
        return counts[np.asarray(chosen, dtype=np.int64)]

    def held_out_mask(self, index: int) -> Mask:
        return self._source.held_out_mask(self._at(index))

    @property
    def fingerprint(self) -> str:
        return derived("subset", self._source.fingerprint, self._label)

    def _at(self, index: int) -> int:
        """The index in the source of a user of this view."""
        return int(self._indices[self._checked(index)])


class _TextSplit(View):
    """Each user's held-out texts, or all the others.

    Held-out texts of training users measure how well a model fits people it was trained on; they
    are as private as the texts that are trained on.
    """

    def __init__(self, source: UserSource, held_out: bool) -> None:
        super().__init__(source)
        self._held_out = held_out

    def texts(self, index: int) -> list[str]:
        texts = self._source.texts(index)
        return [text for text, keep in zip(texts, self._kept(index), strict=True) if keep]

    def text(self, index: int, position: int) -> str:
        return self._source.text(index, int(np.flatnonzero(self._kept(index))[position]))

    def text_counts(self) -> Counts:
        return np.fromiter((self._kept(i).sum() for i in range(len(self))), np.int64, len(self))

    def held_out_mask(self, index: int) -> Mask:
        return np.full(self._kept(index).sum(), self._held_out)

    @property
    def fingerprint(self) -> str:
        return derived("held out" if self._held_out else "kept", self._source.fingerprint)

    def _kept(self, index: int) -> Mask:
        """For each of the user's texts in the source, whether it is in this view."""
        mask: Mask = self._source.held_out_mask(index) == self._held_out
        return mask


class IID(View):
    """All records reshuffled over synthetic users of the same sizes (Thakkar 2020's IID setting).

    A user of this view holds texts of many people: a guarantee for it says nothing about any of
    them, and `is_synthetic_users` says so.
    """

    def __init__(self, source: UserSource, seed: int = 0) -> None:
        super().__init__(source)
        self._starts = np.concatenate([[0], np.cumsum(source.text_counts())])
        self._order = Permutation(int(self._starts[-1]), seed)
        self._seed = seed

    def user_id(self, index: int) -> str:
        return derived("iid user", self.fingerprint, self._checked(index))[:32]

    def texts(self, index: int) -> list[str]:
        return [self._source.text(*record) for record in self._records(index)]

    def text_counts(self) -> Counts:
        return np.diff(self._starts)

    def held_out_mask(self, index: int) -> Mask:
        records = self._records(index)
        marks = [self._source.held_out_mask(user)[position] for user, position in records]
        return np.array(marks, dtype=np.bool_)

    @property
    def fingerprint(self) -> str:
        return derived("iid", self._source.fingerprint, self._seed)

    @property
    def is_synthetic_users(self) -> bool:
        return True

    def _records(self, index: int) -> list[tuple[int, int]]:
        """The records of a synthetic user, as (user, position) in the source."""
        index = self._checked(index)
        ranks = self._order(np.arange(self._starts[index], self._starts[index + 1]))
        users = np.searchsorted(self._starts, ranks, side="right") - 1
        return list(zip(users.tolist(), (ranks - self._starts[users]).tolist(), strict=True))
