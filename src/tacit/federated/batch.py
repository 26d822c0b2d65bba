"""Rows as the hand-written steps want them: time first, and only what counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.federated.rows import Rows


@dataclass(frozen=True)
class Batch:
    """Tokens are int64 and contiguous; all of them are in the vocabulary, and so are the places."""

    inputs: Tensor  # [steps * rows], time first
    targets: Tensor  # [examples], only those that count
    places: Tensor | None  # of the targets among the inputs; None if all count
    rows: int
    steps: int

    @classmethod
    def of(cls, rows: Rows, vocab_size: int) -> Batch:
        """Drops the steps after the last that counts; refuses tokens outside of the vocabulary."""
        mask = rows.mask
        places, steps = None, mask.shape[1]
        if not bool(mask.all()):
            kept = torch.nonzero(mask.any(0))
            steps = int(kept[-1]) + 1 if len(kept) else 0
            places = torch.nonzero(mask[:, :steps].t().reshape(-1)).squeeze(1)
        inputs = rows.inputs[:, :steps].t().reshape(-1)
        targets = rows.targets[:, :steps].t().reshape(-1)
        if places is not None:
            targets = targets[places]
        for name, tokens in (("inputs", inputs), ("targets", targets)):
            if tokens.dtype != torch.int64:
                raise ValueError(f"{name} must be int64, got {tokens.dtype}")
            if tokens.numel():
                smallest, largest = map(int, torch.aminmax(tokens))
                if not 0 <= smallest <= largest < vocab_size:
                    raise ValueError(
                        f"{name} must be tokens from 0 to {vocab_size - 1}, got {smallest} to"
                        f" {largest}"
                    )
        return cls(inputs.contiguous(), targets.contiguous(), places, mask.shape[0], steps)
