"""What every way of adding up clipped gradients of utterances has in common."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tacit.mechanisms.clipping import check_clip_norm
from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.gradients import FlatModel

# Utterances at once: enough for matrix products to be fast, and few enough to be of about the same
# length where those of a step are put in order.
FEW = 16

# Units of 2^-52 for the rounding of the root, of the factor and of the scaled values.
_SPARE_UNITS = 8


class ClippedSums(Protocol):
    """A way of adding up."""

    @property
    def at_once(self) -> int:
        """How many utterances a batch should have at most."""

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        """total += the sum of min(1, C / |g|) g over the batch's utterances, in float64.

        `counted` [B] says which of them are in the sum; the others only fill up the batch.
        """


def clip_factors(
    squares: Tensor, size: int, clip_norm: float, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which gradients count and are finite, [B], and for these min(1, C / |g|), by their squares.

    Guarantee: the exact norm of a scaled gradient is at most C.  A sum of n squares in float64 is
    right to n 2^-52 of itself, and the norm is raised by that before it is compared.
    """
    check_clip_norm("clip_norm", clip_norm)
    chosen = torch.isfinite(squares)
    if counted is not None:
        chosen &= counted
    norms = squares[chosen].sqrt() * (1 + (size + _SPARE_UNITS) * 2.0**-52)
    return chosen, torch.where(norms > clip_norm, clip_norm / norms, 1.0)


def views(flat: FlatModel, total: Tensor) -> dict[str, Tensor]:
    """A flat vector as the parameters that it is made of."""
    shapes = {name: values.shape for name, values in flat.model.named_parameters()}
    pieces = zip(flat.names, torch.split(total, list(flat.sizes)), strict=True)
    return {name: piece.view(shapes[name]) for name, piece in pieces}
