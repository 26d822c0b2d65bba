"""Canaries: sentences that nobody would write, to be planted and looked for (Thakkar et al. 2020).

A canary is a few words drawn at random from the vocabulary.  It is planted in a grid of cells: each
user is a secret sharer of it with probability p_u, and each text of a sharer is replaced by it with
probability p_e, both by independent coins (Poisson sampling).

The paper has 392,000 users and p_u of 1/50,000, 3/50,000 and 1/5,000: 7.84, 23.5 and 78.4 expected
sharers of a canary.  A grid is therefore given by expected sharers, and p_u follows from the number
of users: on a smaller corpus a canary keeps its sharers, and there are fewer canaries per cell, so
that the planted texts stay a small share of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.privacy import checks
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tokenizers.tokenizer import Tokenizer

Frequencies = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """How widely a canary is shared: expected sharers, and p_e."""

    sharers: float
    example_prob: float

    def __post_init__(self) -> None:
        checks.positive("sharers", self.sharers)
        if not 0 < self.example_prob <= 1:
            raise ValueError(f"example_prob must be above 0 and at most 1: {self.example_prob}")

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


@dataclass(frozen=True)
class Grid:
    """All pairs of expected sharers and p_e, with `per_cell` canaries of `words` words each.

    `also` are further cells with a number of canaries of their own, to look at one extreme.
    """

    sharers: tuple[float, ...] = (1.0, 4.0, 16.0)
    example_probs: tuple[float, ...] = (0.1, 1.0)
    per_cell: int = 4
    words: int = 5
    max_share: float = 0.05  # of all texts, at most this is replaced, in expectation
    also: tuple[tuple[Cell, int], ...] = ()

    def __post_init__(self) -> None:
        checks.whole("per_cell", self.per_cell, at_least=1)
        checks.whole("words", self.words, at_least=3)
        if not self.sharers or not self.example_probs:
            raise ValueError("sharers and example_probs must name at least one value each")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share must be above 0 and at most 1, got {self.max_share}")

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(s, p) for s in self.sharers for p in self.example_probs)

    def canaries_per_cell(self, users: int) -> int:
        """`per_cell`, or fewer if the planted texts would be more than `max_share` of all.

        Only the number of users has a part in it: with as many texts each, a canary of a cell
        replaces p_u p_e of all texts.
        """
        further = sum(count * cell.share(users) for cell, count in self.also)
        each = sum(cell.share(users) for cell in self.cells)
        count = min(self.per_cell, int((self.max_share - further) / each * (1 + 1e-9)))
        if count < 1:
            raise ValueError(
                f"one canary in every cell would replace {each + further:.1%} of the texts of"
                f" {users:,} users, more than max_share = {self.max_share:.1%}; lower sharers or"
                " example_probs, or raise max_share"
            )
        return count

    def cells_of_canaries(self, users: int) -> list[Cell]:
        """The cell of each canary, in the order in which they are drawn."""
        each = self.canaries_per_cell(users)
        return [
            *(cell for cell in self.cells for _ in range(each)),
            *(cell for cell, count in self.also for _ in range(count)),
        ]


@dataclass(frozen=True)
class Canary:
    """One of them: its words, and the cell that it belongs to."""

    words: tuple[str, ...]
    tokens: tuple[int, ...]
    cell: Cell

    @property
    def text(self) -> str:
        return " ".join(self.words)


def draw_canaries(
    grid: Grid,
    users: int,
    tokenizer: Tokenizer,
    seed: int,
    frequencies: Frequencies | None = None,
) -> list[Canary]:
    """The canaries of a grid over a number of users, cell by cell, no two alike.

    Words are uniform over the vocabulary, or drawn by `frequencies`, one per token id.
    """
    cells = grid.cells_of_canaries(users)
    drawn = draw_phrases(len(cells), grid.words, tokenizer, seed, frequencies)
    return [
        Canary(tuple(tokenizer.token(id) for id in tokens), tokens, cell)
        for tokens, cell in zip(drawn, cells, strict=True)
    ]


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
