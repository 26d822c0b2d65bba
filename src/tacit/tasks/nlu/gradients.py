"""A worker's copy of the model, its trained parameters and their gradients as flat vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.mechanisms.method import Indices
from tacit.models.understanding import UnderstandingModel
from tacit.tasks.nlu.encoding import EncodedUtterances


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
    """What the methods of `tacit.mechanisms` ask of a worker."""

    def __init__(
        self,
        flat: FlatModel,
        utterances: EncodedUtterances,
        units: Sequence[Indices] | None = None,
    ) -> None:
        """`units`: the utterances of each user, where the unit is a user."""
        self.flat = flat
        self._utterances = utterances
        self._units = units

    def __len__(self) -> int:
        """How many units there are."""
        return len(self._utterances) if self._units is None else len(self._units)

    def mean(self, units: Indices) -> NDArray[np.float32]:
        losses = self._losses(self._records(units))
        self.flat.gradient.zero_()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        found: NDArray[np.float32] = self.flat.gradient.numpy()
        return found

    def clipped_sum(self, units: Indices, clip_norm: float) -> NDArray[np.float64]:
        raise TypeError("single utterances' gradients are known to ExampleGradients alone")

    def _records(self, units: Indices) -> Indices:
        if self._units is None:
            return units
        return np.concatenate([self._units[unit] for unit in units.tolist()])

    def _losses(self, records: Indices) -> Tensor:
        model = self.flat.model
        assert isinstance(model, UnderstandingModel)
        losses: Tensor = model(self._utterances.batch(records))
        return losses
