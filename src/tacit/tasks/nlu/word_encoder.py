"""Words and their characters as ids: how a CLC model reads.

A word is looked up as `tacit.tokenizers.normalisation` writes it (in lower case), and is the
unknown word if the vocabulary does not have it.  Characters are those of the token as it stands,
capitals included, from an alphabet that is fixed: printable ASCII, and one id for all others.

A vocabulary is part of what is released (design rule 9), so an encoder says where its words come
from.  Words taken from the training utterances are an oracle's, and void a guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.models.clc import PADDING, UNKNOWN_WORD
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Integers, Ragged
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.build import SPECIAL, most_frequent
from tacit.tokenizers.normalisation import normalised
from tacit.tokenizers.public import DEFAULT, PublicSource
from tacit.tokenizers.tokenizer import Tokenizer

ALPHABET = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_UNKNOWN_CHARACTER = PADDING + 1
_CHARACTER_IDS = {letter: _UNKNOWN_CHARACTER + 1 + place for place, letter in enumerate(ALPHABET)}


@dataclass(frozen=True)
class WordEncoder:
    """A vocabulary, and where it comes from; of longer words the first characters are read."""

    words: tuple[str, ...]
    provenance: str
    longest_word: int = 20

    kind: ClassVar[str] = "words"

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        origins.check(self.provenance)
        checks.whole("longest_word", self.longest_word, at_least=1)
        if not all(isinstance(word, str) and word for word in self.words):
            raise ValueError("words must be strings that are not empty")
        if len(self._ids) != len(self.words):
            [(twice, _)] = Counter(self.words).most_common(1)
            raise ValueError(f"words must differ from each other, got {twice!r} twice")

    @property
    def in_words(self) -> str:
        return f"a vocabulary of {len(self.words):,} words"

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> WordEncoder:
        """The words of a word-level tokenizer: public, or learnt privately."""
        if tokenizer.kind != "word":
            raise ValueError(f"the tokenizer must be one of words, got kind {tokenizer.kind!r}")
        words = (tokenizer.token(id) for id in range(tokenizer.vocab_size))
        return cls(tuple(word for word in words if word not in SPECIAL), tokenizer.provenance)

    @classmethod
    def from_public(cls, source: str | Path = DEFAULT, size: int = 10_000) -> WordEncoder:
        """The `size` most frequent words of a public text or list; to name it declares it so."""
        return cls.from_tokenizer(PublicSource(source).tokenizer("word", size + len(SPECIAL)))

    @classmethod
    def oracle(cls, utterances: Sequence[Utterance], size: int | None = None) -> WordEncoder:
        """The words of the training utterances themselves, for comparison only."""
        counts = Counter(token for utterance in utterances for token in utterance.tokens)
        written = Counter[str]()
        for word, count in zip(normalised(counts, "papers"), counts.values(), strict=True):
            written[word] += count
        return cls(tuple(most_frequent(written, size)), origins.ORACLE)

    @property
    def word_count(self) -> int:
        """How many word ids there are."""
        return len(self.words) + 1

    @property
    def character_count(self) -> int:
        """How many character ids there are."""
        return _UNKNOWN_CHARACTER + 1 + len(ALPHABET)

    def prepare(self, utterances: Sequence[Sequence[str]]) -> PreparedWords:
        """Each different token is looked up once."""
        tokens: dict[str, int] = {}
        rows = [[tokens.setdefault(token, len(tokens)) for token in each] for each in utterances]
        known = self._ids
        ids = [known.get(word, UNKNOWN_WORD) for word in normalised(tokens, "papers")]
        characters = np.full((len(tokens), self.longest_word), PADDING, np.uint8)
        for row, token in enumerate(tokens):
            spelt = [_CHARACTER_IDS.get(letter, _UNKNOWN_CHARACTER) for letter in token]
            characters[row, : len(spelt)] = spelt[: self.longest_word]
        return PreparedWords(Ragged.of(rows), np.array(ids, np.int64), characters)

    def to_json(self) -> dict[str, Any]:
        return {
            "words": list(self.words),
            "provenance": self.provenance,
            "longest_word": self.longest_word,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> WordEncoder:
        return cls(tuple(content["words"]), content["provenance"], content["longest_word"])

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self.words, UNKNOWN_WORD + 1)}


@dataclass(frozen=True)
class PreparedWords:
    """Utterances as rows of a table of their different tokens."""

    rows: Ragged
    word_ids: Integers
    characters: NDArray[np.uint8]  # [different tokens, longest word]

    @property
    def lengths(self) -> Integers:
        return self.rows.lengths

    def batch(self, indices: Integers) -> tuple[dict[str, Tensor], Tensor]:
        """Padded to the longest utterance and, in characters, to the longest word."""
        rows, mask = self.rows.padded(indices)
        words = np.where(mask, self.word_ids[rows], UNKNOWN_WORD)
        characters = np.where(mask[..., None], self.characters[rows], PADDING)
        longest = (characters != PADDING).any(axis=(0, 1)).sum()
        inputs = {
            "words": torch.from_numpy(words),
            "characters": torch.from_numpy(characters[..., :longest].astype(np.int64)),
        }
        return inputs, torch.from_numpy(mask)
