"""The gated recurrent unit of Cho et al. 2014, in the place of the LSTM of McMahan et al. 2018.

The reset gate acts before the product, as in the paper; libraries that move it behind the product
need a second bias for the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.models.recurrent import GatedLayer, RecurrentConfig, RecurrentModel


@dataclass(frozen=True)
class GRUConfig(RecurrentConfig):
    """The sizes of the LSTM by default."""

    kind: ClassVar[str] = "gru"


class GRULayer(GatedLayer):
    """r, z = sigmoid(W [x, h] + b) each;  n = tanh(W_n [x, r h] + b_n);  h' = z h + (1 - z) n."""

    gates = ("reset", "update", "candidate")
    state_tensors = 1

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        [hidden] = state
        sizes = [2 * self.cells, self.cells]
        gates_input, candidate_input = torch.split(from_input, sizes, dim=1)
        gates_recurrent, candidate_recurrent = torch.split(recurrent, sizes, dim=1)
        gates = torch.sigmoid(torch.addmm(gates_input, hidden, gates_recurrent))
        r, z = gates.chunk(2, dim=1)
        candidate = torch.tanh(torch.addmm(candidate_input, r * hidden, candidate_recurrent))
        return (torch.lerp(candidate, hidden, z),)


class GRU(RecurrentModel):
    """Gated recurrent units."""

    layer = GRULayer
