"""Clipped sums of gradients from one forward and one backward pass: "ghost clipping".

Every module with parameters of its own leaves its inputs and the derivative of the loss by its
output.  From these two follow the norms of all utterances' gradients, and then their clipped sum,
without any gradient ever being written out.  `backward` does not compute parameters' gradients at
all, so a step costs little more than one of plain SGD.

The pass runs on a model's *twin*: the same weights, and nothing hidden.  The twin's parameters lie
on the same memory as the model's, so it sees every update at once, and nothing of it is ever saved.
It differs in the LSTMs.  The gradient of an utterance by the weights of an LSTM is a sum over its
tokens,

    dL/dW = sum_t d_t x_t',   dL/dU = sum_t d_t h_t-1',   dL/db = sum_t d_t

where d_t is the derivative by the gates before their nonlinearities; `nn.LSTM` keeps d_t to itself,
and `Recurrence` shows it.

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

import abc
import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.mechanisms.clipping import check_clip_norm
from tacit.models.understanding import LinearChainCrf, UtteranceBatch, crf_grad_sample
from tacit.tasks.nlu.gradients import FlatModel

# Utterances at once: enough for matrix products to be fast, and few enough to be of about the same
# length where those of a step are put in order.
AT_ONCE = 16

_UNIT = 2.0**-52

# Units for the rounding of the root, of the factor and of the scaled values.
_SPARE_UNITS = 8

_BLOCK = 1 << 15  # columns at once: their float64 copies stay in a cache

# Values of a weight matrix up to which the gradients by it are written out for their norms.
_SMALL = 1 << 12


class _GradientPart(abc.ABC):
    """The gradients of B utterances by one parameter tensor, in whatever form is cheapest."""

    @abc.abstractmethod
    def squares(self) -> Tensor:
        """|G_b|^2: [B], float64; not finite if anything in G_b is not."""

    @abc.abstractmethod
    def add_(self, total: Tensor, factors: Tensor) -> None:
        """total += sum_b factors_b G_b, of the parameter's shape and in float64."""

    @abc.abstractmethod
    def only(self, chosen: Tensor) -> Self:
        """The part of the utterances that a mask [B] chooses."""


@dataclass(frozen=True)
class Whole(_GradientPart):
    """Gradients that are written out: [B, ...]."""

    values: Tensor

    def squares(self) -> Tensor:
        return self.values.flatten(1).double().square().sum(dim=1)

    def add_(self, total: Tensor, factors: Tensor) -> None:
        pieces = torch.split(total.view(-1), _BLOCK)
        for piece, block in zip(pieces, self.blocks(), strict=True):
            piece.addmv_(block.double().t(), factors)

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.values[chosen])

    def blocks(self) -> Sequence[Tensor]:
        """The values as [B, columns], some columns at a time."""
        return torch.split(self.values.flatten(1), _BLOCK, dim=1)


@dataclass(frozen=True)
class _Products(_GradientPart):
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
class _TableRows(_GradientPart):
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


class Recurrence(nn.Module):
    """What an LSTM does with W x_t + b, [B, T, 4 hidden]: its states [B, T, hidden]."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._noted: tuple[Tensor, Tensor] | None = None

    def forward(self, entering: Tensor) -> Tensor:
        hidden = self.weight.shape[1]
        state = memory = entering.new_zeros(len(entering), hidden)
        weight, states = self.weight.t(), []
        for now in (entering + self.bias).unbind(dim=1):
            gates = torch.addmm(now, state, weight)
            opened = torch.sigmoid(gates)
            keep, out = opened[:, hidden : 2 * hidden], opened[:, 3 * hidden :]
            new = torch.tanh(gates[:, 2 * hidden : 3 * hidden])
            memory = torch.addcmul(keep * memory, opened[:, :hidden], new)
            state = out * torch.tanh(memory)
            states.append(state)
        if entering.requires_grad:
            before = torch.stack([torch.zeros_like(state), *states[:-1]], dim=1).detach()
            entering.register_hook(  # type: ignore[no-untyped-call]
                lambda slopes: self._note(slopes, before)
            )
        return torch.stack(states, dim=1)

    def noted(self) -> tuple[Tensor, Tensor]:
        """d_t and h_t-1 of all tokens in the last backward pass; they can be taken once."""
        assert self._noted is not None, "there was no backward pass"
        noted, self._noted = self._noted, None
        return noted

    def _note(self, slopes: Tensor, before: Tensor) -> None:
        self._noted = slopes, before


class _TwinLstm(nn.Module):
    """An `nn.LSTM` of one layer and direction, its parameters shared out among two modules."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        usual = lstm.num_layers == 1 and lstm.bias and lstm.batch_first
        if not usual or lstm.bidirectional or lstm.proj_size:
            raise ValueError(
                "an LSTM must have one layer, one direction, a bias, no projection and batch_first"
                f" for gradients of single utterances, got {lstm}"
            )
        self.enter = nn.Linear(lstm.input_size, 4 * lstm.hidden_size, device="meta")
        self.enter.weight = lstm.get_parameter("weight_ih_l0")
        self.enter.bias = lstm.get_parameter("bias_ih_l0")
        self.recur = Recurrence(
            lstm.get_parameter("weight_hh_l0"), lstm.get_parameter("bias_hh_l0")
        )

    def forward(self, values: Tensor) -> tuple[Tensor, None]:
        return self.recur(self.enter(values)), None


def _twin_of(model: nn.Module) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A model's twin, and the twin's parameters by their names in the model.

    The twin has the model's dropout, and a graph of its own.
    """
    own = {
        id(values): nn.Parameter(values.data, requires_grad=values.requires_grad)
        for values in model.parameters()
    }
    parameters = {name: own[id(values)] for name, values in model.named_parameters()}
    twin = copy.deepcopy(model, dict(own))  # which takes these for copies of the parameters
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LSTM):
                setattr(parent, name, _TwinLstm(child))
    return twin, parameters


@dataclass
class _Call:
    """One call of a module; `slope` is the derivative of the loss by its output."""

    inputs: Sequence[Tensor]
    slope: Tensor | None = None


_Parts = dict[str, _GradientPart]  # by the names of the module's own parameters


def _linear(module: nn.Linear, call: _Call, slope: Tensor) -> _Parts:
    left, right = _as_steps(slope), _as_steps(call.inputs[0])
    return {"weight": _Products(left, right), "bias": Whole(left.double().sum(dim=1))}


def _convolution(module: nn.Conv1d, call: _Call, slope: Tensor) -> _Parts:
    plain = (module.stride, module.dilation, module.groups) == ((1,), (1,), 1)
    if not plain or isinstance(module.padding, str):
        raise ValueError(
            f"ghost clipping does not know a convolution with strides, gaps or groups, got {module}"
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


class GhostClipping:
    """Clipped sums from one forward and one backward pass over a whole batch; see the module.

    `at_once` is the number of utterances that every batch should have.
    """

    way = "ghost clipping"  # what errors call it

    def __init__(self, flat: FlatModel, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self._flat = flat
        self._twin, self._parameters = _twin_of(flat.model)
        self._calls: dict[nn.Module, _Call] = {}
        self._trained: dict[nn.Module, dict[str, str]] = {}
        self._watch_twin()

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        """total += the sum of min(1, C / |g|) g over the batch's utterances, in float64.

        `counted` [B] says which of them are in the sum; the others only fill up the batch.
        """
        parts = self._parts(batch)
        squares = torch.stack([part.squares() for part in parts.values()]).sum(dim=0)
        chosen, factors = _clip_factors(squares, len(self._flat), clip_norm, counted)
        sizes, every = list(self._flat.sizes), bool(chosen.all())
        totals = dict(zip(self._flat.names, torch.split(total, sizes), strict=True))
        for name, part in parts.items():
            by_parameter = totals[name].view_as(self._parameters[name])
            (part if every else part.only(chosen)).add_(by_parameter, factors)

    def _watch_twin(self) -> None:
        """Let every trained module of the twin note its calls; refuse what that is not enough for.

        Raises:
            ValueError: for a kind of module that is not known, or parameters that are shared.
        """
        self._trained = self._trained_modules(_KINDS)
        names = Counter(name for own in self._trained.values() for name in own.values())
        if shared := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"{self.way} does not know parameters that several modules share, such as"
                f" {shared[0]}"
            )
        for module in self._trained:
            module.register_forward_hook(self._note_call)
        for values in self._parameters.values():
            values.requires_grad_(False)

    def _trained_modules(
        self, known: Collection[type[nn.Module]]
    ) -> dict[nn.Module, dict[str, str]]:
        """Modules with trained parameters of their own, and for each own name that in the model."""
        names = {id(values): name for name, values in self._parameters.items()}
        trained = {}
        for module in self._twin.modules():
            parameters = module.named_parameters(recurse=False)
            own = {name: names[id(values)] for name, values in parameters if values.requires_grad}
            if own and type(module) not in known:
                raise ValueError(
                    f"{self.way} does not know gradients of single utterances by a"
                    f" {type(module).__name__}"
                )
            if own:
                trained[module] = own
        return trained

    def _note_call(self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> None:
        if module in self._calls:
            raise ValueError(
                f"{self.way} does not know modules that are called twice, such as a"
                f" {type(module).__name__}"
            )
        call = _Call([each.detach() for each in inputs])
        self._calls[module] = call
        if not output.requires_grad:  # the first of a model has nothing before it to be trained
            output.requires_grad_()

        def note(slope: Tensor) -> None:
            call.slope = slope

        output.register_hook(note)  # type: ignore[no-untyped-call]

    def _parts(self, batch: UtteranceBatch) -> Mapping[str, _GradientPart]:
        """Run the twin forwards and backwards; the gradients by each parameter that was used."""
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


def _clip_factors(
    squares: Tensor, size: int, clip_norm: float, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which gradients count and are finite, [B], and for these min(1, C / |g|), by their squares.

    Guarantee: the exact norm of a scaled gradient is at most C.  A sum of n squares in float64 is
    right to n 2^-52 of itself, and the norm is raised by that before it is compared.
    """
    check_clip_norm("clip_norm", clip_norm)
    chosen = torch.isfinite(squares)
    if counted is not None:
        chosen &= counted
    norms = squares[chosen].sqrt() * (1 + (size + _SPARE_UNITS) * 2.0**-52)
    return chosen, torch.where(norms > clip_norm, clip_norm / norms, 1.0)
