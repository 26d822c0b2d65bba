"""Rows as the hand-written steps want them: time first, and only what counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.kernels.rows import Rows, width_of


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
        mask, places = rows.mask.numpy(), None
        steps = width_of(mask)
        inputs = rows.inputs.numpy()[:, :steps].T.ravel()
        targets = rows.targets.numpy()[:, :steps].T.ravel()
        if rows.examples < mask.size:
            places = np.flatnonzero(mask[:, :steps].T)
            targets = targets[places]
        for name, tokens in (("inputs", inputs), ("targets", targets)):
            if tokens.dtype != np.int64:
                raise ValueError(f"{name} must be int64, got {tokens.dtype}")
            # As if they had no sign, so that a negative one is too large as well.
            if tokens.size and not tokens.view(np.uint64).max() < vocab_size:
                raise ValueError(
                    f"{name} must be tokens from 0 to {vocab_size - 1}, got {tokens.min()} to"
                    f" {tokens.max()}"
                )
        return cls(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            None if places is None else torch.from_numpy(places),
            mask.shape[0],
            steps,
        )
