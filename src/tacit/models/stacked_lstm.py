"""The 3-layer LSTM of 14M parameters of Bagdasaryan et al. 2022 (section 5).

The paper gives the number of layers, the total and the vocabulary (10,000), and no widths.  An
embedding and layers of 576 make 14,061,888 parameters.  Nothing there restricts the norms of the
embeddings, and its remapping of them to a new tokenizer would not keep norms of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.models.lstm import LSTM
from tacit.models.recurrent import RecurrentConfig


@dataclass(frozen=True)
class StackedLSTMConfig(RecurrentConfig):
    """14M parameters at 10,000 tokens by default."""

    embedding_size: int = 576
    cells: int = 576
    layers: int = 3
    unit_norm: bool = False
    kind: ClassVar[str] = "lstm-14m"


class StackedLSTM(LSTM):
    """LSTM layers, each reading the hidden vectors of the one below."""

    config: StackedLSTMConfig
