"""What the two ways share that clip single utterances' gradients from one pass over a batch.

Both compute on a model's *twin*: the same weights, and nothing hidden.  The twin's parameters lie
on the same memory as the model's, so it sees every update at once, and nothing of it is ever saved.
It differs in the LSTMs.  The gradient of an utterance by the weights of an LSTM is a sum over its
tokens,

    dL/dW = sum_t d_t x_t',   dL/dU = sum_t d_t h_t-1',   dL/db = sum_t d_t

where d_t is the derivative by the gates before their nonlinearities; `nn.LSTM` keeps d_t to itself.
Opacus's `DPLSTM` shows it one token after the other and adds up whole matrices for each, which for
384 cells takes several times longer than one utterance at a time with `nn.LSTM`.

A pass over the twin leaves a `GradientPart` for each parameter tensor.  `TwinSums` turns these into
norms, factors and the clipped sum.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from tacit.mechanisms.clipping import check_clip_norm
from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.gradients import FlatModel

# Utterances at once: enough for matrix products to be fast, and few enough to be of about the same
# length where those of a step are put in order.
AT_ONCE = 16

# Units of 2^-52 for the rounding of the root, of the factor and of the scaled values.
_SPARE_UNITS = 8

_BLOCK = 1 << 15  # columns at once: their float64 copies stay in a cache


class GradientPart(abc.ABC):
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
class Whole(GradientPart):
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


class TwinSums(abc.ABC):
    """Clipped sums from one forward and one backward pass of the twin over a whole batch."""

    at_once = AT_ONCE

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._twin, self._parameters = _twin_of(flat.model)

    @abc.abstractmethod
    def _parts(self, batch: UtteranceBatch) -> dict[str, GradientPart]:
        """Run the twin forwards and backwards; the gradients by each parameter that was used."""

    def _squares(self, parts: Mapping[str, GradientPart]) -> Tensor:
        """|g|^2 of each utterance's whole gradient: [B], float64."""
        return torch.stack([part.squares() for part in parts.values()]).sum(dim=0)

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        """total += the sum of min(1, C / |g|) g over the batch's utterances that count."""
        parts = self._parts(batch)
        chosen, factors = _clip_factors(self._squares(parts), len(self._flat), clip_norm, counted)
        sizes, every = list(self._flat.sizes), bool(chosen.all())
        totals = dict(zip(self._flat.names, torch.split(total, sizes), strict=True))
        for name, part in parts.items():
            by_parameter = totals[name].view_as(self._parameters[name])
            (part if every else part.only(chosen)).add_(by_parameter, factors)

    def _trained_modules(
        self, known: Collection[type[nn.Module]], way: str
    ) -> dict[nn.Module, dict[str, str]]:
        """Modules with trained parameters of their own, and for each own name that in the model.

        Raises:
            ValueError: if one is of no known kind, since the way would go wrong with it.
        """
        names = {id(values): name for name, values in self._parameters.items()}
        trained = {}
        for module in self._twin.modules():
            parameters = module.named_parameters(recurse=False)
            own = {name: names[id(values)] for name, values in parameters if values.requires_grad}
            if own and type(module) not in known:
                raise ValueError(
                    f"examples = {way!r} does not know gradients of single utterances by a"
                    f" {type(module).__name__}; use 'one-by-one'"
                )
            if own:
                trained[module] = own
        return trained


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
