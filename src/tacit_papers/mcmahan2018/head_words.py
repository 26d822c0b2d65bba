"""How often a model's first choices are common words (McMahan et al. 2018, Table 3).

At each target the model's top 10 predictions are intersected with the n most frequent words of the
dictionary, n = 10, 50, 100; a histogram says how often the intersection had 0, 1, ..., 10 elements.
Models that predict head words more often have more mass to the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from tacit.evaluation.scoring import (
    IntArray,
    Tokens,
    as_arrays,
    batches,
    evaluating,
    pairs,
    top_k,
)
from tacit.models.base import LanguageModel

HEADS = (10, 50, 100)


def head_word_histograms(
    model: LanguageModel,
    sequences: Sequence[Tokens],
    frequent: Sequence[int],
    *,
    bos: int,
    heads: Sequence[int] = HEADS,
    top: int = 10,
) -> dict[int, IntArray]:
    """For each n in `heads`: how many targets have 0, 1, ..., `top` of the n words on top.

    `frequent` lists token ids by falling frequency, without BOS, EOS and UNK, which are no words.
    """
    if len(set(frequent)) != len(frequent):
        raise ValueError("frequent lists a token twice")
    if not heads or not 1 <= min(heads) <= max(heads) <= len(frequent):
        raise ValueError(
            f"heads must be between 1 and the {len(frequent)} frequent words given, got"
            f" {list(heads)}"
        )
    vocab_size = model.config.vocab_size
    if not 1 <= top <= vocab_size:
        raise ValueError(f"top must be between 1 and {vocab_size}, got {top}")
    arrays = as_arrays([*sequences, frequent], vocab_size)[:-1]
    _, targets = pairs(arrays)
    frequency_rank = torch.full((vocab_size,), vocab_size)
    frequency_rank[torch.tensor(list(frequent))] = torch.arange(len(frequent))
    histograms = {n: np.zeros(top + 1, np.int64) for n in heads}
    with evaluating(model):
        for positions, logits in chain.from_iterable(batches(model, arrays)):
            counted = torch.from_numpy(targets[positions] != bos)
            first_choices = top_k(logits, top)[counted]
            for n, histogram in histograms.items():
                sizes = (frequency_rank[first_choices] < n).sum(1)
                np.add(histogram, np.bincount(sizes.numpy(), minlength=top + 1), out=histogram)
    return histograms
