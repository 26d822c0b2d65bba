"""Scores and utterances made up for tests of attacks."""

from __future__ import annotations

import numpy as np

from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.predictions import Scored


def said(*texts: str, user: str | None = None) -> tuple[Utterance, ...]:
    """Utterances without slots."""
    return tuple(
        Utterance(tuple(text.split()), ("O",) * len(text.split()), "say", user) for text in texts
    )


def distinct(name: str, count: int) -> tuple[Utterance, ...]:
    return said(*(f"{name} {place}" for place in range(count)))


def with_likelihood(values) -> Scored:
    """Scores of which only the log-likelihoods say anything."""
    values = np.asarray(values, dtype=float)
    count = len(values)
    return Scored(np.full((count, 2), 0.5), (np.array([0.5]),) * count, values)


def confident(count: int, shift: float, stream: np.random.Generator, intents: int = 6) -> Scored:
    """Intents and tags of a model that is the surer the larger the shift.

    Each score is a softmax or logistic of normal draws with this shift; the log-likelihood is that
    of the likeliest answers, which are the true ones.
    """
    logits = stream.normal(size=(count, intents))
    logits[:, 0] += 1.5 + shift
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    tokens = [
        1 / (1 + np.exp(-stream.normal(2 + shift, 1, size=length)))
        for length in stream.integers(1, 12, count)
    ]
    likelihood = np.log(probabilities[:, 0]) + [np.log(each).sum() for each in tokens]
    return Scored(probabilities, tuple(tokens), likelihood)
