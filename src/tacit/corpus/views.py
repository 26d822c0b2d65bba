"""Other ways to look at a source: some users, some texts, other texts, or shuffled records.

All of them are sources, hold indices at most, and read text only when a user is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tacit.corpus.caps import first_words
from tacit.corpus.hashing import derived
from tacit.corpus.shuffle import Permutation
from tacit.corpus.source import Counts, Mask, Source, UserSource, as_source, checked_index

Indices = range | Sequence[int] | npt.NDArray[np.integer]


class _View(Source):
    """A source that passes everything on to another; subclasses change some of it."""

    def __init__(self, source: UserSource) -> None:
        self._source = as_source(source)

    def __len__(self) -> int:
        return len(self._source)

    def user_id(self, index: int) -> str:
        return self._source.user_id(index)

    def texts(self, index: int) -> list[str]:
        return self._source.texts(index)

    @property
    def is_synthetic_users(self) -> bool:
        return self._source.is_synthetic_users


class Subset(_View):
    """The users at the given indices, in that order."""

    def __init__(self, source: UserSource, indices: Indices) -> None:
        super().__init__(source)
        if isinstance(indices, range):
            self._indices: range | npt.NDArray[np.int64] = indices
            ends = [indices[0], indices[-1]] if indices else []
            what: str = f"{indices.start}:{indices.stop}:{indices.step}"
        else:
            array = np.asarray(indices)
            if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
                raise ValueError("indices must be a list of whole numbers")
            self._indices = array.astype(np.int64)
            ends = [int(array.min()), int(array.max())] if array.size else []
            what = hashlib.sha256(self._indices.astype("<i8").tobytes()).hexdigest()
        if any(not 0 <= end < len(source) for end in ends):
            raise ValueError(f"indices must be from 0 to {len(source) - 1}, got {ends}")
        self._what = what

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
        chosen = self._indices
        if isinstance(chosen, range):
            if chosen.step != 1:
                return super().text_counts()
            return self._source.text_counts()[chosen.start : chosen.stop]
        return self._source.text_counts()[chosen]

    def held_out_mask(self, index: int) -> Mask:
        return self._source.held_out_mask(self._at(index))

    @property
    def fingerprint(self) -> str:
        return derived("subset", self._source.fingerprint, self._what)

    def _at(self, index: int) -> int:
        return int(self._indices[checked_index(index, len(self))])


def part(source: UserSource, number: int, of: int) -> Source:
    """One of `of` disjoint parts of the users, `number` counted from 1; all parts make the whole.

    The user's own hashed id decides, so that nobody's coming or going moves anybody else.
    """
    if not 1 <= number <= of:
        raise ValueError(f"part must be from 1/{of} to {of}/{of}, got {number}/{of}")
    head = np.fromiter((int(source.user_id(i)[:15], 16) for i in range(len(source))), np.int64)
    return Subset(source, np.flatnonzero(head % of == number - 1))


class _TextSplit(_View):
    """Each user's held-out texts, or all the others."""

    def __init__(self, source: UserSource, held_out: bool) -> None:
        super().__init__(source)
        self._held_out = held_out

    def texts(self, index: int) -> list[str]:
        wanted = self._wanted(index)
        texts = self._source.texts(index)
        return [text for text, keep in zip(texts, wanted, strict=True) if keep]

    def text(self, index: int, position: int) -> str:
        return self._source.text(index, int(np.flatnonzero(self._wanted(index))[position]))

    def text_count(self, index: int) -> int:
        return int(self._wanted(index).sum())

    def held_out_mask(self, index: int) -> Mask:
        return np.full(self.text_count(index), self._held_out)

    @property
    def fingerprint(self) -> str:
        return derived("held out" if self._held_out else "kept", self._source.fingerprint)

    def _wanted(self, index: int) -> Mask:
        wanted: Mask = self._source.held_out_mask(index) == self._held_out
        return wanted


def held_out(source: UserSource) -> Source:
    """The same users with their held-out texts only; some may have none."""
    return _TextSplit(source, True)


def kept(source: UserSource) -> Source:
    """The same users without their held-out texts; some may have none."""
    return _TextSplit(source, False)


class Capped(_View):
    """Each user's first texts or words; the text that goes past max_words is cut."""

    def __init__(
        self, source: UserSource, *, max_texts: int | None = None, max_words: int | None = None
    ) -> None:
        super().__init__(source)
        for name, value in (("max_texts", max_texts), ("max_words", max_words)):
            if value is not None and not value >= 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._max_texts, self._max_words = max_texts, max_words

    def texts(self, index: int) -> list[str]:
        texts = self._source.texts(index)[: self._max_texts]
        if self._max_words is None:
            return texts
        found, left = [], self._max_words
        for text in texts:
            if left <= 0:
                break
            found.append(first_words(text, left))
            left -= len(text.split())
        return found

    def held_out_mask(self, index: int) -> Mask:
        return self._source.held_out_mask(index)[: self.text_count(index)]

    @property
    def fingerprint(self) -> str:
        return derived("capped", self._source.fingerprint, self._max_texts, self._max_words)


class Replaced(_View):
    """Each user's texts as a function of its index and its texts: canaries go in this way.

    `replace` must give the same answer every time, and `label` must name it completely: caches
    tell two replacements apart by the label alone.
    """

    def __init__(
        self, source: UserSource, replace: Callable[[int, list[str]], list[str]], label: str
    ) -> None:
        super().__init__(source)
        self._replace, self._label = replace, label

    def texts(self, index: int) -> list[str]:
        return self._replace(index, self._source.texts(index))

    @property
    def fingerprint(self) -> str:
        return derived("replaced", self._source.fingerprint, self._label)


class IID(_View):
    """All records reshuffled over synthetic users of the same sizes (Thakkar 2020's IID setting).

    The users of this view stand for nobody, and a guarantee for them says nothing about people.
    """

    def __init__(self, source: UserSource, seed: int = 0) -> None:
        super().__init__(source)
        counts = self._source.text_counts()
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._order = Permutation(int(self._starts[-1]), seed)
        self._seed = seed

    def user_id(self, index: int) -> str:
        return derived("iid user", self.fingerprint, checked_index(index, len(self)))[:32]

    def texts(self, index: int) -> list[str]:
        return [self._source.text(user, place) for user, place in self._records(index)]

    def text(self, index: int, position: int) -> str:
        return self._source.text(*self._records(index)[position])

    def text_count(self, index: int) -> int:
        index = checked_index(index, len(self))
        return int(self._starts[index + 1] - self._starts[index])

    def text_counts(self) -> Counts:
        return np.diff(self._starts)

    def held_out_mask(self, index: int) -> Mask:
        marks = [self._source.held_out_mask(user)[place] for user, place in self._records(index)]
        return np.array(marks, dtype=np.bool_)

    @property
    def fingerprint(self) -> str:
        return derived("iid", self._source.fingerprint, self._seed)

    @property
    def is_synthetic_users(self) -> bool:
        return True

    def _records(self, index: int) -> list[tuple[int, int]]:
        """Whose records this synthetic user holds: (user, position) in the source."""
        index = checked_index(index, len(self))
        places = self._order(np.arange(self._starts[index], self._starts[index + 1]))
        users = np.searchsorted(self._starts, places, side="right") - 1
        return list(zip(users.tolist(), (places - self._starts[users]).tolist(), strict=True))
