"""Slots and how tags write them down: B-type for a slot's first token, I-type inside, O outside.

Two readings of a tag sequence.  People's annotation is read strictly: an I- tag that continues
nothing is a mistake in the data, and `checked_tags` refuses it.  A model's tags are read leniently,
as the CoNLL-2000 evaluation script (conlleval) and seqeval's default mode do: an I- tag after O, or
after a tag of another type, begins a new slot.  On annotation both readings are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

OUTSIDE = "O"


class Slot(NamedTuple):
    """Tokens start up to (and without) end, and what they are."""

    start: int
    end: int
    type: str


def slots(tags: Sequence[str]) -> tuple[Slot, ...]:
    """The slots of a tag sequence, in order, read leniently; they never overlap."""
    found: list[Slot] = []
    start, current = 0, ""  # the open slot's first token and type; "" if none is open
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            kind, continues = "", False
        else:
            kind = slot_type(tag)
            continues = kind == current and tag[0] == "I"
        if continues:
            continue
        if current:
            found.append(Slot(start, place, current))
        start, current = place, kind
    if current:
        found.append(Slot(start, len(tags), current))
    return tuple(found)


def slot_type(tag: str) -> str:
    """city of B-city or I-city."""
    if tag[:2] not in ("B-", "I-") or len(tag) == 2:
        raise ValueError(f"{tag!r} is not a tag: write O, B-type or I-type")
    return tag[2:]


@lru_cache(maxsize=1 << 16)
def checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """The tags, if they are well formed read strictly; equal ones come back as one object."""
    before = ""
    for place, tag in enumerate(tags, 1):
        kind = "" if tag == OUTSIDE else slot_type(tag)
        if tag.split() != [tag]:
            raise ValueError(f"the tag {tag!r} has white space in it: write it without")
        if tag[0] == "I" and kind != before:
            raise ValueError(
                f"the tag {tag!r} of token {place} continues no slot: put B-{kind} or I-{kind}"
                f" before it, or write B-{kind}"
            )
        before = kind
    return tags


def overlapping(
    reference: Sequence[Slot], predicted: Sequence[Slot]
) -> Iterator[tuple[Slot, Slot]]:
    """The most pairs (reference, predicted) of slots that share a token, each slot in one at most.

    Both are in order and without overlap, as `slots` gives them.  Of the two slots at hand, the one
    that ends first can share a token with no later slot of the other side; so to pair it where it
    overlaps, and to drop it where not, never costs a pair.  Equal slots are always a pair: no other
    slot shares a token with either.
    """
    i = j = 0
    while i < len(reference) and j < len(predicted):
        ours, theirs = reference[i], predicted[j]
        if ours.start < theirs.end and theirs.start < ours.end:
            yield ours, theirs
            i, j = i + 1, j + 1
        elif ours.end <= theirs.end:
            i += 1
        else:
            j += 1
