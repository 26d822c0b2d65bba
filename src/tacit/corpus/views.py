"""Other ways to look at a source: some users, some of their texts, or shuffled records.

Every view is itself a `UserSource`.  It holds indices at most, and reads text only when a user is
asked for, so a view of ten million users costs no more than their indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.corpus.hashing import Permutation, derived
from tacit.corpus.source import Counts, Mask, UserSource

Indices = range | Sequence[int] | npt.NDArray[np.integer]


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

    def __init__(self, source: UserSource, indices: Indices) -> None:
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

    def text_count(self, index: int) -> int:
        return self._source.text_count(self._at(index))

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


def part(source: UserSource, number: int, of: int) -> UserSource:
    """One of `of` disjoint parts of the users, `number` counted from 1; all parts make the whole.

    A user's own hashed id decides its part, so one user's coming or going never moves another.
    """
    if not 1 <= number <= of:
        raise ValueError(f"part must be from 1/{of} to {of}/{of}, got {number}/{of}")
    head = np.fromiter((int(source.user_id(i)[:15], 16) for i in range(len(source))), np.int64)
    return Subset(source, np.flatnonzero(head % of == number - 1))


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

    def text_count(self, index: int) -> int:
        return int(self._kept(index).sum())

    def held_out_mask(self, index: int) -> Mask:
        return np.full(self.text_count(index), self._held_out)

    @property
    def fingerprint(self) -> str:
        return derived("held out" if self._held_out else "kept", self._source.fingerprint)

    def _kept(self, index: int) -> Mask:
        """For each of the user's texts in the source, whether it is in this view."""
        mask: Mask = self._source.held_out_mask(index) == self._held_out
        return mask


def held_out(source: UserSource) -> UserSource:
    """The same users with their held-out texts only; some may have none."""
    return _TextSplit(source, True)


def kept(source: UserSource) -> UserSource:
    """The same users without their held-out texts; some may have none."""
    return _TextSplit(source, False)


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

    def text(self, index: int, position: int) -> str:
        return self._source.text(*self._records(index)[position])

    def text_count(self, index: int) -> int:
        index = self._checked(index)
        return int(self._starts[index + 1] - self._starts[index])

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
