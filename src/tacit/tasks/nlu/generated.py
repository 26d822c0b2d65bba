"""Utterances made from templates: nobody said them, and a model's figures on them say little.

They exist so that every command works with no files, and so that timing can have any number of
utterances.  One is drawn in these steps: an intent, a sentence of it, a value for each slot, and
words around it; the first of a list are drawn most (the square of a uniform draw picks the index).
Where there are users, each has one favourite value of each kind (a city, a friend) and takes it
half of the time, so that there is something to know about a user.  Sentences and values are in
`generated.toml`.

Utterance i is a function of (seed, users, i): a longer stream begins with the shorter one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tacit.privacy import checks
from tacit.tasks.nlu.data import OUTSIDE, Utterance, checked_tags

_T = TypeVar("_T")

_BLOCK = 1024
_FIXED = 5  # draws of an utterance besides two for each slot
_FAVOURITE = 0.5
_PATIENCE = 100  # draws for each distinct utterance before giving up


def generate(count: int, seed: int = 0, users: int = 0) -> Iterator[Utterance]:
    """The first `count` utterances of the stream, equal ones among them.

    Args:
        count: how many to draw, at some 10 microseconds each.
        seed: of the draws.
        users: how many users the utterances are shared out to; 0 for no users.
    """
    return islice(_endless(seed, users), checks.whole("count", count, at_least=0))


def generated_utterances(name: str) -> list[Utterance]:
    """The different utterances that `generated:utterances=5000,users=100,seed=1` asks for.

    Every option may be left out; these are the first ones of the stream.

    Raises:
        ValueError: for a wrong option; or if there are too few different ones, as far as a hundred
            draws for each can tell.
    """
    options, least = {"utterances": 5000, "users": 0, "seed": 0}, {"utterances": 1}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, text = (side.strip() for side in part.partition("="))
        if key not in options:
            raise ValueError(f"{part!r} in {name!r}: generated takes {', '.join(options)}")
        if not text.removeprefix("-").isdecimal():
            raise ValueError(f"{part!r} in {name!r} has no whole number, such as {key}=1000")
        options[key] = checks.whole(key, int(text), at_least=least.get(key, 0))
    count = options["utterances"]
    distinct: dict[tuple[tuple[str, ...], tuple[str, ...]], Utterance] = {}
    for utterance in generate(_PATIENCE * count, options["seed"], options["users"]):
        distinct.setdefault((utterance.tokens, utterance.tags), utterance)
        if len(distinct) == count:
            return list(distinct.values())
    raise ValueError(f"there are no {count} distinct utterances: ask for fewer")


@cache
def _tables() -> dict[str, Any]:
    """Sentences ("templates") by intent, values by slot, openings and closings."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    def expanded(value: str) -> list[str]:
        if not value.startswith("+"):
            return [value]
        lists = [read["words"][name] for name in value[1:].split()]
        if len(lists) == 1:
            return list(lists[0])
        # Far apart in the alphabet, since the first ones are drawn most often; 617 is prime.
        every = [" ".join(words) for words in product(*lists)]
        return [every[index * 617 % len(every)] for index in range(len(every))]

    values = {
        slot: [value for each in listed for value in expanded(each)]
        for slot, listed in read["values"].items()
    }
    return read | {"values": values}


@dataclass(frozen=True)
class _Piece:
    """A part of a sentence: some words, or a slot with the values that it may have."""

    words: tuple[str, ...] = ()
    slot: str = ""
    values: Sequence[tuple[str, ...]] = ()


@cache
def _sentences() -> dict[str, list[tuple[_Piece, ...]]]:
    """The sentences of each intent, cut into words and slots."""
    pools = {
        slot: [tuple(each.split()) for each in values]
        for slot, values in _tables()["values"].items()
    }

    def piece(text: str) -> _Piece:
        if not text.startswith("{"):
            return _Piece(words=(text,))
        slot, _, values = text.strip("{}").partition(":")
        return _Piece(slot=slot, values=pools[values or slot])

    return {
        intent: [tuple(map(piece, template.split())) for template in templates]
        for intent, templates in _tables()["templates"].items()
    }


def _endless(seed: int, users: int) -> Iterator[Utterance]:
    """The whole stream.  Draws are made in blocks, each from a generator of its own."""
    sentences = _sentences()
    intents, openings, closings = list(sentences), _tables()["openings"], _tables()["closings"]
    slots = max(
        sum(bool(piece.slot) for piece in one) for each in sentences.values() for one in each
    )
    block = 0
    while True:
        stream = np.random.default_rng([seed, users, block])
        for draws in stream.random((_BLOCK, _FIXED + 2 * slots)).tolist():
            which, sentence, opening, closing, who, *values = draws
            intent = _pick(intents, which)
            pieces = (
                _Piece(tuple(_pick(openings, opening).split())),
                *_pick(sentences[intent], sentence),
                _Piece(tuple(_pick(closings, closing).split())),
            )
            user = int(who * users) if users else None
            yield _filled(intent, pieces, user, values)
        block += 1


def _filled(
    intent: str, pieces: Sequence[_Piece], user: int | None, draws: list[float]
) -> Utterance:
    """An utterance from its pieces; each slot takes two draws, of a value and of the favourite."""
    tokens: list[str] = []
    tags: list[str] = []
    pairs = zip(draws[::2], draws[1::2], strict=True)
    for piece in pieces:
        if not piece.slot:
            tokens += piece.words
            tags += [OUTSIDE] * len(piece.words)
            continue
        draw, favourite = next(pairs)
        pool = piece.values
        if user is not None and favourite < _FAVOURITE:
            value = pool[user * 7919 % len(pool)]  # a prime: neighbours differ
        else:
            value = _pick(pool, draw)
        tokens += value
        tags += [f"B-{piece.slot}", *[f"I-{piece.slot}"] * (len(value) - 1)]
    who = None if user is None else f"generated-{user}"
    return Utterance(tuple(tokens), checked_tags(tuple(tags)), intent, who)


def _pick(items: Sequence[_T], draw: float) -> _T:
    """One of the items by a uniform draw; its square favours the first."""
    return items[int(draw * draw * len(items))]
