"""What a worker computes gradients with: the mean of a batch, or a clipped sum over utterances.

SGD and eDP-SGD ask for the mean gradient of a batch.  DP-SGD asks for the gradient g_i of every
single utterance, clipped, and added up: the sum of min(1, C / |g_i|) g_i (design rule 8: norms in
float64, the clip is the last operation, a gradient that is not finite counts as zero).
`ghost_clipping` finds it from one pass over a batch.  Dropout is drawn for each utterance by
itself, so an utterance's draws are independent of the rest of the batch.

Guarantee: every summand has an exact norm of at most C, and is a function of its utterance alone
(and of its draws of dropout).  In batches of one that is plain.  In a larger batch, the order in
which a float32 product is summed may depend on the batch's shape, and with it the last bits of
every gradient on which other utterances are present; a maximum that flips may amplify them.  So

- all batches have the same number of utterances: the last one is filled up with repetitions that
  do not count.  It is small batches that are summed in another order;
- before the first sum, some utterances are computed among different others, in batches of different
  lengths, at several positions.  The order of a product's sum does not depend on the values, so
  another order would show in some of them.  If it does, utterances go one by one.

What remains is the order of float64 sums, and lengths that were not tried.  `mechanisms.method`
keeps a part of the clip norm for that (docs/privacy/edp-sgd.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.mechanisms.clipping import LARGEST_CLIP_NORM
from tacit.mechanisms.method import Indices
from tacit.tasks.nlu.encoding import EncodedUtterances

if TYPE_CHECKING:
    from tacit.tasks.nlu.ghost_clipping import GhostClipping

_PROBES = 6  # utterances that are computed in different batches, before any of them counts
_SAME = 2.0**-40  # of a gradient's norm: far below what one float32 sum in another order changes


class FlatModel:
    """The parameters of a model that are trained, side by side in one vector.

    The model's own tensors are views of `weights`, and their gradients views of `gradient`, so
    neither is ever copied together.  A "layer" of eDP-SGD is one such tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("the model has no parameter to train: all of them are frozen")
        self.names = tuple(trained)
        self.sizes = tuple(p.numel() for p in trained.values())
        self.weights = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in trained.values()]))
        self.gradient = torch.zeros_like(self.weights)
        self.weights.grad = self.gradient
        start = 0
        for parameter in trained.values():
            end = start + parameter.numel()
            parameter.data = self.weights.data[start:end].view_as(parameter)
            parameter.grad = self.gradient[start:end].view_as(parameter)
            start = end

    def __len__(self) -> int:
        return self.weights.numel()


class UtteranceGradients:
    """Gradients of units, an utterance or a user each: `Gradients` of `mechanisms.method`."""

    def __init__(
        self,
        flat: FlatModel,
        utterances: EncodedUtterances,
        units: Sequence[Indices] | None = None,
        clipping: GhostClipping | None = None,
    ) -> None:
        """Give what `mean` or `clipped_sum` needs.

        Args:
            flat: the model.
            utterances: all training utterances.
            units: the indices of each user's utterances; None where the unit is an utterance.
            clipping: finds clipped sums; only where the unit is an utterance.
        """
        self.flat = flat
        self._utterances = utterances
        self._units = units
        self._clipping = clipping
        self._at_once: int | None = None  # known after the first `is_each_alone`

    def __len__(self) -> int:
        """The number of units."""
        return len(self._utterances) if self._units is None else len(self._units)

    def mean(self, units: Indices) -> NDArray[np.float32]:
        """The gradient of the mean loss over the utterances of these units.

        The array is a view that the next call overwrites.
        """
        if self._units is not None:
            units = np.concatenate([self._units[unit] for unit in units.tolist()])
        losses: Tensor = self.flat.model(self._utterances.batch(units))
        self.flat.gradient.zero_()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        gradient: NDArray[np.float32] = self.flat.gradient.numpy()
        return gradient

    def clipped_sum(self, units: Indices, clip_norm: float) -> NDArray[np.float64]:
        """The sum over the utterances of their gradients, each clipped to `clip_norm`."""
        if self._clipping is None or self._units is not None:
            raise TypeError("single utterances' gradients need `clipping`, and no users as units")
        total = torch.zeros(len(self.flat), dtype=torch.float64)
        if self._at_once is None:
            self._at_once = self._clipping.at_once if self.is_each_alone() else 1
        # Utterances of about the same length go together, so that there is little to be padded.
        lengths = self._utterances.lengths[units]
        units = units[np.argsort(lengths, kind="stable")]
        for start in range(0, len(units), self._at_once):
            chosen = units[start : start + self._at_once]
            filled = np.resize(chosen, self._at_once)  # with repetitions
            counted = torch.arange(len(filled)) < len(chosen)
            self._clipping.add_(total, self._utterances.batch(filled), clip_norm, counted)
        return total.numpy()

    def is_each_alone(self) -> bool:
        """Whether an utterance's gradient is the same in any batch and at any position.

        A few utterances from short to long are each computed among copies of themselves, and then
        among others of all lengths.  "The same" allows for the last bits of float64.
        """
        assert self._clipping is not None
        size = self._clipping.at_once
        if size == 1 or not len(self._utterances):
            return True
        by_length = np.argsort(self._utterances.lengths, kind="stable")
        others = by_length[np.linspace(0, len(by_length) - 1, size).astype(np.int64)]
        was_training = self.flat.model.training
        self.flat.model.eval()  # dropout would make all of them different
        try:
            for position in np.linspace(0, size - 1, _PROBES).astype(int).tolist():
                company = others[::-1].copy()
                company[position] = others[position]
                alone = self._gradient_in(np.full(size, others[position]), 0)
                apart = self._gradient_in(company, position) - alone
                if not apart.norm() <= _SAME * alone.norm():
                    return False
        finally:
            self.flat.model.train(was_training)
        return True

    def _gradient_in(self, batch: Indices, position: int) -> Tensor:
        """The gradient of one utterance of a batch, computed with the batch."""
        assert self._clipping is not None
        gradient = torch.zeros(len(self.flat), dtype=torch.float64)
        counted = torch.arange(len(batch)) == position
        self._clipping.add_(gradient, self._utterances.batch(batch), LARGEST_CLIP_NORM, counted)
        return gradient
