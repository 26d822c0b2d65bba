"""Clipped sums of gradients from one forward and one backward pass: "ghost clipping".

Every module with parameters of its own leaves its inputs and the derivative of the loss by its
output.  From these two follow the norms of all utterances' gradients, and then their clipped sum,
without any gradient ever being written out.  `backward` does not compute parameters' gradients at
all, so a step costs little more than one of plain SGD.

By a weight matrix the gradient of an utterance is a sum over its T tokens, G = sum_t d_t x_t', so
with T far below the matrix's sides its norm follows from products of tokens alone,

    |G|^2 = sum_s,t (d_s . d_t) (x_s . x_t)

(Goodfellow 2015 for T = 1; Li et al. 2022, "ghost clipping"), and a weighted sum over utterances is
one matrix product over all of their tokens (Bu et al. 2023, "book-keeping").

Guarantee: all is computed in float64 from tensors that are float32.  Where terms of both signs may
cancel, the most that rounding can take away is put on top, so that `squares` is no less than the
exact square norm but for a relative error below (n + 1) 2^-52 for n values.  What is put on top
depends on the utterance's own tokens, and not on how far the longest of a batch made it be padded;
sums over tokens go from the first to the last, so that zeros behind them change no bit.

Opacus has this too ("fast gradient clipping"), with norms in float32 and a second backward pass,
also in float32, for the sum; design rule 8 asks for float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.models.understanding import LinearChainCrf, UtteranceBatch, crf_grad_sample
from tacit.tasks.nlu.gradients import FlatModel
from tacit.tasks.nlu.twin import GradientPart, Recurrence, TwinSums, Whole

_UNIT = 2.0**-52

# Values of a weight matrix up to which the gradients by it are written out for their norms.
_SMALL = 1 << 12


@dataclass(frozen=True)
class _Products(GradientPart):
    """Gradients by a weight matrix: sum_t d_t x_t', `left` d [B, T, O], `right` x [B, T, I]."""

    left: Tensor
    right: Tensor

    def squares(self) -> Tensor:
        d, x = self.left.double(), self.right.double()
        O, I = d.shape[2], x.shape[2]  # noqa: E741
        if O * I <= _SMALL:
            squares = (d.transpose(1, 2) @ x).square().sum(dim=(1, 2))
        else:
            pairs = (d @ d.transpose(1, 2)) * (x @ x.transpose(1, 2))
            squares = _in_order(pairs.flatten(1)).clamp(min=0)
        largest = _in_order(d.norm(dim=2) * x.norm(dim=2))
        return squares + (O + I + _tokens(d).square()) * _UNIT * largest.square()

    def add_(self, total: Tensor, factors: Tensor) -> None:
        d, x = self.left.flatten(0, 1), self.right.flatten(0, 1)
        rows = d.any(dim=1).nonzero().squeeze(1)  # of padding all are zeros
        weights = factors.repeat_interleave(self.left.shape[1])[rows]
        weighted = d[rows].double() * weights[:, None]
        total.view(d.shape[1], x.shape[1]).addmm_(weighted.t(), x[rows].double())

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.left[chosen], self.right[chosen])


@dataclass(frozen=True)
class _TableRows(GradientPart):
    """Gradients by a table of vectors, whose rows `ids` [B, T] get `values` [B, T, D]."""

    ids: Tensor
    values: Tensor

    def squares(self) -> Tensor:
        B, values = len(self.ids), self.values.double()
        width = int(self.ids.max()) + 1
        keys = torch.arange(B)[:, None] * width + self.ids
        cells, of_key = torch.unique(keys, return_inverse=True)
        sums = values.new_zeros(len(cells), values.shape[2])
        sums.index_add_(0, of_key.flatten(), values.flatten(0, 1))
        squares = values.new_zeros(B).index_add_(0, cells // width, sums.square().sum(dim=1))
        largest = _in_order(values.norm(dim=2))
        return squares + _tokens(values) * _UNIT * largest.square()

    def add_(self, total: Tensor, factors: Tensor) -> None:
        weighted = self.values.double() * factors[:, None, None]
        total.index_add_(0, self.ids.flatten(), weighted.flatten(0, 1))

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.ids[chosen], self.values[chosen])


def _in_order(values: Tensor) -> Tensor:
    """The sum over the last dimension from its first value to its last."""
    return values.cumsum(dim=-1)[..., -1]


def _tokens(values: Tensor) -> Tensor:
    """The number of tokens of each utterance with anything but zeros: [B], float64."""
    return values.any(dim=2).sum(dim=1).double()


@dataclass
class _Call:
    """One call of a module; `slope` is the derivative of the loss by its output."""

    inputs: Sequence[Tensor]
    slope: Tensor | None = None


_Parts = dict[str, GradientPart]  # by the names of the module's own parameters


def _linear(module: nn.Linear, call: _Call, slope: Tensor) -> _Parts:
    left, right = _as_steps(slope), _as_steps(call.inputs[0])
    return {"weight": _Products(left, right), "bias": Whole(left.double().sum(dim=1))}


def _convolution(module: nn.Conv1d, call: _Call, slope: Tensor) -> _Parts:
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
    return {"weight": _Products(left, right), "bias": Whole(left.double().sum(dim=1))}


def _embedding(module: nn.Embedding, call: _Call, slope: Tensor) -> _Parts:
    ids, values = call.inputs[0].flatten(1), slope.flatten(1, -2)
    if module.padding_idx is not None:  # whose vector is never trained
        values = values.masked_fill((ids == module.padding_idx)[..., None], 0.0)
    return {"weight": _TableRows(ids, values)}


def _normalisation(module: nn.LayerNorm, call: _Call, slope: Tensor) -> _Parts:
    even = functional.layer_norm(call.inputs[0], module.normalized_shape, eps=module.eps)
    left = _as_steps(slope)
    return {
        "weight": Whole((left.double() * _as_steps(even)).sum(dim=1)),
        "bias": Whole(left.double().sum(dim=1)),
    }


def _recurrence(module: Recurrence, call: _Call, slope: Tensor) -> _Parts:
    by_gates, before = module.noted()
    return {"weight": _Products(by_gates, before), "bias": Whole(by_gates.double().sum(dim=1))}


def _crf(module: LinearChainCrf, call: _Call, slope: Tensor) -> _Parts:
    emissions, tags, mask = call.inputs
    samples = crf_grad_sample(module, emissions, tags, mask, slope)
    return {name: Whole(values) for name, values in samples.items()}


_KINDS: dict[type[nn.Module], Callable[[Any, _Call, Tensor], _Parts]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _normalisation,
    Recurrence: _recurrence,
    LinearChainCrf: _crf,
}


class GhostClipping(TwinSums):
    """The clipped sum of a batch from its modules' inputs and outputs; see the module."""

    def __init__(self, flat: FlatModel) -> None:
        super().__init__(flat)
        self._trained = self._trained_modules(_KINDS, "ghost")
        names = Counter(name for own in self._trained.values() for name in own.values())
        if shared := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                "examples = 'ghost' does not know parameters that several modules share, such as"
                f" {shared[0]}; use 'one-by-one'"
            )
        for module in self._trained:
            module.register_forward_hook(self._called)
        for values in self._parameters.values():
            values.requires_grad_(False)
        self._calls: dict[nn.Module, _Call] = {}

    def _called(self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> None:
        if module in self._calls:
            raise ValueError(
                f"examples = 'ghost' does not know modules that are called twice, such as a"
                f" {type(module).__name__}; use 'one-by-one'"
            )
        call = _Call([each.detach() for each in inputs])
        self._calls[module] = call
        if not output.requires_grad:  # the first of a model has nothing before it to be trained
            output.requires_grad_()

        def note(slope: Tensor) -> None:
            call.slope = slope

        output.register_hook(note)  # type: ignore[no-untyped-call]

    def _parts(self, batch: UtteranceBatch) -> _Parts:
        self._twin.train(self._flat.model.training)
        try:
            with torch.enable_grad():
                losses: Tensor = self._twin(batch)
                losses.sum().backward()  # type: ignore[no-untyped-call]
            parts: _Parts = {}
            for module, call in self._calls.items():
                parts |= self._parts_of_call(module, call, len(batch))
            return parts
        finally:
            self._calls.clear()

    def _parts_of_call(self, module: nn.Module, call: _Call, size: int) -> _Parts:
        """The gradients by the module's own parameters, under their names in the model."""
        if call.slope is None:
            return {}  # the module's output was not used
        if len(call.slope) != size or len(call.inputs[0]) != size:
            raise ValueError(
                f"a {type(module).__name__} must be given all utterances of a batch side by"
                f" side, got {len(call.inputs[0])} for {size}"
            )
        parts = _KINDS[type(module)](module, call, call.slope)
        return {known: parts[name] for name, known in self._trained[module].items()}


def _as_steps(values: Tensor) -> Tensor:
    """[B, T, n], with T = 1 where there are no steps."""
    return values[:, None] if values.dim() == 2 else values.flatten(1, -2)
