"""A model's vectors for another tokenizer: Bagdasaryan et al. 2022, section 4.3 and REMAP.

A new token begins with the mean of the vectors of the old tokens that spell it:

    map[t, u] = (how often u is among the old tokens that spell t) / (how many those are)
    embedding <- map . embedding

Algorithm 1 makes `map` new x old, as the product needs it, but then writes map[old, new]: the
order here is that of the product.  It also assigns 1/len rather than adds it, so that an old token
that occurs twice in a new one would count once; here it counts twice, and every row sums to 1.

Tokens are compared as bytes (see `spelling`), never as strings.  A token of the same bytes maps one
to one, and BOS, EOS and UNK go by what they are for, whatever they are called.  From a dictionary,
a word that it lacks begins as a copy of UNK.

Guarantee: a token with one source keeps every bit, so a tokenizer onto itself changes nothing.  The
map is a function of two public vocabularies, and applying it to a release is post-processing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, get_args

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tacit.tokenizers import normalisation as normalisations
from tacit.tokenizers.spelling import Spelling
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Remapping:
    """Row i for the new vocabulary is the mean of the old rows `sources[i]`."""

    old_size: int
    sources: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not all(self.sources):
            raise ValueError(
                f"each new token needs a source, and token {self.sources.index(())} has none"
            )
        if self.sources and not 0 <= self._flat.min() <= self._flat.max() < self.old_size:
            raise ValueError(
                f"sources must be from 0 to {self.old_size - 1}, got {self._flat.min()} to"
                f" {self._flat.max()}"
            )

    @classmethod
    def between(cls, old: Tokenizer, new: Tokenizer) -> Remapping:
        """The old tokens that spell each new one; `ValueError` if the two do not fit together."""
        by_role = _roles(old, new)
        before, after = Spelling.of(old), Spelling.of(new)
        _check_same_text(before, after)
        sources = (
            (by_role[id],) if text is None else tuple(before.spell(text))
            for id, text in enumerate(after.tokens)
        )
        return cls(old.vocab_size, tuple(sources))

    @property
    def new_size(self) -> int:
        """How many tokens the new vocabulary has."""
        return len(self.sources)

    @property
    def is_identity(self) -> bool:
        """Is every token its own and only source?"""
        same = self.new_size == self.old_size and bool(self.copied.all())
        return same and bool((self._flat == np.arange(self.old_size)).all())

    @cached_property
    def copied(self) -> NDArray[np.bool_]:
        """Which new rows have one source, and are copies of it."""
        return _fixed(self._lengths == 1)

    def apply(self, values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
        """The values for the new vocabulary; `axis` is the one that counts tokens.

        Means are computed in float64 and rounded to the type of the values, whole numbers too.
        """
        if not (-values.ndim <= axis < values.ndim and values.shape[axis] == self.old_size):
            raise ValueError(
                f"axis {axis} of the values must count the {self.old_size} old tokens, got shape"
                f" {list(values.shape)}"
            )
        rows = np.moveaxis(values, axis, 0)
        result = rows[self._flat[self._starts]]  # bit for bit
        averaged = np.flatnonzero(~self.copied)
        if averaged.size:
            flat = rows.reshape(self.old_size, math.prod(rows.shape[1:])).astype(np.float64)
            means = (self._occurrences[averaged] @ flat) / self._lengths[averaged, np.newaxis]
            if not np.issubdtype(values.dtype, np.inexact):
                np.rint(means, out=means)
            result[averaged] = means.reshape(len(averaged), *rows.shape[1:]).astype(values.dtype)
        return np.ascontiguousarray(np.moveaxis(result, 0, axis))

    def matrix(self) -> scipy.sparse.csr_array:
        """Algorithm 1's `map`: new x old, and every row sums to 1."""
        return (scipy.sparse.diags_array(1 / self._lengths) @ self._occurrences).tocsr()

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return _fixed(np.fromiter(map(len, self.sources), np.int64, len(self.sources)))

    @cached_property
    def _flat(self) -> NDArray[np.int64]:
        """All sources, one new token after the other."""
        return _fixed(np.fromiter(chain.from_iterable(self.sources), np.int64))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each new token's sources begin."""
        return _fixed(np.cumsum(self._lengths) - self._lengths)

    @cached_property
    def _occurrences(self) -> scipy.sparse.csr_array:
        """How often each old token is among the sources of each new one."""
        ends = np.append(self._starts, len(self._flat))
        counts = scipy.sparse.csr_array(
            (np.ones(len(self._flat)), self._flat.copy(), ends),
            shape=(self.new_size, self.old_size),
        )
        counts.sum_duplicates()
        return counts


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _roles(old: Tokenizer, new: Tokenizer) -> dict[int, int]:
    """The old token for each new one that is no text."""
    roles = {new.bos: old.bos, new.eos: old.eos}
    if new.unk is not None:
        if old.unk is None:
            raise ValueError(
                f"the new {new.kind} tokenizer has a token for unknown words and the old"
                f" {old.kind} tokenizer has none, so there is no vector for it to begin with: take"
                " kind bpe, which needs none"
            )
        roles[new.unk] = old.unk
    return roles


def _check_same_text(old: Spelling, new: Spelling) -> None:
    """Tokens are of normalised text, so their bytes compare under one normalisation only."""
    if old.normaliser != new.normaliser:
        raise ValueError(
            f"the old tokenizer has the normalisation {_name(old.normaliser)} and the new one"
            f" {_name(new.normaliser)}: their tokens are of different texts, so train the new one"
            " with that of the old"
        )


def _name(normaliser: dict[str, Any] | None) -> str:
    for name in get_args(normalisations.Normalisation):
        rule = normalisations.normalizer(name)
        if normaliser == (None if rule is None else json.loads(rule.__getstate__())):
            return repr(name)
    return "of another library"
