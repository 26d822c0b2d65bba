"""Utterances made from templates: nobody said them, and a model's figures on them say little.

They are there so that every command works with no files, and so that timing can have as many
utterances as it wants.  One is drawn in these steps: an intent, a sentence of it, a value for each
slot, and words around it; the first of a list are drawn most (the square of a uniform draw picks
the place).  Where there are users, each has one favourite value of each kind (a city, a friend)
and takes it half of the time, so that there is something to know about a user.

Utterance i is a function of (seed, users, i): a longer stream begins with the shorter one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np

from tacit.tasks.nlu.data import NLUData, Utterance
from tacit.tasks.nlu.slots import OUTSIDE, checked_tags
from tacit.tasks.nlu.splits import hash_split
from tacit.tasks.nlu.templates import CLOSINGS, OPENINGS, TEMPLATES, VALUES

T = TypeVar("T")

_BLOCK = 1024
_FIXED = 5  # draws of an utterance besides two for each slot
_FAVOURITE = 0.5
_PATIENCE = 100  # draws for each distinct utterance before giving up


@dataclass(frozen=True)
class GeneratedOptions:
    """How many distinct utterances, of how many users (0: nobody's), drawn with which seed."""

    utterances: int = 5000
    users: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("utterances", 1), ("users", 0), ("seed", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class _Piece:
    """A part of a sentence: some words, or a slot with the values that it may have."""

    words: tuple[str, ...] = ()
    slot: str = ""
    values: str = ""


def generate(count: int, seed: int = 0, users: int = 0) -> Iterator[Utterance]:
    """A stream of utterances, equal ones among them, at some 10 microseconds each."""
    if not count >= 0:
        raise ValueError(f"count must be at least 0, got {count}")
    options = GeneratedOptions(max(count, 1), users, seed)
    return islice(_endless(options), count)


def generated_data(options: GeneratedOptions | None = None) -> NLUData:
    """The built-in set in the paper's 45:5:50 split."""
    return hash_split("generated", distinct_utterances(options or GeneratedOptions()))


def distinct_utterances(options: GeneratedOptions) -> list[Utterance]:
    """The first so many different ones of the stream."""
    wanted = options.utterances
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Utterance] = {}
    for utterance in islice(_endless(options), _PATIENCE * wanted):
        found.setdefault((utterance.tokens, utterance.tags), utterance)
        if len(found) == wanted:
            return list(found.values())
    raise ValueError(f"there are no {wanted} distinct utterances: ask for fewer")


def generated_options(name: str) -> GeneratedOptions:
    """What `generated:utterances=5000,users=100,seed=1` asks for."""
    known = [field.name for field in fields(GeneratedOptions)]
    given: dict[str, int] = {}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, text = (side.strip() for side in part.partition("="))
        if key not in known:
            raise ValueError(f"{part!r} in {name!r}: generated takes {', '.join(known)}")
        try:
            given[key] = int(text)
        except ValueError:
            raise ValueError(
                f"{part!r} in {name!r} has no whole number, such as {key}=1000"
            ) from None
    return GeneratedOptions(**given)


def _endless(options: GeneratedOptions) -> Iterator[Utterance]:
    intents = list(TEMPLATES)
    block = 0
    while True:
        stream = np.random.default_rng([options.seed, options.users, block])
        for draws in stream.random((_BLOCK, _FIXED + 2 * _most_slots())).tolist():
            which, sentence, opening, closing, who, *values = draws
            intent = _picked(intents, which)
            pieces = _picked(_sentences()[intent], sentence)
            user = int(who * options.users) if options.users else None
            yield _filled(
                intent, pieces, _picked(OPENINGS, opening), _picked(CLOSINGS, closing), user, values
            )
        block += 1


def _filled(
    intent: str,
    pieces: tuple[_Piece, ...],
    opening: str,
    closing: str,
    user: int | None,
    draws: list[float],
) -> Utterance:
    tokens = opening.split()
    tags = [OUTSIDE] * len(tokens)
    place = 0
    for piece in pieces:
        if not piece.slot:
            tokens += piece.words
            tags += [OUTSIDE] * len(piece.words)
            continue
        pool = _pool(piece.values)
        if user is not None and draws[place + 1] < _FAVOURITE:
            value = pool[user * 7919 % len(pool)]  # a prime: neighbours differ
        else:
            value = _picked(pool, draws[place])
        place += 2
        tokens += value
        tags += _slot_tags(piece.slot, len(value))
    tokens += closing.split()
    tags += [OUTSIDE] * (len(tokens) - len(tags))
    who = None if user is None else f"generated-{user}"
    return Utterance(tuple(tokens), checked_tags(tuple(tags)), intent, who)


def _picked(items: Sequence[T], draw: float) -> T:
    return items[int(draw * draw * len(items))]


@cache
def _pool(values: str) -> list[tuple[str, ...]]:
    return [tuple(value.split()) for value in VALUES[values]]


@cache
def _slot_tags(slot: str, length: int) -> tuple[str, ...]:
    return (f"B-{slot}", *[f"I-{slot}"] * (length - 1))


@cache
def _sentences() -> dict[str, list[tuple[_Piece, ...]]]:
    return {
        intent: [tuple(map(_piece, template.split())) for template in templates]
        for intent, templates in TEMPLATES.items()
    }


def _piece(text: str) -> _Piece:
    if not text.startswith("{"):
        return _Piece(words=(text,))
    slot, _, values = text.strip("{}").partition(":")
    return _Piece(slot=slot, values=values or slot)


@cache
def _most_slots() -> int:
    every = [pieces for sentences in _sentences().values() for pieces in sentences]
    return max(sum(bool(piece.slot) for piece in pieces) for pieces in every)
