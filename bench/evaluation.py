"""Tokens scored per second with the 1.35M LSTM at 10,000 words, beside what the machine can do.

All of a token's cost is arithmetic in float32: 2.7 million operations, of which 1.9 are the logits
of 10,000 words, and 10,000 exponentials.  So the second figure is the rate at which these products
alone would go at the machine's speed for large matrices: a bound that no scoring reaches which
looks at every word.  The third, measured in turns with the first, is that of the general way: the
model's own logits, scored by torch, as for a model without tied word vectors and no compiler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

from tacit.evaluation import scoring
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.baselines import Bigram
from tacit.kernels import scoring as kernel
from tacit.models.registry import build

WORDS = 10_000
TARGETS = 20_000
REPEATS = 4
LSTM_OPERATIONS = 2 * (4 * 256 * (96 + 256) + 256 * 96)
LOGIT_OPERATIONS = 2 * 96 * WORDS


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def best(action: Callable[[], object]) -> float:
    """Seconds of the fastest call: what else the machine does only ever slows it down."""
    return min(seconds(action) for _ in range(REPEATS))


def best_both(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the fastest call, fused and in the general way, which take turns."""
    fused, general = [], []
    for _ in range(REPEATS):
        fused.append(seconds(action))
        with in_the_general_way():
            general.append(seconds(action))
    return min(fused), min(general)


@contextmanager
def in_the_general_way() -> Iterator[None]:
    """Every model is scored as one of one's own is, without a compiler."""
    with (
        mock.patch.object(scoring, "_as_tied", return_value=None),
        mock.patch.object(kernel, "_in_cpp", return_value=None),
    ):
        yield


def texts() -> list[np.ndarray]:
    """Messages of 5 to 40 tokens, the common ones often."""
    generator = np.random.default_rng(0)
    made, left = [], TARGETS
    while left > 0:
        length = int(generator.integers(5, 41))
        made.append(np.minimum(generator.zipf(1.2, length) + 2, WORDS - 1))
        made[-1][0] = 0
        left -= length - 1
    return made


def peak() -> float:
    """Operations per second of a large product in float32."""
    size = 1536
    square = torch.randn(size, size)
    return 2 * size**3 / best(lambda: square @ square)


def main() -> None:
    sequences = texts()
    targets = sum(len(sequence) - 1 for sequence in sequences)
    model = build("lstm", WORDS)
    evaluate(model, sequences[:1], bos=0, unk=2)  # builds what has to be built
    bigram = Bigram.fit(sequences, WORDS, bos=0)
    print(f"{targets:,} targets in {len(sequences):,} texts, {WORDS:,} words, best of {REPEATS}")
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        fused, general = best_both(lambda: evaluate(model, sequences, bos=0, unk=2))
        rate = targets / fused
        bound = peak() / (LSTM_OPERATIONS + LOGIT_OPERATIONS)
        print(
            f"LSTM of 1.35M, {threads} threads: {rate:,.0f} tokens/s; matrix products alone:"
            f" {bound:,.0f} tokens/s, of which {rate / bound:.0%} are reached;"
            f" in the general way {targets / general:,.0f} tokens/s, ratio {general / fused:.2f}"
        )
    rate = targets / best(lambda: evaluate(bigram, sequences, bos=0, unk=2))
    print(f"bigram: {rate:,.0f} tokens/s")


if __name__ == "__main__":
    main()
