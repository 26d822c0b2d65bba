"""Slow and literal scoring: one sequence at a time, Python lists, no chunk and no batch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tacit.models.base import LanguageModel

Distribution = Callable[[list[int]], list[float]]  # a prefix in, a logit per token out


def logits_of(model: LanguageModel) -> Distribution:
    """The model on one whole prefix at a time."""

    def logits(prefix: list[int]) -> list[float]:
        with torch.no_grad():
            return model(torch.tensor([prefix]))[0][0, -1].double().tolist()

    return logits


def log_softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    total = top + math.log(math.fsum(math.exp(value - top) for value in logits))
    return [value - total for value in logits]


def order(logits: Sequence[float]) -> list[int]:
    """Token ids, best first; of equal ones the smaller id first."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def scored(
    distribution: Distribution, sequence: Sequence[int], never: int | None = None
) -> list[tuple[int, float, int]]:
    """(target, log-probability, rank) of every token but the first; `never` is no choice."""
    found = []
    for place in range(1, len(sequence)):
        logits = distribution(list(sequence[:place]))
        target = sequence[place]
        choices = [token for token in order(logits) if token == target or token != never]
        found.append((target, log_softmax(logits)[target], choices.index(target)))
    return found


def scored_by_sorting(
    probs_after: Callable[[int], np.ndarray],
    contexts: Sequence[int],
    targets: Sequence[int],
    never: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability and rank of each target, by a softmax and a sort of all of a row's logits."""
    log_probs, ranks = [], []
    for context, target in zip(contexts, targets, strict=True):
        logits = torch.from_numpy(probs_after(int(context))).log()
        log_probs.append(torch.log_softmax(logits, 0)[int(target)].item())
        choices = torch.argsort(logits, descending=True, stable=True).tolist()
        ranks.append([c for c in choices if c == target or c != never].index(target))
    return np.array(log_probs), np.array(ranks)


def metrics(
    distribution: Distribution, sequences: Sequence[Sequence[int]], bos: int, unk: int | None
) -> dict[str, float]:
    """The counts of `tacit.evaluation.accuracy.Metrics`."""
    counts = dict.fromkeys(("targets", "unknown", "top1", "top3", "top5"), 0)
    log_probs = []
    for sequence in sequences:
        for target, log_prob, rank in scored(distribution, sequence, unk):
            if target == bos:
                continue
            counts["targets"] += 1
            log_probs.append(log_prob)
            if target == unk:
                counts["unknown"] += 1
                continue
            for k in (1, 3, 5):
                counts[f"top{k}"] += rank < k
    return {**counts, "log_prob": math.fsum(log_probs)}


def bigram(
    training: Sequence[Sequence[int]], vocab_size: int, bos: int, add: float, discount: float
) -> Callable[[int, int], float]:
    """p(w | v) with absolute discounting, straight from the formula; v = -1 is no context."""
    pairs = Counter(
        (v, w) for sequence in training for v, w in itertools.pairwise(sequence) if w != bos
    )
    singles = Counter(w for (_, w), count in pairs.items() for _ in range(count))
    total = sum(singles[w] + add for w in range(vocab_size) if w != bos)

    def unigram(w: int) -> float:
        return 0.0 if w == bos else (singles[w] + add) / total

    def probability(v: int, w: int) -> float:
        seen = sum(count for (before, _), count in pairs.items() if before == v)
        if not seen:
            return unigram(w)
        types = sum(before == v for before, _ in pairs)
        return max(pairs[v, w] - discount, 0) / seen + discount * types / seen * unigram(w)

    return probability
