"""The LSTM with coupled input and forget gate, as in Thakkar et al. 2020 (section 3).

It remembers as much as it forgets (Greff et al. 2017, "CIFG"), so there is no input gate.  The
paper gives the total, 1.3M, and refers to Hard et al. 2018 for the architecture.  Here the widths
are those of McMahan et al., which with 10,000 words make 1,255,776 parameters in nine vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.models.recurrent import GatedLayer, RecurrentConfig, RecurrentModel


@dataclass(frozen=True)
class CIFGConfig(RecurrentConfig):
    """The paper's size by default."""

    kind: ClassVar[str] = "cifg"


class CIFGLayer(GatedLayer):
    """f, o = sigmoid(W [x, h] + b) each;  c' = f c + (1 - f) tanh(W_c [x, h] + b_c);

    h' = o tanh(c').
    """

    gates = ("forget", "output", "cell")
    initial_bias: ClassVar[dict[str, float]] = {"forget": 1.0}
    state_tensors = 2

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        hidden, cell = state
        sums = torch.addmm(from_input, hidden, recurrent)
        sigmoids, candidate = torch.split(sums, [2 * self.cells, self.cells], dim=1)
        f, o = torch.sigmoid(sigmoids).chunk(2, dim=1)
        cell = torch.lerp(torch.tanh(candidate), cell, f)
        return o * torch.tanh(cell), cell


class CIFG(RecurrentModel):
    """Long short-term memory with coupled gates."""

    layer = CIFGLayer
