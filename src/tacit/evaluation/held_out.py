"""The test users' texts that a model is measured on: the same ones every time.

They are chosen and cut by words, never by tokens, so that models with different tokenizers of one
normalisation are measured on the very same words: only then do word-level accuracy and perplexity
per word (Bagdasaryan et al. 2022, section 3.2) compare.  A text counts as its words and its end,
whatever its tokens are; for a dictionary these are its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacit.corpus.source import UserSource
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class HeldOutTexts:
    """Texts as tokens, and for each token the word it belongs to, as `Tokenizer.word_ids` has it.

    A text that was cut has no EOS.  `users` are the indices of those who wrote the texts.
    """

    sequences: list[list[int]]
    owners: list[list[int]]
    users: list[int]


def held_out_texts(
    users: UserSource, tokenizer: Tokenizer, max_tokens: int, seed: int = 0
) -> HeldOutTexts:
    """Texts of users in a random but fixed order, until they have `max_tokens` words and ends.

    Users are read one after the other until there is enough, so the cost does not grow with the
    corpus.  No user gives more than a tenth, or the first few long-winded ones would be all.  The
    last text of either is cut after the last word that fits.
    """
    chosen = HeldOutTexts([], [], [])
    left, share = max_tokens, max(1, max_tokens // 10)
    for user in np.random.default_rng(seed).permutation(len(users)).tolist():
        if left <= 0:
            break
        for tokens, owners, counted in _up_to(users.texts(user), tokenizer, min(share, left)):
            chosen.sequences.append(tokens)
            chosen.owners.append(owners)
            chosen.users.append(user)
            left -= counted
    return chosen


def _up_to(
    texts: list[str], tokenizer: Tokenizer, room: int
) -> Iterator[tuple[list[int], list[int], int]]:
    """Of each text until `room` is full: its tokens, their words, and how much it counts."""
    for text in texts:
        if room <= 0:
            return
        tokens, owners = tokenizer.word_ids(text)
        counted = max(owners) + 2  # the words, and the end
        if counted > room:
            # There is such an index, because EOS belongs to no word.
            end = next(index for index in range(1, len(owners)) if not 0 <= owners[index] < room)
            tokens, owners, counted = tokens[:end], owners[:end], room
        yield tokens, owners, counted
        room -= counted
