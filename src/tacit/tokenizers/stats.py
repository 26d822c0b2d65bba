"""How well a tokenizer fits texts: the figures of Bagdasaryan 2022, table 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tacit.tokenizers.normalisation import strings
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Fit:
    """Counts over texts; BOS and EOS are not among the tokens."""

    texts: int
    words: int
    tokens: int
    unknown_words: int

    @property
    def oov_share(self) -> float:
        """The share of words with UNK in them; 0 without words."""
        return self.unknown_words / self.words if self.words else 0.0

    @property
    def tokens_per_word(self) -> float:
        """1 for a dictionary; 0 without words."""
        return self.tokens / self.words if self.words else 0.0


def fit(tokenizer: Tokenizer, texts: Iterable[str]) -> Fit:
    """How many words, tokens and out-of-dictionary words the texts have."""
    count = words = tokens = unknown = 0
    for text in strings(texts):
        ids, owners = tokenizer.word_ids(text)
        count += 1
        words += max(owners) + 1
        tokens += len(ids) - 2
        unknown += len(
            {owner for id, owner in zip(ids, owners, strict=True) if id == tokenizer.unk}
        )
    return Fit(count, words, tokens, unknown)
