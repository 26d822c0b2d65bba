"""Gradients of single utterances, each clipped, and added up: what DP-SGD asks for.

Three ways lead to the same sum of min(1, C / |g_i|) g_i (design rule 8: norms in float64, the clip
is the last operation, a gradient that is not finite counts as zero):

    ghost        norms without gradients, from one pass over the batch (`ghost_clipping`)
    vectorised   gradients of many utterances at once, written out by Opacus (`opacus_gradients`)
    one-by-one   a pass for each utterance: the simplest, which the others are tested against, and
                 the DP-SGD whose slowness Dupuy et al. 2021 measure

Dropout is drawn by torch for each utterance by itself, in any of them, so what an utterance's draws
are is independent of who else is in the batch; but the three do not make the same draws.

Guarantee: every summand has an exact norm of at most C, and is a function of its utterance alone
(and of its draws of dropout).  One by one that is plain.  In a batch, the order in which a float32
product is summed up may depend on the batch's shape, and with it the last bits of everybody's
gradient on who else is there; a maximum that flips may make much of them.  So

- all batches have the same number of utterances: what is left over is filled up with repetitions,
  which do not count.  It is small batches that are summed up in another order;
- before the first sum, some utterances are computed among different others, in batches of different
  lengths, in several places.  The order of a product's sum does not depend on the values, so
  another order would show in some of them.  If it does, utterances go one by one.

What is left is the order of float64 sums, and lengths that were not tried.  `central.dp_sgd` keeps
a part of the clip norm for that (docs/privacy/edp-sgd.md).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.mechanisms.clipping import LARGEST_CLIP_NORM, FlatClip
from tacit.mechanisms.method import Indices
from tacit.models.base import require
from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.clipped_sums import ClippedSums
from tacit.tasks.nlu.encoding import EncodedUtterances
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients

Examples = Literal["ghost", "vectorised", "one-by-one"]
MAX_BYTES = 2 << 30  # of gradients that are written out
PROBES = 6  # utterances that are computed in different batches, before any of them counts
SAME = 2.0**-40  # of a gradient's norm: far below what one float32 sum in another order changes


class ExampleGradients(UtteranceGradients):
    """Of a worker; the unit is an utterance."""

    def __init__(
        self,
        flat: FlatModel,
        utterances: EncodedUtterances,
        examples: Examples = "ghost",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(flat, utterances)
        self._sums = _sums(flat, examples, max_bytes)
        self._at_once: int | None = None  # known once it was tried

    def clipped_sum(self, units: Indices, clip_norm: float) -> NDArray[np.float64]:
        total = torch.zeros(len(self.flat), dtype=torch.float64)
        if self._at_once is None:
            self._at_once = self._sums.at_once if self.is_each_alone() else 1
        # Utterances of about the same length go together, so that there is little to be padded.
        lengths = self._utterances.lengths[units]
        units = units[np.argsort(lengths, kind="stable")]
        for start in range(0, len(units), self._at_once):
            chosen = units[start : start + self._at_once]
            filled = np.resize(chosen, self._at_once)  # with repetitions
            counted = torch.arange(len(filled)) < len(chosen)
            self._sums.add_(total, self._utterances.batch(filled), clip_norm, counted)
        return total.numpy()

    def is_each_alone(self) -> bool:
        """Whether an utterance's gradient is the same in whatever batch and place it is.

        Of a few utterances from short to long, each is computed among copies of itself, and then
        among others of all lengths.  The same: but for the last bits of float64.
        """
        size = self._sums.at_once
        if size == 1 or not len(self._utterances):
            return True
        by_length = np.argsort(self._utterances.lengths, kind="stable")
        others = by_length[np.linspace(0, len(by_length) - 1, size).astype(np.int64)]
        was_training = self.flat.model.training
        self.flat.model.eval()  # dropout would make all of them different
        try:
            for place in np.linspace(0, size - 1, PROBES).astype(int).tolist():
                company = others[::-1].copy()
                company[place] = others[place]
                alone = self._gradient_in(np.full(size, others[place]), 0)
                apart = self._gradient_in(company, place) - alone
                if not apart.norm() <= SAME * alone.norm():
                    return False
        finally:
            self.flat.model.train(was_training)
        return True

    def _gradient_in(self, batch: Indices, place: int) -> Tensor:
        """That of the utterance at a place of a batch, as the batch's own way computes it."""
        found = torch.zeros(len(self.flat), dtype=torch.float64)
        counted = torch.arange(len(batch)) == place
        self._sums.add_(found, self._utterances.batch(batch), LARGEST_CLIP_NORM, counted)
        return found


class OneByOne:
    """A forward and a backward pass for each utterance."""

    at_once = 1

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        assert len(batch) == 1
        self._flat.gradient.zero_()
        self._flat.model(batch).sum().backward()
        clipped = FlatClip(clip_norm).clip(self._flat.gradient.numpy())
        total += torch.from_numpy(clipped.values)


def _sums(flat: FlatModel, examples: str, max_bytes: int) -> ClippedSums:
    if examples == "one-by-one":
        return OneByOne(flat)
    if examples == "ghost":
        from tacit.tasks.nlu.ghost_clipping import GhostClipping

        return GhostClipping(flat)
    if examples == "vectorised":
        require("opacus", extra="nlu", what="examples = 'vectorised'")
        from tacit.tasks.nlu.opacus_gradients import OpacusGradients

        return OpacusGradients(flat, max_bytes)
    raise ValueError(f"examples must be one of {', '.join(get_args(Examples))}, got {examples!r}")
