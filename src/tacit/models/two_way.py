"""An LSTM layer that reads every sequence from both of its ends."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class TwoWayLstm(nn.Module):
    """[B, T, inputs] in, [B, T, 2 hidden] out; zeros where there is no token.

    The two directions are two layers, and a sequence is turned round within its own length: each
    is then a plain LSTM over padded sequences, for which ghost clipping and Opacus know what every
    single example contributed.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_start = nn.LSTM(inputs, hidden, batch_first=True)
        self.from_end = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """The first place of every row has a token, and none follows a place that has none."""
        lengths = mask.sum(dim=1, keepdim=True)
        places = torch.arange(mask.shape[1], device=mask.device)
        turned = torch.where(mask, lengths - 1 - places, places)
        onward = _run(self.from_start, values, lengths)
        backward = _turn(_run(self.from_end, _turn(values, turned), lengths), turned)
        return torch.cat([onward, backward], dim=2) * mask[..., None]


def _run(lstm: nn.Module, values: Tensor, lengths: Tensor) -> Tensor:
    if isinstance(lstm, nn.LSTM):  # packing only saves the steps over padding
        packed = pack_padded_sequence(
            values, lengths.flatten().cpu(), batch_first=True, enforce_sorted=False
        )
        padded: Tensor
        padded, _ = pad_packed_sequence(
            lstm(packed)[0], batch_first=True, total_length=values.shape[1]
        )
        return padded
    states: Tensor = lstm(values)[0]
    return states


def _turn(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))
