"""Does a model fall back on common words?  The histograms of McMahan et al. 2018, Table 3.

At each target the model's top 10 predictions are intersected with the n most frequent words of
the dictionary, n = 10, 50, 100; the histogram says how often the intersection had 0, 1, ..., 10
elements.  Models that predict head words more often have more mass to the right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit.evaluation.accuracy import counted
from tacit.evaluation.network import as_predictor
from tacit.evaluation.predictors import IntArray, Predictor, Tokens, all_targets, as_arrays
from tacit.evaluation.ranking import top_k

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
    if not 1 <= top <= predictor.vocab_size:
        raise ValueError(f"top must be between 1 and {predictor.vocab_size}, got {top}")
    arrays = as_arrays([*sequences, frequent], predictor.vocab_size)[:-1]
    kept = counted(all_targets(arrays), bos)
    place = torch.full((predictor.vocab_size,), predictor.vocab_size)  # in the order of frequency
    place[torch.tensor(list(frequent))] = torch.arange(len(frequent))
    histograms = {n: np.zeros(top + 1, np.int64) for n in heads}
    for chunk in predictor.chunks(arrays):
        places = place[top_k(chunk.logits, top)[torch.from_numpy(kept[chunk.positions])]]
        for n, histogram in histograms.items():
            counts = torch.bincount((places < n).sum(1), minlength=top + 1).numpy()
            np.add(histogram, counts, out=histogram)
    return histograms


def most_frequent(counts: npt.ArrayLike, *, but: Collection[int] = ()) -> list[int]:
    """Token ids by falling count, equal counts by id; without those in `but`."""
    order = np.argsort(-np.asarray(counts, dtype=np.int64), kind="stable")
    return [int(token) for token in order if int(token) not in set(but)]
