"""Utterances with their intent and slots, and the three parts of a set of them.

An `Utterance` is well formed from the start: as many tags as tokens, at least one token, every
I- tag continuing a slot of its type.  An `NLUData` has checked what would make its figures
meaningless: an intent that no model could have learnt, and a user on both sides of a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tacit.corpus.hashing import derived
from tacit.tasks.nlu.slots import OUTSIDE, checked_tags, slot_type

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class Utterance:
    """What somebody said, in tokens; a tag for each token; what was wanted; perhaps who it was."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    intent: str
    user: str | None = None

    def __post_init__(self) -> None:
        tokens = self.tokens
        if not tokens:
            raise ValueError("the utterance is empty: give at least one token")
        if len(tokens) != len(self.tags):
            raise ValueError(
                f"{len(tokens)} tokens and {len(self.tags)} tags: give each token one tag"
            )
        if " ".join(tokens).split() != list(tokens):
            wrong = next(token for token in tokens if token.split() != [token])
            raise ValueError(f"the token {wrong!r} is blank or has white space in it: split there")
        checked_tags(self.tags)
        # One line each: the digests below rely on it, and so does the label file.
        if " ".join(self.intent.split()) != self.intent or not self.intent:
            raise ValueError(f"the intent {self.intent!r} must be a name, not blank, on one line")
        if self.user is not None and not self.user.strip():
            raise ValueError("the user is blank: give an id, or no user at all")

    @property
    def content(self) -> bytes:
        """Tokens, tags and intent as bytes; utterances differ in them if these differ."""
        lines = (" ".join(self.tokens), " ".join(self.tags), self.intent)
        return "\n".join(lines).encode()


@dataclass(frozen=True)
class NLUData:
    """Utterances to train on, to choose with and to measure on.

    `unseen_intents`: "refuse" a set in which an intent of valid or test is not in train, or "keep"
    it (ATIS's usual split is such a set).  What is kept counts as an intent error whatever a model
    says, since the model's intents are those of train.
    """

    name: str
    train: tuple[Utterance, ...]
    valid: tuple[Utterance, ...]
    test: tuple[Utterance, ...]
    split: str = "given"  # how it came to be, in words for a report
    unseen_intents: str = "refuse"

    def __post_init__(self) -> None:
        if self.unseen_intents not in ("refuse", "keep"):
            raise ValueError(f"unseen_intents must be refuse or keep, got {self.unseen_intents!r}")
        for part in ("train", "test"):
            if not getattr(self, part):
                raise ValueError(f"{self.name} has no utterance in {part}: give more utterances")
        if self.unseen_intents == "refuse":
            self._refuse_unseen()
        self._refuse_shared_users()

    @cached_property
    def intents(self) -> tuple[str, ...]:
        """The intents of train, in order of their names: what a model can answer."""
        return tuple(sorted({utterance.intent for utterance in self.train}))

    @cached_property
    def slot_types(self) -> tuple[str, ...]:
        """The slot types of train, in order of their names."""
        tags = {tag for utterance in self.train for tag in utterance.tags}
        return tuple(sorted({slot_type(tag) for tag in tags if tag != OUTSIDE}))

    @property
    def tags(self) -> tuple[str, ...]:
        """O, and both tags of each slot type of train: what a model can tag with."""
        return (OUTSIDE, *(f"{kind}-{of}" for of in self.slot_types for kind in "BI"))

    @property
    def has_users(self) -> bool:
        """Whether every training utterance says whose it is."""
        return all(utterance.user is not None for utterance in self.train)

    def unseen(self) -> dict[str, str]:
        """The intents that are not in train, and where the first of each is."""
        known = set(self.intents)
        found: dict[str, str] = {}
        for part in ("valid", "test"):
            for place, utterance in enumerate(getattr(self, part), 1):
                if utterance.intent not in known:
                    found.setdefault(utterance.intent, f"utterance {place} of {part}")
        return found

    @property
    def identity(self) -> str:
        """A digest of name and split, for public files: it says nothing of anybody's text."""
        return derived("nlu identity", self.name, self.split)[:16]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every utterance, its place and its user.

        It belongs among private files unless the set is public: whoever knows all utterances but
        one could confirm a guess of that one with it.
        """
        digest = hashlib.sha256(b"tacit nlu data\0")
        for part in PARTS:
            digest.update(f"{part} {len(getattr(self, part))}\n".encode())
            for utterance in getattr(self, part):
                user = "" if utterance.user is None else repr(utterance.user)
                digest.update(utterance.content + f"\n{user}\n".encode())
        return digest.hexdigest()

    def _refuse_unseen(self) -> None:
        unseen = self.unseen()
        if unseen:
            listed = ", ".join(f"{intent!r} ({where})" for intent, where in unseen.items())
            raise ValueError(
                f"{self.name}: no utterance of train has the intent {listed}; add some to train,"
                " leave these out, or keep them as certain errors with unseen_intents='keep'"
            )

    def _refuse_shared_users(self) -> None:
        first = {part: _users(getattr(self, part)) for part in PARTS}
        for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
            shared = first[one] & first[other]
            if shared:
                raise ValueError(
                    f"{self.name}: user {min(shared)!r} is in {one} and in {other}: each user must"
                    " be in one part only; split by user, or leave the users out"
                )


def _users(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.user for utterance in utterances if utterance.user is not None}
