"""Unigram and bigram of the test users themselves: baselines that may be published.

A baseline that was fitted on the training users' text tells about them, and its figures are as
private as the text (design rule 5).  Test users are not protected, and a model's own figures are
about their text already.  So they are cut in two halves: the texts of each half are scored by a
baseline that was fitted on the text of the other one.  It has seen less text than one of the
training users would have, and so is a little easier to beat.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tacit.corpus.source import UserSource
from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.evaluation.baselines import Bigram
from tacit.evaluation.held_out import HeldOutTexts
from tacit.tokenizers.cache import user_tokens
from tacit.tokenizers.tokenizer import Tokenizer

_MOST_TOKENS = 1_000_000  # of each half that a baseline is fitted on


def cross_fitted_baselines(
    users: UserSource,
    tokenizer: Tokenizer,
    held_out: HeldOutTexts,
    max_tokens_per_user: int | None = None,
) -> dict[str, Metrics]:
    """Figures of a unigram and a bigram on held-out texts of these users, by name.

    Every text is scored by a baseline of users of the other half, those with an odd index or those
    with an even one.  Empty where one of the halves has no text.
    """
    measured: dict[str, Metrics] = {"unigram": Metrics(), "bigram": Metrics()}
    for half in (0, 1):
        texts = [
            sequence
            for sequence, user in zip(held_out.sequences, held_out.users, strict=True)
            if user % 2 == half
        ]
        others = list(_tokens_of_half(users, tokenizer, 1 - half, max_tokens_per_user))
        if not texts or not any(map(len, others)):
            return {}
        bigram = Bigram.fit(others, tokenizer.vocab_size, bos=tokenizer.bos)
        for name, predictor in (("unigram", bigram.unigram), ("bigram", bigram)):
            measured[name] += evaluate(predictor, texts, bos=tokenizer.bos, unk=tokenizer.unk)
    return measured


def _tokens_of_half(
    users: UserSource, tokenizer: Tokenizer, half: int, cap: int | None
) -> Iterator[list[int]]:
    """The tokens of users whose index has this parity, in a fixed random order, up to a limit."""
    left = _MOST_TOKENS
    for user in np.random.default_rng(1).permutation(len(users)).tolist():
        if user % 2 == half and left > 0:
            tokens = user_tokens(users.texts(user), tokenizer, cap)
            left -= len(tokens)
            yield tokens
