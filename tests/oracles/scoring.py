"""Slow and literal scoring: one sequence at a time, Python lists, no chunk and no batch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tacit.models.base import LanguageModel

COUNTS = (
    *("targets", "unknown", "top1", "top3", "top5"),
    *("top1_unk_competes", "top3_unk_competes", "top5_unk_competes"),
)
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
) -> list[tuple[int, float, int, int]]:
    """(target, log-probability, rank, rank among all) of every token but the first.

    In the first rank `never` is no choice.
    """
    found = []
    for place in range(1, len(sequence)):
        logits = distribution(list(sequence[:place]))
        target = sequence[place]
        choices = [token for token in order(logits) if token == target or token != never]
        ranks = choices.index(target), order(logits).index(target)
        found.append((target, log_softmax(logits)[target], *ranks))
    return found


def scored_by_sorting(
    probs_after: Callable[[int], np.ndarray],
    contexts: Sequence[int],
    targets: Sequence[int],
    never: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probability and both ranks of each target, by a softmax and a sort of a row's logits."""
    log_probs, ranks, of_all = [], [], []
    for context, target in zip(contexts, targets, strict=True):
        logits = torch.from_numpy(probs_after(int(context))).log()
        log_probs.append(torch.log_softmax(logits, 0)[int(target)].item())
        choices = torch.argsort(logits, descending=True, stable=True).tolist()
        ranks.append([c for c in choices if c == target or c != never].index(target))
        of_all.append(choices.index(target))
    return np.array(log_probs), np.array(ranks), np.array(of_all)


def metrics(
    distribution: Distribution, sequences: Sequence[Sequence[int]], bos: int, unk: int | None
) -> dict[str, float]:
    """The counts of `tacit.evaluation.accuracy.Metrics`."""
    counts = dict.fromkeys(COUNTS, 0)
    log_probs = []
    for sequence in sequences:
        for target, log_prob, rank, _ in scored(distribution, sequence, unk):
            if target == bos:
                continue
            counts["targets"] += 1
            log_probs.append(log_prob)
            if target == unk:
                counts["unknown"] += 1
                continue
            for k in (1, 3, 5):
                counts[f"top{k}"] += rank < k
    counts |= unk_competes(distribution, sequences, bos, unk)
    return {**counts, "log_prob": math.fsum(log_probs)}


def unk_competes(
    distribution: Distribution, sequences: Sequence[Sequence[int]], bos: int, unk: int | None
) -> dict[str, int]:
    """AccuracyTop1 of McMahan et al. 2018, appendix B, and Top3 and Top5, as they are put there.

    "The probability that the word to which the model assigns highest probability is correct"; and
    "we always count it as a mistake if the true next word is not in the dictionary, even if the
    model predicts UNK".
    """
    counts = dict.fromkeys(COUNTS[5:], 0)
    for sequence in sequences:
        for place in range(1, len(sequence)):
            if sequence[place] == bos:
                continue
            predicted = order(distribution(list(sequence[:place])))
            for k in (1, 3, 5):
                is_right = sequence[place] in predicted[:k]
                is_in_the_dictionary = sequence[place] != unk
                counts[f"top{k}_unk_competes"] += is_right and is_in_the_dictionary
    return counts


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
