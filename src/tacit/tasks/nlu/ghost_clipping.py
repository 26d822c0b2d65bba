"""Clipped sums of gradients from one forward and one backward pass: "ghost clipping".

Every module with parameters of its own leaves what it was given and the derivative by what it gave.
From these two the norms of all utterances' gradients are found, and then their clipped sum, without
any of them ever being written out (`example_parts`).  Parameters' gradients are not computed by
`backward` at all, so a step costs little more than that of plain SGD.

Opacus has this too ("fast gradient clipping"), with norms in float32 and a second backward pass,
also in float32, for the sum; design rule 8 asks for float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.models.crf import LinearChainCrf, crf_grad_sample
from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.clipped_sums import FEW, clip_factors, views
from tacit.tasks.nlu.example_parts import Part, Products, Rows, Whole
from tacit.tasks.nlu.gradients import FlatModel
from tacit.tasks.nlu.twin import Recurrence, twin_of


@dataclass
class Call:
    """One call of a module; `slope` is the derivative of the loss by what it gave."""

    inputs: Sequence[Tensor]
    slope: Tensor | None = None


Parts = dict[str, Part]  # by the names of the module's own parameters


def _linear(module: nn.Linear, call: Call, slope: Tensor) -> Parts:
    left, right = _as_steps(slope), _as_steps(call.inputs[0])
    return {"weight": Products(left, right), "bias": Whole(left.double().sum(dim=1))}


def _convolution(module: nn.Conv1d, call: Call, slope: Tensor) -> Parts:
    plain = (module.stride, module.dilation, module.groups) == ((1,), (1,), 1)
    if not plain or isinstance(module.padding, str):
        raise ValueError(
            f"examples = 'ghost' does not know a convolution with strides, gaps or groups, got"
            f" {module}; use 'one-by-one'"
        )
    around = int(module.padding[0])
    windows = functional.pad(call.inputs[0], (around, around)).unfold(2, module.kernel_size[0], 1)
    left = slope.transpose(1, 2)
    right = windows.transpose(1, 2).flatten(2)
    return {"weight": Products(left, right), "bias": Whole(left.double().sum(dim=1))}


def _embedding(module: nn.Embedding, call: Call, slope: Tensor) -> Parts:
    ids, values = call.inputs[0].flatten(1), slope.flatten(1, -2)
    if module.padding_idx is not None:  # whose vector is never trained
        values = values.masked_fill((ids == module.padding_idx)[..., None], 0.0)
    return {"weight": Rows(ids, values)}


def _normalisation(module: nn.LayerNorm, call: Call, slope: Tensor) -> Parts:
    even = functional.layer_norm(call.inputs[0], module.normalized_shape, eps=module.eps)
    left = _as_steps(slope)
    return {
        "weight": Whole((left.double() * _as_steps(even)).sum(dim=1)),
        "bias": Whole(left.double().sum(dim=1)),
    }


def _recurrence(module: Recurrence, call: Call, slope: Tensor) -> Parts:
    by_gates, before = module.noted()
    return {"weight": Products(by_gates, before), "bias": Whole(by_gates.double().sum(dim=1))}


def _crf(module: LinearChainCrf, call: Call, slope: Tensor) -> Parts:
    emissions, tags, mask = call.inputs
    found = crf_grad_sample(module, emissions, tags, mask, slope)
    return {name: Whole(values) for name, values in found.items()}


KINDS: dict[type[nn.Module], Callable[[Any, Call, Tensor], Parts]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _normalisation,
    Recurrence: _recurrence,
    LinearChainCrf: _crf,
}


class GhostClipping:
    """Adds up the clipped gradients of batches."""

    at_once = FEW

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        twin = twin_of(flat.model)
        self._twin = twin.module
        self._trained = twin.trained(KINDS, "ghost")
        names = Counter(name for own in self._trained.values() for name in own.values())
        if shared := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                "examples = 'ghost' does not know parameters that several modules share, such as"
                f" {shared[0]}; use 'one-by-one'"
            )
        for module in self._trained:
            module.register_forward_hook(self._called)
        for values in twin.parameters.values():
            values.requires_grad_(False)
        self._calls: dict[nn.Module, Call] = {}

    def _called(self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> None:
        if module in self._calls:
            raise ValueError(
                f"examples = 'ghost' does not know modules that are called twice, such as a"
                f" {type(module).__name__}; use 'one-by-one'"
            )
        call = Call([each.detach() for each in inputs])
        self._calls[module] = call
        if not output.requires_grad:  # the first of a model has nothing before it to be trained
            output.requires_grad_()

        def note(slope: Tensor) -> None:
            call.slope = slope

        output.register_hook(note)  # type: ignore[no-untyped-call]

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        """total += the sum of min(1, C / |g|) g over the batch's utterances that count."""
        self._twin.train(self._flat.model.training)
        try:
            with torch.enable_grad():
                losses: Tensor = self._twin(batch)
                losses.sum().backward()  # type: ignore[no-untyped-call]
            parts = self._parts(len(batch))
        finally:
            self._calls.clear()
        squares = torch.stack([part.squares() for part in parts.values()]).sum(dim=0)
        chosen, factors = clip_factors(squares, len(self._flat), clip_norm, counted)
        places, is_whole = views(self._flat, total), bool(chosen.all())
        for name, part in parts.items():
            (part if is_whole else part.only(chosen)).add_(places[name], factors)

    def _parts(self, size: int) -> Parts:
        """What each trained parameter has of the batch, by its name in the model."""
        parts: Parts = {}
        for module, call in self._calls.items():
            if call.slope is None:
                continue  # what the module gave was not used
            if len(call.slope) != size or len(call.inputs[0]) != size:
                raise ValueError(
                    f"a {type(module).__name__} must be given all utterances of a batch side by"
                    f" side, got {len(call.inputs[0])} for {size}"
                )
            found = KINDS[type(module)](module, call, call.slope)
            parts |= {known: found[name] for name, known in self._trained[module].items()}
        return parts


def _as_steps(values: Tensor) -> Tensor:
    """[B, T, n], with T = 1 where there are no steps."""
    return values[:, None] if values.dim() == 2 else values.flatten(1, -2)
