"""Where a user's local steps happen: a model's weights, and one step of gradient descent on them.

`local_sgd_for` gives the fastest there is for a model: steps written by hand for the recurrent
models of one layer (`kernels.handwritten`), and automatic differentiation for any other.

There is one `LocalSGD` per process, and every user starts it anew with `load`, so nothing of one
user may be left in it for the next.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.kernels.rows import TokenRows
from tacit.models.base import (
    LanguageModel,
    ModelConfig,
    frozen_kept,
    trained_ranges,
    whole_vector,
)
from tacit.models.base import loss as summed_loss
from tacit.models.layers import TiedConfig
from tacit.models.registry import build

Weights = NDArray[np.float32]

_PER_WORD = ("embedding.weight", "embedding.output_bias")  # the parameters of a `TiedEmbedding`


class LocalSteps(Protocol):
    """The trained weights theta as one flat vector, in the order of `parameter_vectors`."""

    def load(self, weights: Weights) -> None:
        """Begin at theta = theta^0 = `weights`; whatever was before is forgotten.

        The weights may be kept instead of a copy: they have to stay as they are until the end.
        """

    def step(
        self, rows: TokenRows, learning_rate: float, *, penalty: float = 0.0, project: bool = True
    ) -> float:
        """theta <- theta - eta (gradient of the mean loss + penalty (theta - theta^0)).

        Then the projection of `normalise_`, if `project`.  The result is the summed loss before the
        step.  Without a target that counts there is no gradient.
        """

    def steps(
        self, batches: Iterable[TokenRows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A `step` on each batch in turn: its summed loss, and how many targets that is of.

        Batches may be asked for before the steps that they are for; theta may be read and replaced
        between two steps.
        """

    def weights(self) -> Weights:
        """A copy of theta."""

    def update(self) -> Weights:
        """theta - theta^0, as a new vector."""

    def set_weights(self, weights: Weights) -> None:
        """Replace theta and leave theta^0 as it is."""


class LocalSGD(LocalSteps, Protocol):
    """Local steps of a whole model."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the model."""

    @property
    def trained(self) -> tuple[slice, ...]:
        """Where theta is in the vector of all weights, the frozen ones among them."""

    def whole(self, weights: Weights) -> Weights:
        """All weights, with these as theta: to be read before anything else is done here."""

    def resized(self, vocab_size: int) -> WordSteps:
        """Steps of `resized_model`, in which the same is frozen; the same object for a size."""


class WordSteps(LocalSteps, Protocol):
    """Local steps whose theta is all weights of a model; what is frozen in it does not move."""

    def set_word_rates(self, rates: Weights) -> None:
        """From now on, multiply the step of each word's vector and bias by its rate."""


class AutogradSGD:
    """Any model, on any device, by automatic differentiation.

    It works on a copy of the model, whose parameters become views of one flat tensor, so that
    loading and reading all of them is one copy.  With `frozen_too` theta has the frozen ones, too.

    Guarantee: what `step` computes depends on what was loaded and stepped on since `load`, and on
    nothing before it.  Buffers that the model changes are put back, and dropout is drawn from a
    seed made of the loaded weights and the batch, whatever the global generator has been used for.
    """

    def __init__(self, model: LanguageModel, *, frozen_too: bool = False) -> None:
        self._model, self.config = copy.deepcopy(model).train(), model.config
        self.trained = trained_ranges(model)
        named = self._model.parameter_vectors()
        self._names, self._parameters = zip(*named, strict=True)
        in_theta = list(self._model.parameters()) if frozen_too else self._parameters
        kinds = {(values.dtype, values.device) for values in in_theta}
        if len(kinds) != 1:
            raise ValueError(
                "all parameters of a model must have one type and be on one device, got"
                f" {', '.join(sorted(f'{dtype} on {device}' for dtype, device in kinds))}"
            )
        [(dtype, self._device)] = kinds
        sizes = [values.numel() for values in in_theta]
        self._theta = torch.empty(sum(sizes), dtype=dtype, device=self._device)
        self._start = torch.empty_like(self._theta)
        for parameter, block in zip(in_theta, torch.split(self._theta, sizes), strict=True):
            view = block.view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
        self._blocks = [values.data for values in self._parameters]
        self._word_rates: Tensor | None = None
        self._start.copy_(self._theta)
        self._loaded = self.weights()
        self._buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        self._seed = 0
        self._resized: dict[int, AutogradSGD] = {}

    def load(self, weights: Weights) -> None:
        """Begin at these weights, with the buffers that the model came with and a fresh seed."""
        self.set_weights(weights)
        self._start.copy_(self._theta)
        for buffer, initial in self._buffers:
            buffer.copy_(initial)
        self._loaded = weights
        self._seed = zlib.crc32(weights[:256].tobytes())

    def step(
        self, rows: TokenRows, learning_rate: float, *, penalty: float = 0.0, project: bool = True
    ) -> float:
        """One step: first the pull of the penalty, then the gradient, then the projection."""
        total, gradients = 0.0, None
        if rows.examples:
            total, gradients = self._gradients(rows)
        elif not penalty:
            return total
        with torch.no_grad():
            if penalty:
                self._theta.lerp_(self._start, learning_rate * penalty)
            if gradients is not None:
                torch._foreach_add_(self._blocks, gradients, alpha=-learning_rate)
            if project:
                with frozen_kept(self._model):
                    self._model.normalise_()
        return total

    def steps(
        self, batches: Iterable[TokenRows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A step on each batch in turn."""
        for rows in batches:
            yield self.step(rows, learning_rate, penalty=penalty), rows.examples

    def weights(self) -> Weights:
        """A copy of theta in float32 on the CPU."""
        return self._theta.to("cpu", torch.float32, copy=True).numpy()

    def update(self) -> Weights:
        """theta - theta^0, where theta^0 are the weights that were loaded, in float32."""
        return self.weights() - self._loaded

    def set_weights(self, weights: Weights) -> None:
        """Replace theta, converted to the model's type and device."""
        if weights.shape != tuple(self._theta.shape):
            raise ValueError(
                f"weights must be one flat vector of {len(self._theta)} values, got shape"
                f" {list(weights.shape)}"
            )
        self._theta.copy_(_as_tensor(weights))

    def whole(self, weights: Weights) -> Weights:
        """All weights, with these as the trained ones."""
        whole = whole_vector(self._model)
        set_ranges(whole, self.trained, weights)
        return whole

    def set_word_rates(self, rates: Weights) -> None:
        """Multiply the steps of the table of words and of its biases by these."""
        self._word_rates = _as_tensor(rates).to(self._device, self._theta.dtype)

    def resized(self, vocab_size: int) -> AutogradSGD:
        """Local steps of the same model with another number of words, made once per number."""
        if vocab_size not in self._resized:
            model = resized_model(self._model, vocab_size).to(self._device, self._theta.dtype)
            self._resized[vocab_size] = AutogradSGD(model, frozen_too=True)
        return self._resized[vocab_size]

    def _gradients(self, rows: TokenRows) -> tuple[float, list[Tensor]]:
        """The summed loss, and the gradient of the mean one."""
        rows.check_tokens(self.config.vocab_size)
        inputs, targets, mask = (
            part.to(self._device) for part in (rows.inputs, rows.targets, rows.mask)
        )
        with _seeded(zlib.crc32(rows.inputs.numpy().tobytes(), self._seed), self._device):
            total, count = summed_loss(self._model(inputs)[0], targets, mask)
            gradients = torch.autograd.grad(
                total / count, self._parameters, materialize_grads=True, allow_unused=True
            )
        if self._word_rates is not None:
            for name, gradient in zip(self._names, gradients, strict=True):
                if name in _PER_WORD:
                    gradient.mul_(self._word_rates.view(-1, *[1] * (gradient.dim() - 1)))
        return float(total.detach()), list(gradients)


def resized_model(model: LanguageModel, vocab_size: int) -> LanguageModel:
    """A model of the same shape with another number of words, and with an output bias.

    What is frozen in the model is frozen there; an output bias that it does not have is, too.
    """
    config = model.config
    if not isinstance(config, TiedConfig):
        raise ValueError(
            f"a model of kind {config.kind!r} has no table of words that is known here, which"
            " sampled softmax needs; use one of the built-in models, or no sampling"
        )
    resized = build(replace(config, vocab_size=vocab_size, output_bias=True))
    trained = {name for name, _ in model.parameter_vectors()}
    for name, parameter in resized.named_parameters():
        parameter.requires_grad_(name in trained)
    return resized


def local_sgd_for(model: LanguageModel) -> LocalSGD:
    """The fastest there is for the model: written by hand for some of ours, else by autograd."""
    from tacit.kernels.handwritten import HandwrittenSGD  # builds on this file

    return HandwrittenSGD(model) if HandwrittenSGD.serves(model) else AutogradSGD(model)


def set_ranges(whole: Weights, ranges: Sequence[slice], values: NDArray[Any]) -> None:
    """Write the values to these ranges, one after the other."""
    start = 0
    for each in ranges:
        end = start + each.stop - each.start
        whole[each], start = values[start:end], end


def _as_tensor(weights: NDArray[Any]) -> Tensor:
    """The array without a copy, unless it is read-only, which torch does not know."""
    return torch.from_numpy(weights if weights.flags.writeable else weights.copy())


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators with this seed inside, and as they were outside.

    Not `torch.manual_seed`, which looks for every kind of device there is and takes half a
    millisecond for it.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
