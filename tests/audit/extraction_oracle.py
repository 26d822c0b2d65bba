"""Models on a vocabulary of 40, and extraction by brute force: every suffix as a whole text."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch

from tacit.audit.suffixes import SuffixScorer
from tacit.models.base import LanguageModel
from tacit.models.registry import build

VOCABULARY = 40
BOS = 0
CANDIDATES = np.arange(3, VOCABULARY)  # BOS, EOS and UNK are no words
TIE = 1e-5
SIZES = {
    "lstm": {"embedding_size": 6, "cells": 10, "output_bias": True},
    "gru": {"embedding_size": 6, "cells": 10},
    "transformer-14m": {"embedding_size": 8, "heads": 2, "feed_forward": 12, "layers": 2},
}
PEAKED_ON = (7, 21, 33, 9, 14)
CANARIES = (PEAKED_ON, (5, 5, 5, 5, 5), (39, 3, 18, 27, 8))
MODELS = [(kind, is_peaked) for kind in SIZES for is_peaked in (False, True)]


@functools.cache
def model_of(kind: str, is_peaked: bool) -> LanguageModel:
    """Random weights, in float64; a peaked model was then trained on `PEAKED_ON`."""
    model = build(kind, VOCABULARY, seed=1, **SIZES[kind]).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, values in model.parameter_vectors():
            values.add_(torch.empty_like(values).normal_(std=0.3, generator=generator))
    if is_peaked:
        text = torch.tensor([[BOS, *PEAKED_ON]])
        for _ in range(60):
            logits, _ = model(text[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits[0], text[0, 1:])
            weights = list(model.parameters())
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                torch._foreach_sub_(weights, gradients, alpha=0.5)
    return model


def scorer_of(model: LanguageModel, candidates=CANDIDATES) -> SuffixScorer:
    """The scorer under test, of a model that is in evaluation mode."""
    return SuffixScorer(model.eval(), bos=BOS, candidates=candidates)


def one_log_perplexity(model: LanguageModel, prefix: tuple, suffix: tuple) -> float:
    """One suffix, word by word, each from the whole text before it."""
    text, total = [BOS, *prefix], 0.0
    for word in suffix:
        with torch.no_grad():
            logits = model(torch.tensor([text]))[0][0, -1]
        total -= float(torch.log_softmax(logits, 0)[word])
        text.append(word)
    return total


def log_perplexities(model: LanguageModel, prefix: tuple, suffixes: np.ndarray) -> np.ndarray:
    """Many suffixes at once, with nothing shared and nothing left out."""
    begin = torch.tensor([BOS, *prefix]).expand(len(suffixes), -1)
    words = torch.from_numpy(suffixes.astype(np.int64))
    with torch.no_grad():
        logits = model(torch.cat([begin, words[:, :-1]], dim=1))[0][:, len(prefix) :]
    return -torch.log_softmax(logits, 2).gather(2, words.unsqueeze(2)).sum((1, 2)).numpy()


def all_suffixes(length: int) -> np.ndarray:
    return np.array(list(itertools.product(CANDIDATES, repeat=length)))


def brute_force_rank(
    model: LanguageModel, prefix: tuple, suffix: tuple, suffixes: np.ndarray
) -> int:
    """One more than the suffixes, repeated ones counted as such, that are as likely."""
    own = one_log_perplexity(model, prefix, suffix)
    others = suffixes[(suffixes != suffix).any(1)]
    return 1 + int((log_perplexities(model, prefix, others) <= own + TIE).sum())


def brute_force_beam(
    model: LanguageModel, prefix: tuple, length: int, width: int
) -> list[tuple[int, ...]]:
    """A beam search that scores each continuation by itself and sorts them all."""
    beams: list[tuple[int, ...]] = [()]
    for _ in range(length):
        longer = [(*beam, int(word)) for beam in beams for word in CANDIDATES]
        costs = log_perplexities(model, prefix, np.array(longer))
        beams = [longer[index] for index in np.argsort(costs, kind="stable")[:width]]
    return beams
