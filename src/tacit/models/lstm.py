"""The LSTM of McMahan et al. 2018 (section 3, "Model structure", and appendix B).

Embedding 96, one layer of 256 cells, projection of its output to 96, tied embeddings of unit norm;
with 10,000 words that is 1,346,144 parameters in eleven vectors: the embedding, four gate kernels,
four gate biases, the projection and its bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.models.recurrent import GatedLayer, RecurrentConfig, RecurrentModel


@dataclass(frozen=True)
class LSTMConfig(RecurrentConfig):
    """The paper's sizes by default."""

    kind: ClassVar[str] = "lstm"


class LSTMLayer(GatedLayer):
    """i, f, o = sigmoid(W [x, h] + b) each;  c' = f c + i tanh(W_c [x, h] + b_c);  h' = o tanh(c').

    The forget bias begins at 1, so that memory is kept until there is a reason to forget.
    """

    gates = ("input", "forget", "output", "cell")
    initial_bias: ClassVar[dict[str, float]] = {"forget": 1.0}
    state_tensors = 2

    def step(
        self, from_input: Tensor, recurrent: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        hidden, cell = state
        sums = torch.addmm(from_input, hidden, recurrent)
        sigmoids, candidate = torch.split(sums, [3 * self.cells, self.cells], dim=1)
        i, f, o = torch.sigmoid(sigmoids).chunk(3, dim=1)
        cell = torch.addcmul(f * cell, i, torch.tanh(candidate))
        return o * torch.tanh(cell), cell


class LSTM(RecurrentModel):
    """Long short-term memory."""

    layer = LSTMLayer
