"""A model's twin for gradients of single utterances: the same weights, and nothing hidden.

The twin's parameters lie on the same memory as the model's, so it sees every update at once, and
nothing of it is ever saved.  It differs in the LSTMs.  The gradient of an utterance by the weights
of an LSTM is a sum over its tokens,

    dL/dW = sum_t d_t x_t',   dL/dU = sum_t d_t h_t-1',   dL/db = sum_t d_t

where d_t is the derivative by the gates before their nonlinearities; `nn.LSTM` keeps d_t to itself.
Opacus's `DPLSTM` shows it one token after the other and adds up whole matrices for each, which for
384 cells takes several times longer than one utterance at a time with `nn.LSTM`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
        found = torch.stack(states, dim=1)
        if entering.requires_grad:
            before = torch.stack([torch.zeros_like(state), *states[:-1]], dim=1).detach()
            entering.register_hook(  # type: ignore[no-untyped-call]
                lambda slopes: self._note(slopes, before)
            )
        return found

    def noted(self) -> tuple[Tensor, Tensor]:
        """d_t and h_t-1 of all tokens, as the last backward pass had them; to be asked once."""
        assert self._noted is not None, "there was no backward pass"
        noted, self._noted = self._noted, None
        return noted

    def _note(self, slopes: Tensor, before: Tensor) -> None:
        self._noted = slopes, before


class TwinLstm(nn.Module):
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


@dataclass(frozen=True)
class Twin:
    """The module, and its parameters by the names that they have in the model."""

    module: nn.Module
    parameters: dict[str, nn.Parameter]

    def trained(
        self, known: Collection[type[nn.Module]], way: str
    ) -> dict[nn.Module, dict[str, str]]:
        """Modules with trained parameters of their own, and for each own name that in the model.

        `ValueError` if one is of no known kind, since the way would go wrong with it.
        """
        names = {id(values): name for name, values in self.parameters.items()}
        found = {}
        for module in self.module.modules():
            own = module.named_parameters(recurse=False)
            mine = {name: names[id(values)] for name, values in own if values.requires_grad}
            if mine and type(module) not in known:
                raise ValueError(
                    f"examples = {way!r} does not know gradients of single utterances by a"
                    f" {type(module).__name__}; use 'one-by-one'"
                )
            if mine:
                found[module] = mine
        return found


def twin_of(model: nn.Module) -> Twin:
    """A twin with the dropout of the model and a graph of its own."""
    own = {
        id(values): nn.Parameter(values.data, requires_grad=values.requires_grad)
        for values in model.parameters()
    }
    parameters = {name: own[id(values)] for name, values in model.named_parameters()}
    module = copy.deepcopy(model, dict(own))  # which takes these for copies of the parameters
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LSTM):
                setattr(parent, name, TwinLstm(child))
    return Twin(module, parameters)
