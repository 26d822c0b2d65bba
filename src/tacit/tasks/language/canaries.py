"""Canaries: sentences that nobody would write, planted and looked for (Thakkar et al. 2020).

A canary is a few words drawn at random from the vocabulary.  It is planted in a grid of cells: each
user is a secret sharer of it with probability p_u, and each text of a sharer is replaced by it with
probability p_e, both by independent coins (Poisson sampling).

The paper has 392,000 users and p_u of 1/50,000, 3/50,000 and 1/5,000: 7.84, 23.5 and 78.4 expected
sharers of a canary.  A grid is therefore given by expected sharers, and p_u follows from the number
of users: on a smaller corpus a canary keeps its sharers, and there are fewer canaries per cell, so
that the planted texts stay a small share of all.

A planting is a view of the users in which some texts are canaries; nothing is rewritten on the
disk.  What a user shares is a function of the user's own id, the seed, and public constants (the
canaries, their cells, the declared population).  A text that several canaries are drawn for becomes
one of them, each with the same probability.

Guarantee: adding or removing a user changes no other user's texts, so that the adjacency of a
claim is the same with canaries and without.

What is in the tokens that are trained on goes to canaries.json, and the file's digest to the run's
ledger before the first round, so that no canary can be exchanged once the result is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Canaries
from tacit.corpus.hashing import derived
from tacit.corpus.source import Counts, UserSource, View
from tacit.privacy import durable
from tacit.privacy.documents import DamagedFile, read_json
from tacit.privacy.events import PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, LedgerError
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tokenizers.tokenizer import Tokenizer

CANARIES_FILE = "canaries.json"
_KIND = "canaries"  # of the ledger's entry whose plan_hash is the digest of canaries.json

Frequencies = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """How widely a canary is shared: expected sharers, and p_e."""

    sharers: float
    example_prob: float

    def user_prob(self, users: int) -> float:
        """p_u."""
        if self.sharers > users:
            raise ValueError(
                f"sharers must be at most the population of {users:,}, got {self.sharers:g}"
            )
        return self.sharers / users

    def share(self, users: int) -> float:
        """Of all texts, what one canary replaces in expectation."""
        return self.user_prob(users) * self.example_prob


def _cells_of_canaries(settings: Canaries, users: int) -> list[Cell]:
    """The cell of each canary that is planted among `users`, in the order of drawing.

    Every pair of expected sharers and p_e has `per_cell` canaries, or fewer if the planted texts
    would be more than `max_share` of all.  Only the number of users has a part in that: with as
    many texts each, a canary of a cell replaces p_u p_e of all texts.
    """
    cells = [Cell(s, p) for s in settings.sharers for p in settings.example_probs]
    further = [(Cell(also.sharers, also.example_prob), also.canaries) for also in settings.also]
    taken = sum(number * cell.share(users) for cell, number in further)
    each = sum(cell.share(users) for cell in cells)
    count = min(settings.per_cell, int((settings.max_share - taken) / each * (1 + 1e-9)))
    if count < 1:
        raise ValueError(
            f"one canary in every cell would replace {each + taken:.1%} of the texts of"
            f" {users:,} users, more than max_share = {settings.max_share:.1%}; lower sharers or"
            " example_probs, or raise max_share"
        )
    counted = [*((cell, count) for cell in cells), *further]
    return [cell for cell, number in counted for _ in range(number)]


@dataclass(frozen=True)
class Canary:
    """One of them: its words, and the cell that it belongs to."""

    words: tuple[str, ...]
    tokens: tuple[int, ...]
    cell: Cell

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Planting:
    """Which canaries, in a population of how many, drawn by which seed."""

    canaries: tuple[Canary, ...]
    population: int
    seed: int

    @classmethod
    def of(
        cls,
        settings: Canaries,
        population: int,
        tokenizer: Tokenizer,
        frequencies: Frequencies | None = None,
    ) -> Planting:
        """The canaries of all cells, no two alike.

        Words are uniform over the vocabulary, or drawn by `frequencies`, one per token id.
        """
        cells = _cells_of_canaries(settings, population)
        drawn = draw_phrases(len(cells), settings.words, tokenizer, settings.seed, frequencies)
        canaries = [
            Canary(tuple(tokenizer.token(id) for id in tokens), tokens, cell)
            for tokens, cell in zip(drawn, cells, strict=True)
        ]
        return cls(tuple(canaries), population, settings.seed)

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

    def count(self, users_tokens: Iterable[NDArray[np.integer[Any]]]) -> list[Planted]:
        """How often each canary is whole in users' tokens, and in how many users'.

        Counted after all caps, because that is what is trained on: a canary that a cap cut in two
        is not planted.
        """
        sharers, copies = [0] * len(self.canaries), [0] * len(self.canaries)
        by_first: dict[int, list[int]] = {}
        for number, canary in enumerate(self.canaries):
            by_first.setdefault(canary.tokens[0], []).append(number)
        firsts = np.array(sorted(by_first))
        for tokens in users_tokens:
            shared = set()
            for start in np.flatnonzero(np.isin(tokens, firsts)).tolist():
                for number in by_first[int(tokens[start])]:
                    canary_tokens = self.canaries[number].tokens
                    if tuple(tokens[start : start + len(canary_tokens)].tolist()) == canary_tokens:
                        copies[number] += 1
                        shared.add(number)
            for number in shared:
                sharers[number] += 1
        return list(map(Planted, self.canaries, sharers, copies))

    @property
    def _label(self) -> str:
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
        texts, planting = self._source.texts(index), self._planting
        chosen = planting.replacements(self.user_id(index), len(texts)).tolist()
        return [
            text if number < 0 else planting.canaries[number].text
            for number, text in zip(chosen, texts, strict=True)
        ]

    @property
    def fingerprint(self) -> str:
        return derived("replaced", self._source.fingerprint, self._planting._label)

    def text(self, index: int, position: int) -> str:
        if self._planting.shared_by(self.user_id(index)):
            return super().text(index, position)
        return self._source.text(index, position)

    def text_counts(self) -> Counts:
        return self._source.text_counts()


class _PlantedRow(TypedDict):
    text: str
    tokens: list[int]
    expected_sharers: float
    example_prob: float
    sharers: int
    copies: int


class _PlantedFile(TypedDict):
    """What canaries.json holds."""

    canaries: list[_PlantedRow]


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
    def from_row(cls, row: _PlantedRow) -> Planted:
        """The planted canary of a row of canaries.json."""
        tokens = tuple(row["tokens"])
        if not tokens or min(tokens) < 0:
            raise ValueError(f"tokens must be a list of token ids, got {row['tokens']!r}")
        cell = Cell(row["expected_sharers"], row["example_prob"])
        canary = Canary(tuple(row["text"].split(" ")), tokens, cell)
        return cls(canary, row["sharers"], row["copies"])


def record_planted(
    folder: Path,
    planting: Planting,
    users_tokens: Iterable[NDArray[np.integer[Any]]],
    ledger: Ledger | None = None,
) -> None:
    """Write what is planted in the tokens trained on to a run's canaries.json, once.

    The file's digest goes to the run's ledger, if there is one.
    """
    file = folder / CANARIES_FILE
    if not file.exists():
        rows = [planted.as_row() for planted in planting.count(users_tokens)]
        data = {"population": planting.population, "seed": planting.seed, "canaries": rows}
        durable.write_whole(file, (json.dumps(data, indent=1) + "\n").encode())
    if ledger is not None:
        what = "what was planted, which the claim names as excluded"
        commit(ledger, _KIND, _digest_of(file), what)


def read_planted(folder: Path) -> list[Planted]:
    """What a run's canaries.json says, which must be what its ledger says."""
    file = folder / CANARIES_FILE
    promised = committed(Ledger.read(folder / "ledger.jsonl"), _KIND)
    if not file.is_file():
        if promised:
            raise ValueError(f"{file} is missing")
        raise ValueError(
            f"{folder} was trained without canaries; train an audit run with --set"
            " audit.canaries.per_cell=..., or name phrases to look for with --phrases"
        )
    if promised and promised[0] != _digest_of(file):
        raise LedgerError(f"{file} was changed: the ledger has another digest of it")
    rows = read_json(file, _PlantedFile)["canaries"]
    try:
        return [Planted.from_row(row) for row in rows]
    except ValueError as error:
        raise DamagedFile(file, str(error)) from None


def commit(ledger: Ledger, kind: str, digest: str, what: str) -> None:
    """Put a digest into the ledger before training, once, so that what it is of stays as it is."""
    if not committed(ledger, kind):
        first = ledger.header.first_round
        ledger.charge([Charge(kind, first, 0, PostProcessing(what), digest)])


def committed(ledger: Ledger, kind: str) -> list[str]:
    """The digests of this kind that a run committed to; what its parent did is not about it."""
    own = (entry for entry in ledger.entries if entry.branch == ledger.header.branch)
    return [entry.plan_hash for entry in own if entry.kind == kind]


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def draw_phrases(
    count: int,
    words: int,
    tokenizer: Tokenizer,
    seed: int,
    frequencies: Frequencies | None = None,
    purpose: str = "canaries",
) -> list[tuple[int, ...]]:
    """`count` different phrases, as tokens; another purpose gives others, such as controls."""
    candidates = word_tokens(tokenizer)
    stream = _stream(seed, purpose)
    shares = None if frequencies is None else _shares(frequencies, candidates)
    phrases: dict[tuple[int, ...], None] = {}  # in the order drawn
    for _ in range(100):
        if len(phrases) == count:
            break
        indices = _draw(stream, (count - len(phrases)) * words, len(candidates), shares)
        for row in candidates[indices].reshape(-1, words).tolist():
            phrases[tuple(row)] = None
    if len(phrases) < count:
        raise ValueError(
            f"{count} different phrases of {words} words cannot be made of {len(candidates)} words"
        )
    return list(phrases)


def word_tokens(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The ids that are a word by themselves, and that a text of such words is encoded to."""
    if tokenizer.kind != "word":
        raise ValueError(
            f"canaries are made of whole words, so tokenizer.kind must be word, got"
            f" {tokenizer.kind}"
        )
    special = {tokenizer.bos, tokenizer.eos, tokenizer.unk}
    ids = [id for id in range(tokenizer.vocab_size) if id not in special]
    texts = [tokenizer.token(id) for id in ids]
    alone = tokenizer.encode_batch(texts)
    kept = [id for id, tokens in zip(ids, alone, strict=True) if tokens[1:-1] == [id]]
    # A mark such as an apostrophe may stand alone and yet be joined to a word beside it.
    beside = tokenizer.encode_batch([f"{t} {t}" for t in (tokenizer.token(id) for id in kept)])
    kept = [id for id, pair in zip(kept, beside, strict=True) if pair[1:-1] == [id, id]]
    if len(kept) < 2:
        raise ValueError("the tokenizer has no words to make canaries of")
    return np.array(kept)


def parse_phrase(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A phrase of the user's own as tokens; a word outside the vocabulary is named."""
    ids, owners = tokenizer.word_ids(text)
    words = tokenizer.words(text)
    for id, owner in zip(ids, owners, strict=True):
        if id == tokenizer.unk and owner >= 0:
            raise ValueError(
                f"{words[owner]!r} of the phrase {text!r} is not in the vocabulary, so the model"
                " cannot have memorized it"
            )
    return tuple(ids[1:-1])


def _stream(seed: int, purpose: str) -> Stream:
    key = RunKey.from_seed(seed)
    return key.stream(branch="audit", round=0, attempt=0, purpose=purpose)


def _shares(frequencies: Frequencies, candidates: NDArray[np.int64]) -> Frequencies:
    """Cumulative shares of the candidates."""
    kept = np.asarray(frequencies, np.float64)[candidates]
    if not np.isfinite(kept).all() or (kept < 0).any() or not kept.sum() > 0:
        raise ValueError("frequencies must be finite, not negative, and not all zero")
    shares: Frequencies = np.cumsum(kept) / kept.sum()
    return shares


def _draw(
    stream: Stream, count: int, candidates: int, shares: Frequencies | None
) -> NDArray[np.int64]:
    if shares is None:
        return stream.integers(candidates, count)
    indices: NDArray[np.int64] = np.searchsorted(shares, stream.uniform(count), side="right")
    return np.minimum(indices, candidates - 1)
