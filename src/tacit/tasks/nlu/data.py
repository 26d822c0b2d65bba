"""Utterances with their intent and slots, sets of them, and how a set is split.

Tags write slots down: B-type for a slot's first token, I-type inside, O outside.  An `Utterance` is
well formed from the start: one tag for each token, at least one token, every I- tag continuing a
slot of its type.  (A model's tags need not be; `metrics.slots` reads them leniently.)

An `NLUData` has checked what would make its figures meaningless: an intent that no model could have
learnt, and a user on both sides of a split.

A set comes with a split of its own, or with folds, or is divided as Dupuy et al. 2021 do (section
4.1): the paper trains on 45%, chooses with 5% and measures on 50%, so that there are about as many
non-members as members to attack.  `NLUData.by_digest` decides by a digest

- of the user, where there is one: all of a user's utterances are in one part.  The draw is the
  one that divides the users of a corpus, so the test users of a corpus are test users here;
- otherwise of the utterance's content and of which copy of it this is (the first, the second, ...).
  With `together`, the copies of one utterance go together: then no non-member has the very
  words of a member, at the price of parts that differ more from their nominal size.

Guarantee of `NLUData.by_digest`: adding or removing an utterance (or a user) moves no other; the
shares therefore hold only on average.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

from tacit.corpus.hashing import derived, threshold, user_key

OUTSIDE = "O"
PARTS = ("train", "valid", "test")
_PAPER_SHARES = (0.45, 0.05, 0.50)


def slot_type(tag: str) -> str:
    """The type of a B- or I- tag: city of B-city or I-city."""
    if tag[:2] not in ("B-", "I-") or len(tag) == 2:
        raise ValueError(f"{tag!r} is not a tag: write O, B-type or I-type")
    return tag[2:]


@lru_cache(maxsize=1 << 16)
def checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """The same tags, if they are well formed; equal sequences come back as one object."""
    before = ""
    for number, tag in enumerate(tags, 1):
        kind = "" if tag == OUTSIDE else slot_type(tag)
        if tag.split() != [tag]:
            raise ValueError(f"the tag {tag!r} has white space in it: write it without")
        if tag[0] == "I" and kind != before:
            raise ValueError(
                f"the tag {tag!r} of token {number} continues no slot: put B-{kind} or I-{kind}"
                f" before it, or write B-{kind}"
            )
        before = kind
    return tags


@dataclass(frozen=True, slots=True)
class Utterance:
    """What somebody said, in tokens; a tag for each token; the intent; perhaps the speaker."""

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
    """Utterances to train on (train), to choose with (valid) and to measure on (test).

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

    @classmethod
    def by_digest(
        cls,
        name: str,
        utterances: Iterable[Utterance],
        *,
        together: bool = False,
        unseen_intents: str = "refuse",
    ) -> Self:
        """Divide by digest as the paper does, 45:5:50 on average; see the module.

        Args:
            name: of the set.
            utterances: all of them, in any order.
            together: whether equal utterances of no user go to the same part.
            unseen_intents: "refuse" or "keep"; see the class.
        """
        _, valid, test = _PAPER_SHARES
        in_test, in_valid = threshold(test), threshold(test + valid)
        parts: dict[str, list[Utterance]] = {part: [] for part in PARTS}
        copies: dict[bytes, int] = {}
        for utterance in utterances:
            if utterance.user is not None:
                key = user_key(utterance.user)
            else:
                key = hashlib.sha256(b"tacit nlu split\0" + utterance.content).digest()
                copy = copies[key] = copies.get(key, 0) + 1
                if copy > 1 and not together:
                    key = hashlib.sha256(key + copy.to_bytes(8, "big")).digest()
            bits = int.from_bytes(key[:8], "big")
            part = "test" if bits < in_test else "valid" if bits < in_valid else "train"
            parts[part].append(utterance)
        ratio = ":".join(f"{100 * share:g}" for share in _PAPER_SHARES)
        split = f"{ratio} by digest" + (", equal utterances together" if together else "")
        return cls.of_parts(name, parts, split, unseen_intents=unseen_intents)

    @classmethod
    def by_fold(
        cls,
        name: str,
        folds: Mapping[str, Sequence[Utterance]],
        test_fold: str | None = None,
        *,
        unseen_intents: str = "refuse",
    ) -> Self:
        """Cross-validation: one fold to test, the one after it to choose with, the others to train.

        After the last fold comes the first.  Where no fold is named, the first is the test fold.

        Raises:
            ValueError: if there are fewer than three folds, or none of the name.
        """
        names = sorted(folds, key=lambda fold: (len(fold), fold))  # 2 before 10
        if len(names) < 3:
            raise ValueError(
                f"{name} has {len(names)} folds ({', '.join(names)}): at least 3 are needed, to"
                " train, to choose and to test"
            )
        test_fold = names[0] if test_fold is None else test_fold
        if test_fold not in names:
            raise ValueError(
                f"{name} has no fold {test_fold!r}: test_fold is one of {', '.join(names)}"
            )
        valid_fold = names[(names.index(test_fold) + 1) % len(names)]
        parts: dict[str, list[Utterance]] = {part: [] for part in PARTS}
        for fold in names:
            part = {test_fold: "test", valid_fold: "valid"}.get(fold, "train")
            parts[part].extend(folds[fold])
        split = f"fold {test_fold} of {len(names)} to test, fold {valid_fold} to choose"
        return cls.of_parts(name, parts, split, unseen_intents=unseen_intents)

    @classmethod
    def of_parts(
        cls,
        name: str,
        parts: Mapping[str, Sequence[Utterance]],
        split: str = "the set's own",
        *,
        unseen_intents: str = "refuse",
    ) -> Self:
        """A set in the parts that are given, of which valid may be missing; `split` says how."""
        train, valid, test = (tuple(parts.get(part, ())) for part in PARTS)
        return cls(name, train, valid, test, split=split, unseen_intents=unseen_intents)

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
        first: dict[str, str] = {}
        for part in ("valid", "test"):
            for number, utterance in enumerate(getattr(self, part), 1):
                if utterance.intent not in known:
                    first.setdefault(utterance.intent, f"utterance {number} of {part}")
        return first

    @property
    def identity(self) -> str:
        """A digest of name and split, for public files: it says nothing of anybody's text."""
        return derived("nlu identity", self.name, self.split)[:16]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every utterance, its position and its user.

        It belongs among private files unless the set is public: with it, somebody who knows all
        utterances but one could confirm a guess of that one.
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
        users = {part: {one.user for one in getattr(self, part)} - {None} for part in PARTS}
        for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
            shared = users[one] & users[other]
            if shared:
                raise ValueError(
                    f"{self.name}: user {min(shared)!r} is in {one} and in {other}: each user must"
                    " be in one part only; split by user, or leave the users out"
                )
