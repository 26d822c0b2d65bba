"""From utterances to the tensors that a model trains on.

All text is looked up once: `Encoder.prepare` makes arrays of it, and after that a batch is cut out
by indices and padded to the longest of its utterances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.data import NLUData, Utterance

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Labels:
    """The intents and tags that a model knows, by their places: a public schema, declared."""

    intents: tuple[str, ...]
    tags: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("intents", "tags"):
            names = tuple(getattr(self, name))
            object.__setattr__(self, name, names)
            if not names:
                raise ValueError(f"{name} must have at least one name, got none")
            if not all(isinstance(each, str) and each for each in names):
                raise ValueError(f"{name} must be names, got {names!r}")
            if len(set(names)) != len(names):
                twice = next(each for each in names if names.count(each) > 1)
                raise ValueError(f"{name} must differ from each other, got {twice!r} twice")

    @classmethod
    def of(cls, data: NLUData) -> Labels:
        """The labels of the training utterances, with which the schema is declared public."""
        return cls(data.intents, data.tags)

    def knows(self, utterance: Utterance) -> bool:
        """Whether its intent and all of its tags are among the labels."""
        return utterance.intent in self._intent_ids and all(
            tag in self._tag_ids for tag in utterance.tags
        )

    def intent_id(self, intent: str) -> int:
        return _known("intent", intent, self._intent_ids)

    def tag_ids(self, tags: Sequence[str]) -> list[int]:
        return [_known("tag", tag, self._tag_ids) for tag in tags]

    @cached_property
    def _intent_ids(self) -> dict[str, int]:
        return {intent: place for place, intent in enumerate(self.intents)}

    @cached_property
    def _tag_ids(self) -> dict[str, int]:
        return {tag: place for place, tag in enumerate(self.tags)}


class Prepared(Protocol):
    """Utterances after all look-ups."""

    @property
    def lengths(self) -> Integers:
        """How many tokens each utterance has."""

    def batch(self, indices: Integers) -> tuple[dict[str, Tensor], Tensor]:
        """What the model reads of these utterances, and the mask [B, T] of their tokens."""


class Encoder(Protocol):
    """How a kind of model reads tokens.  It is part of what is released (design rule 9)."""

    kind: ClassVar[str]

    @property
    def provenance(self) -> str:
        """Where its vocabulary comes from: see `tacit.tokenizers.provenance`."""

    @property
    def in_words(self) -> str:
        """What it is and how large, such as "a vocabulary of 10,000 words"."""

    def prepare(self, utterances: Sequence[Sequence[str]]) -> Prepared:
        """The tokens of utterances, looked up."""

    def to_json(self) -> dict[str, Any]:
        """What a model file keeps of it; `from_json` of the same class reads it."""


@dataclass(frozen=True)
class Ragged:
    """Rows of whole numbers of different lengths, one after the other in one array."""

    values: NDArray[Any]
    starts: Integers
    lengths: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        values = np.fromiter((value for row in rows for value in row), np.int64, lengths.sum())
        return cls(values, np.cumsum(lengths) - lengths, lengths)

    def padded(self, indices: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """[B, T] and where there is a value; 0 where there is none, T the longest of these rows."""
        lengths = self.lengths[indices][:, None]
        places = np.arange(lengths.max(initial=1))
        mask = places < lengths
        found = np.where(mask, self.starts[indices][:, None] + places, 0)
        return np.where(mask, self.values[found], 0), mask


@dataclass(frozen=True)
class EncodedUtterances:
    """Utterances with their labels, ready to be cut into batches."""

    inputs: Prepared
    tags: Ragged
    intents: Integers

    def __len__(self) -> int:
        return len(self.intents)

    @property
    def lengths(self) -> Integers:
        return self.inputs.lengths

    def batch(self, indices: Sequence[int] | Integers) -> UtteranceBatch:
        """These utterances in this order, padded to the longest of them."""
        chosen = np.asarray(indices, dtype=np.int64)
        inputs, mask = self.inputs.batch(chosen)
        tags, _ = self.tags.padded(chosen)
        return UtteranceBatch(
            inputs, mask, torch.from_numpy(tags), torch.from_numpy(self.intents[chosen])
        )


def encode(encoder: Encoder, labels: Labels, utterances: Sequence[Utterance]) -> EncodedUtterances:
    """All utterances at once; `ValueError` names an intent or a tag that the labels do not have."""
    tags, intents = [], []
    for place, utterance in enumerate(utterances, 1):
        try:
            tags.append(labels.tag_ids(utterance.tags))
            intents.append(labels.intent_id(utterance.intent))
        except ValueError as problem:
            raise ValueError(f"utterance {place}: {problem}") from None
    return EncodedUtterances(
        encoder.prepare([utterance.tokens for utterance in utterances]),
        Ragged.of(tags),
        np.array(intents, dtype=np.int64),
    )


def _known(what: str, name: str, ids: dict[str, int]) -> int:
    found = ids.get(name)
    if found is None:
        listed = ", ".join(list(ids)[:5]) + (", ..." if len(ids) > 5 else "")
        raise ValueError(f"the {what} {name!r} is none of the model's {len(ids)}: {listed}")
    return found
