"""Gradients of single utterances, each clipped, and added up: what DP-SGD asks for.

Three ways lead to the same sum of min(1, C / |g_i|) g_i (design rule 8: norms in float64, the clip
is the last operation, a gradient that is not finite counts as zero):

    ghost        norms without gradients, from one pass over the batch (`ghost_clipping`)
    vectorised   gradients of many utterances at once, written out by Opacus (`opacus_gradients`)
    one-by-one   a pass for each utterance: the simplest, which the others are tested against, and
                 the DP-SGD whose slowness Dupuy et al. 2021 measure

Dropout is drawn by torch for each utterance by itself, in any of them, so what an utterance's draws
are is independent of who else is in the batch; but the three do not make the same draws.

Guarantee: every summand has an exact norm of at most C.  One by one it is a function of its
utterance alone, bit by bit.  In a batch the last bits of a float32 product may depend on the shape
of the batch, and so on the other utterances: when one of 40 leaves, the others' sum was seen to
move by 3e-7 C.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.central.method import Indices
from tacit.mechanisms.clippers import FlatClip
from tacit.models.extras import require
from tacit.models.understanding import UtteranceBatch
from tacit.nlu.clipped_sums import ClippedSums
from tacit.nlu.encoding import EncodedUtterances
from tacit.nlu.gradients import FlatModel, UtteranceGradients

Examples = Literal["ghost", "vectorised", "one-by-one"]
MAX_BYTES = 2 << 30  # of gradients that are written out


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

    def clipped_sum(self, units: Indices, clip_norm: float) -> NDArray[np.float64]:
        total = torch.zeros(len(self.flat), dtype=torch.float64)
        # Utterances of about the same length go together, so that there is little to be padded.
        lengths = self._utterances.lengths[units]
        units = units[np.argsort(lengths, kind="stable")]
        for start in range(0, len(units), self._sums.at_once):
            chosen = units[start : start + self._sums.at_once]
            self._sums.add_(total, self._utterances.batch(chosen), clip_norm)
        return total.numpy()


class OneByOne:
    """A forward and a backward pass for each utterance."""

    at_once = 1

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat

    def add_(self, total: Tensor, batch: UtteranceBatch, clip_norm: float) -> None:
        assert len(batch) == 1
        self._flat.gradient.zero_()
        self._flat.model(batch).sum().backward()
        clipped = FlatClip(clip_norm).clip(self._flat.gradient.numpy())
        total += torch.from_numpy(clipped.values)


def _sums(flat: FlatModel, examples: str, max_bytes: int) -> ClippedSums:
    if examples == "one-by-one":
        return OneByOne(flat)
    if examples == "ghost":
        from tacit.nlu.ghost_clipping import GhostClipping

        return GhostClipping(flat)
    if examples == "vectorised":
        require("opacus", extra="nlu", what="examples = 'vectorised'")
        from tacit.nlu.opacus_gradients import OpacusGradients

        return OpacusGradients(flat, max_bytes)
    raise ValueError(f"examples must be one of {', '.join(get_args(Examples))}, got {examples!r}")
