"""A model's parameters as the one flat vector that is clipped, summed and noised."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.models.base import LanguageModel


def layer_sizes(model: LanguageModel) -> tuple[int, ...]:
    """How many values of the flat vector each parameter vector takes, in order."""
    return tuple(values.numel() for _, values in model.parameter_vectors())


def parameter_count(model: LanguageModel) -> int:
    """How many values training changes."""
    return sum(layer_sizes(model))


def lasting_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Parameters and the buffers that a file keeps, each once, however many names it has."""
    lasting = model.state_dict().keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    return tensors | {name: value for name, value in model.named_buffers() if name in lasting}


def to_vector(model: LanguageModel) -> NDArray[np.float32]:
    """A copy of all parameter vectors, one after the other."""
    vector = np.empty(parameter_count(model), np.float32)
    start = 0
    for _, values in model.parameter_vectors():
        end = start + values.numel()
        vector[start:end] = values.detach().reshape(-1).cpu().numpy()
        start = end
    return vector


def from_vector_(model: LanguageModel, vector: NDArray[Any]) -> None:
    """Set all parameter vectors from a flat vector of float32 or float64, in place."""
    count = parameter_count(model)
    if vector.shape != (count,) or vector.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"vector must be one flat vector of {count} values of float32 or float64, got shape"
            f" {list(vector.shape)} of {vector.dtype}"
        )
    values = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
    blocks = torch.split(values, list(layer_sizes(model)))
    with torch.no_grad():
        for (_, parameter), block in zip(model.parameter_vectors(), blocks, strict=True):
            parameter.copy_(block.view_as(parameter))
