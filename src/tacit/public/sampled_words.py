"""A softmax over a batch's own words and a sample of the others, for training on public text.

The loss at a position whose target has the score s_t is log Z - s_t with Z = sum_v exp(s_v), and
most of a step's work is in words of that sum that are nowhere in the batch.  Here the batch's
targets O are all in it; another word v is in it with probability pi_v, and then counts 1 / pi_v:

    Z' = sum_{v in O} exp(s_v) + sum_{v in N} exp(s_v) / pi_v,   so that E Z' = Z.

The gradient is that of log Z', whose bias falls with the size of the sample (Bengio and Senecal
2008, section IV); frequent words, which have most of Z, are drawn nearly always.  What is measured
on held-out text is never sampled.

All rows of a batch share one sample.  That is right for public text and for nothing else: a user's
update must not depend on other users' words (`tacit.kernels.sampled_softmax` is the one for those).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from tacit.models.layers import TiedEmbedding

_FLATTENED = 0.75  # the power of the counts that words are drawn by, as in word2vec


class WordSampler:
    """Draws words by their frequency in the training text, `size` of them on average."""

    def __init__(self, counts: npt.NDArray[np.integer], size: int) -> None:
        """`counts` has one entry per word; one is added to each, so that every word can come."""
        self.law = torch.from_numpy((counts + 1.0) ** _FLATTENED)
        self.size = size

    def probabilities(self, is_own: Tensor) -> Tensor:
        """How likely each word is to be drawn, in float64; the batch's own are certain."""
        law = self.law.masked_fill(is_own, 0.0)
        drawn = (law * (self.size / law.sum().clamp(min=1e-300))).clamp(max=1.0)
        return drawn.masked_fill(is_own, 1.0)

    def loss(self, outputs: Tensor, targets: Tensor, embedding: TiedEmbedding) -> Tensor:
        """Mean of log Z' - s_t over the positions; draws from torch's global generator.

        Args:
            outputs: the vectors that score the words, [positions, size].
            targets: the words that follow, [positions].
            embedding: the table of words that are scored.
        """
        is_own = torch.zeros(len(self.law), dtype=torch.bool)
        is_own[targets] = True
        pi = self.probabilities(is_own)
        words = (torch.rand(len(pi), dtype=torch.float64) < pi).nonzero().squeeze(1)
        index = torch.zeros(len(pi), dtype=torch.long)
        index[words] = torch.arange(len(words))
        added = -pi[words].log().to(outputs.dtype)
        if embedding.output_bias is not None:
            added = added + embedding.output_bias[words]
        scores = torch.addmm(added, outputs, embedding.weight[words].t())
        return functional.cross_entropy(scores, index[targets])
