"""Canaries in a corpus: a view of it in which some texts are canaries, and a record of which.

Nothing is rewritten on the disk.  What a user shares is a function of the user's own id, the seed,
and public constants (the canaries, their cells, the declared population).

Guarantee: adding or removing a user changes no other user's texts, so that the adjacency of a
claim is the same with canaries and without.

The rule for a text that several canaries are drawn for: it becomes one of them, each with the same
probability.  A user may so share several canaries, and none of them takes all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.hashing import derived
from tacit.corpus.source import Counts, UserSource, View
from tacit.privacy import durable
from tacit.privacy.events import PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, LedgerError
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tasks.language.canaries import Canary, Cell

CANARIES_FILE = "canaries.json"


@dataclass(frozen=True)
class Planting:
    """Which canaries, in a population of how many, drawn by which seed."""

    canaries: tuple[Canary, ...]
    population: int
    seed: int

    @cached_property
    def _user_probs(self) -> NDArray[np.float64]:
        return np.array([canary.cell.user_prob(self.population) for canary in self.canaries])

    def shared_by(self, user_id: str) -> tuple[int, ...]:
        """The canaries, by number, that a user was drawn for; most users have none."""
        uniform = self._stream(f"sharer {user_id}").uniform(len(self.canaries))
        return tuple(np.flatnonzero(uniform < self._user_probs).tolist())

    def replacements(self, user_id: str, texts: int) -> NDArray[np.int64]:
        """For each of a user's texts the number of the canary that it becomes, or -1."""
        chosen = np.full(texts, -1)
        shared = self.shared_by(user_id)
        if not shared or not texts:
            return chosen
        stream = self._stream(f"texts of {user_id}")
        probs = np.array([self.canaries[number].cell.example_prob for number in shared])
        drawn = stream.uniform(texts * len(shared)).reshape(texts, -1) < probs
        # Of the canaries drawn for a text, the one with the highest random bid takes it.
        bids = np.where(drawn, stream.uniform(drawn.size).reshape(drawn.shape), -1.0)
        some = drawn.any(1)
        chosen[some] = np.array(shared)[bids.argmax(1)[some]]
        return chosen

    def view(self, users: UserSource) -> UserSource:
        """The users with the canaries in their texts."""
        if len(users) > self.population:
            raise ValueError(
                f"the planting is for a population of {self.population:,}, and there are"
                f" {len(users):,} users"
            )
        return _PlantedUsers(users, self)

    def replace(self, users: UserSource, index: int, texts: list[str]) -> list[str]:
        """A user's texts with the canaries among them."""
        chosen = self.replacements(users.user_id(index), len(texts)).tolist()
        return [
            text if number < 0 else self.canaries[number].text
            for number, text in zip(chosen, texts, strict=True)
        ]

    @property
    def label(self) -> str:
        """Names the planting completely, for the caches of its view."""
        facts = [(canary.words, canary.cell) for canary in self.canaries]
        return derived("planting, 2", str(facts), self.population, self.seed)

    def _stream(self, purpose: str) -> Stream:
        key = RunKey.from_seed(self.seed)
        return key.stream(branch="planting", round=0, attempt=0, purpose=purpose)


class _PlantedUsers(View):
    """Source view with canaries; users without one bypass the replacement."""

    def __init__(self, users: UserSource, planting: Planting) -> None:
        super().__init__(users)
        self._planting = planting

    def texts(self, index: int) -> list[str]:
        return self._planting.replace(self._source, index, self._source.texts(index))

    @property
    def fingerprint(self) -> str:
        return derived("replaced", self._source.fingerprint, self._planting.label)

    def text(self, index: int, position: int) -> str:
        if self._planting.shared_by(self.user_id(index)):
            return super().text(index, position)
        return self._source.text(index, position)

    def text_counts(self) -> Counts:
        return self._source.text_counts()


@dataclass(frozen=True)
class Planted:
    """One canary as it is in the tokens that are trained on, after all caps."""

    canary: Canary
    sharers: int  # users with at least one copy
    copies: int

    def as_row(self) -> dict[str, Any]:
        return {
            "text": self.canary.text,
            "tokens": list(self.canary.tokens),
            "expected_sharers": self.canary.cell.sharers,
            "example_prob": self.canary.cell.example_prob,
            "sharers": self.sharers,
            "copies": self.copies,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Planted:
        """The planted canary of a row of canaries.json."""
        tokens = tuple(row["tokens"])
        if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
            raise ValueError(f"tokens must be a list of token ids, got {row['tokens']!r}")
        cell = Cell(row["expected_sharers"], row["example_prob"])
        canary = Canary(tuple(row["text"].split(" ")), tokens, cell)
        return cls(canary, row["sharers"], row["copies"])


def count_planted(
    canaries: Sequence[Canary], users_tokens: Iterable[NDArray[np.integer[Any]]]
) -> list[Planted]:
    """How often each canary is whole in users' tokens, and in how many users'.

    Counted after all caps, because that is what is trained on: a canary that a cap cut in two is
    not planted.
    """
    sharers, copies = np.zeros(len(canaries), np.int64), np.zeros(len(canaries), np.int64)
    by_first: dict[int, list[int]] = {}
    for number, canary in enumerate(canaries):
        by_first.setdefault(canary.tokens[0], []).append(number)
    firsts = np.array(sorted(by_first))
    for tokens in users_tokens:
        counts: dict[int, int] = {}
        for start in np.flatnonzero(np.isin(tokens, firsts)).tolist():
            for number in by_first[int(tokens[start])]:
                canary_tokens = canaries[number].tokens
                if tuple(tokens[start : start + len(canary_tokens)].tolist()) == canary_tokens:
                    counts[number] = counts.get(number, 0) + 1
        for number, count in counts.items():
            sharers[number] += 1
            copies[number] += count
    return [
        Planted(canary, int(sharers[number]), int(copies[number]))
        for number, canary in enumerate(canaries)
    ]


def record_planted(
    folder: Path, planting: Planting, users_tokens: Iterable[NDArray[np.integer[Any]]]
) -> None:
    """Write canaries.json into a run's folder, once: what is planted in the tokens trained on."""
    file = folder / CANARIES_FILE
    if file.exists():
        return
    rows = [planted.as_row() for planted in count_planted(planting.canaries, users_tokens)]
    data = {"population": planting.population, "seed": planting.seed, "canaries": rows}
    durable.write_whole(file, (json.dumps(data, indent=1) + "\n").encode())


def bind_planted(folder: Path, ledger: Ledger) -> None:
    """Put the digest of canaries.json into the ledger, so that no canary can be exchanged."""
    if _stated_digest(ledger) is None:
        ledger.charge(
            [
                Charge(
                    kind="canaries",
                    round=ledger.header.first_round,
                    attempt=0,
                    event=PostProcessing("what was planted, which the claim names as excluded"),
                    plan_hash=_digest_of(folder / CANARIES_FILE),
                )
            ]
        )


def _refuse_other_canaries(folder: Path, ledger: Ledger) -> None:
    """Refuse a canaries.json that is not the one in the ledger."""
    file, stated = folder / CANARIES_FILE, _stated_digest(ledger)
    if stated is not None and file.exists() and _digest_of(file) != stated:
        raise LedgerError(f"{file} was changed: the ledger has another digest of it")


def read_planted(folder: Path) -> list[Planted]:
    """What a run's canaries.json says, which must be what its ledger says."""
    ledger, file = Ledger.read(folder / "ledger.jsonl"), folder / CANARIES_FILE
    _refuse_other_canaries(folder, ledger)
    if not file.is_file():
        if _stated_digest(ledger) is not None:
            raise ValueError(f"{file} is missing")
        raise ValueError(
            f"{folder} was trained without canaries; train an audit run with --set"
            " audit.canaries.per_cell=..., or name phrases to look for with --phrases"
        )
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["canaries"]
        return [Planted.from_row(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from None


def _stated_digest(ledger: Ledger) -> str | None:
    own = [entry for entry in ledger.entries if entry.branch == ledger.header.branch]
    return next((entry.plan_hash for entry in own if entry.kind == "canaries"), None)


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
