"""A trained model with another vocabulary: Bagdasaryan et al. 2022, section 4.3, for any model.

Which parameters have a row per token is not listed but found out: the same kind of model is made
with a larger vocabulary, and the axis that grew is the one.  So tied and untied embeddings, output
biases and a user's own module are all treated alike.

Guarantee: rows that the map copies keep every bit, and so does all that does not count tokens;
a map onto the same vocabulary gives a model, and an optimizer's moments, equal in every bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.models.base import LanguageModel, lasting_tensors, parameter_count
from tacit.models.registry import OwnConfig, build

# By 1, and by so many that a module which rounds its tables up (to 8, 64, 256 rows) shows it.
_GROWTHS = (1, 1024)


class Map(Protocol):
    """From values per old token to values per new token (`tacit.tokenizers.remapping`).

    A new token that the old vocabulary has keeps its row; any other gets the mean of the rows of
    its old tokens.
    """

    @property
    def old_size(self) -> int: ...

    @property
    def new_size(self) -> int: ...

    @property
    def copied(self) -> NDArray[np.bool_]:
        """Which new rows are copies of one old row."""

    def apply(self, values: NDArray[Any], axis: int = 0) -> NDArray[Any]: ...


def _vocabulary_axes(model: LanguageModel) -> dict[str, int]:
    """The axis that counts tokens, of every parameter and lasting buffer that has one."""
    shapes = _shapes(model)
    grown = {growth: _shapes(_with_size(model, growth)) for growth in _GROWTHS}
    if any(others.keys() != shapes.keys() for others in grown.values()):
        raise ValueError(
            f"the model {model.config.kind!r} has other parameters with another vocabulary, so"
            " that they cannot be mapped"
        )
    axes = {}
    for name, shape in shapes.items():
        if all(others[name] == shape for others in grown.values()):
            continue
        axis = _axis(shape, model.config.vocab_size, {by: grown[by][name] for by in grown})
        if axis is None:
            raise ValueError(
                f"{name} has the shape {list(shape)} for {model.config.vocab_size} tokens and"
                f" {list(grown[1][name])} for one more: exactly one axis must count the tokens"
            )
        axes[name] = axis
    if not axes:
        raise ValueError(
            f"the model {model.config.kind!r} has no parameter that counts its"
            f" {model.config.vocab_size} tokens"
        )
    return axes


def with_vocabulary(model: LanguageModel, remapping: Map) -> LanguageModel:
    """A new model of the same kind for the new vocabulary; the given one stays as it is.

    What the model restricts its parameters to, such as vectors of unit norm, holds for the averaged
    rows as well: they are brought back to it.  (The mean of opposite vectors is zero, which has no
    direction, and stays zero.)
    """
    _check_fits(model, remapping)
    axes = _vocabulary_axes(model)
    new = build(dataclasses.replace(model.config, vocab_size=remapping.new_size))
    values = {
        name: _applied(remapping, tensor, axes[name]) if name in axes else tensor.clone()
        for name, tensor in lasting_tensors(model).items()
    }
    for name, tensor in lasting_tensors(new).items():
        if tensor.shape != values[name].shape:  # say, a table with a least number of rows
            raise ValueError(
                f"{name} has the shape {list(tensor.shape)} for {remapping.new_size} tokens, where"
                f" {list(values[name].shape)} was to be expected"
            )
        tensor.data = values[name].clone()
    if not remapping.copied.all():
        new.normalise_()
        _restore(new, values, axes, remapping)
    trainable = {name: value.requires_grad for name, value in model.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(trainable[name])
    return new.train(model.training)


def remapped_vector(model: LanguageModel, vector: NDArray[Any], remapping: Map) -> NDArray[Any]:
    """A flat vector like the model's parameters, such as an optimizer's moment, for the new model.

    Nothing is normalised: a moment is restricted to nothing, and weights are for
    `with_vocabulary`.  Means of what is not negative are not negative.
    """
    _check_fits(model, remapping)
    count = parameter_count(model)
    if vector.shape != (count,) or not np.issubdtype(vector.dtype, np.floating):
        raise ValueError(
            f"vector must be one flat vector of {count} floating-point values, as the model has,"
            f" got shape {list(vector.shape)} of {vector.dtype}"
        )
    axes = _vocabulary_axes(model)
    parts, start = [], 0
    for name, parameter in model.parameter_vectors():
        part = vector[start : start + parameter.numel()]
        start += parameter.numel()
        if name in axes:
            part = remapping.apply(part.reshape(tuple(parameter.shape)), axes[name]).reshape(-1)
        parts.append(part)
    return np.concatenate(parts)


def _shapes(model: LanguageModel) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter and lasting buffer, by name."""
    return {name: tuple(tensor.shape) for name, tensor in lasting_tensors(model).items()}


def _with_size(model: LanguageModel, growth: int) -> LanguageModel:
    """The same kind of model with a larger vocabulary, without memory for its weights.

    A module of the user's own may not know the meta device.
    """
    config = dataclasses.replace(model.config, vocab_size=model.config.vocab_size + growth)
    with torch.device("cpu" if isinstance(config, OwnConfig) else "meta"):
        return build(config)


def _axis(shape: tuple[int, ...], tokens: int, grown: dict[int, tuple[int, ...]]) -> int | None:
    """The one axis that is as long as there are tokens and grows with them, each token by one."""
    for axis, length in enumerate(shape):
        expected = {by: (*shape[:axis], length + by, *shape[axis + 1 :]) for by in grown}
        if length == tokens and grown == expected:
            return axis
    return None


def _check_fits(model: LanguageModel, remapping: Map) -> None:
    """Raise `ValueError` unless the map starts from the vocabulary of the model."""
    if remapping.old_size != model.config.vocab_size:
        raise ValueError(
            f"the model has {model.config.vocab_size} tokens and the tokenizer"
            f" {remapping.old_size}: remap from the tokenizer that the model was trained with"
        )


def _applied(remapping: Map, tensor: Tensor, axis: int) -> Tensor:
    """NumPy has no bfloat16; on the way through float32 no bit of it is lost."""
    values = tensor.detach().cpu()
    wide = values.float() if values.dtype == torch.bfloat16 else values
    mapped = torch.from_numpy(remapping.apply(wide.numpy(), axis))
    return mapped.to(tensor.dtype).to(tensor.device)


def _restore(
    new: LanguageModel, values: dict[str, Tensor], axes: dict[str, int], remapping: Map
) -> None:
    """All but the averaged rows get their bits back, which `normalise_` may have rounded."""
    copied = torch.from_numpy(np.flatnonzero(remapping.copied))
    with torch.no_grad():
        for name, tensor in lasting_tensors(new).items():
            if name in axes:
                rows = copied.to(tensor.device)
                kept = values[name].index_select(axes[name], rows)
                tensor.index_copy_(axes[name], rows, kept)
            else:
                tensor.copy_(values[name])
