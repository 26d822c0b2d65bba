"""The training loss: how surprised a model is by the tokens that count."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_IGNORED = -100


def loss(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats, summed where `mask` is true, and the number of those positions.

    `logits` is [..., vocabulary]; `targets` and `mask` have the shape before that.  A sum and a
    count, rather than a mean, so that the caller decides what is averaged over: positions of a
    batch, a user, or a text.  What is masked has no part in either, nor in a gradient; its target
    may be anything.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must have the shape {list(logits.shape[:-1])} of the logits' positions, got"
            f" {list(targets.shape)}"
        )
    if mask is None:
        mask = torch.ones_like(targets, dtype=torch.bool)
    if mask.shape != targets.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must have the shape {list(targets.shape)} of the targets and be of booleans, got"
            f" {list(mask.shape)} of {mask.dtype}"
        )
    kept = targets.masked_fill(~mask, _IGNORED)
    total = functional.cross_entropy(
        logits.flatten(0, -2), kept.flatten(), reduction="sum", ignore_index=_IGNORED
    )
    return total, mask.sum()
