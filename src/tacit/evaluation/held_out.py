"""The test users' texts that a model is measured on: the same ones every time."""

from __future__ import annotations

import numpy as np

from tacit.corpus.source import UserSource
from tacit.tokenizers.tokenizer import Tokenizer

_TEXTS_AT_ONCE = 2_000


def held_out_sequences(
    users: UserSource, tokenizer: Tokenizer, max_tokens: int, seed: int = 0
) -> list[list[int]]:
    """Whole texts of users in a random but fixed order, until they have `max_tokens` targets.

    Users are read one after the other until there is enough, so the cost does not grow with the
    corpus.  No user gives more than a tenth, or the first few long-winded ones would be all.
    """
    sequences: list[list[int]] = []
    left, share = max_tokens, max(1, max_tokens // 10)
    for user in _order(len(users), seed):
        mine = share
        texts = users.texts(int(user))
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            for tokens in tokenizer.encode_batch(texts[start : start + _TEXTS_AT_ONCE]):
                if mine <= 0 or left <= 0:
                    break
                kept = tokens[: min(mine, left) + 1]
                sequences.append(kept)
                mine -= len(kept) - 1
                left -= len(kept) - 1
            if mine <= 0 or left <= 0:
                break
        if left <= 0:
            break
    return sequences


def _order(users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(users)
