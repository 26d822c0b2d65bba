"""How often a model's first choices are common words (McMahan et al. 2018, Table 3).

At each target the model's top 10 predictions are intersected with the n most frequent words of the
dictionary, n = 10, 50, 100; a histogram says how often the intersection had 0, 1, ..., 10 elements.
Models that predict head words more often have more mass to the right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from tacit.evaluation.predictors import (
    IntArray,
    Predictor,
    Tokens,
    all_targets,
    as_arrays,
    as_predictor,
)
from tacit.evaluation.scores import top_k

HEADS = (10, 50, 100)


def head_word_histograms(
    predictor: Predictor | nn.Module,
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
    predictor = as_predictor(predictor)
    vocab_size = predictor.vocab_size
    if not 1 <= top <= vocab_size:
        raise ValueError(f"top must be between 1 and {vocab_size}, got {top}")
    arrays = as_arrays([*sequences, frequent], vocab_size)[:-1]
    counted = all_targets(arrays) != bos
    frequency_rank = torch.full((vocab_size,), vocab_size)
    frequency_rank[torch.tensor(list(frequent))] = torch.arange(len(frequent))
    histograms = {n: np.zeros(top + 1, np.int64) for n in heads}
    for chunk in predictor.chunks(arrays):
        first_choices = top_k(chunk.logits, top)[torch.from_numpy(counted[chunk.positions])]
        for n, histogram in histograms.items():
            sizes = (frequency_rank[first_choices] < n).sum(1)
            np.add(histogram, np.bincount(sizes.numpy(), minlength=top + 1), out=histogram)
    return histograms
