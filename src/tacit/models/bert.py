"""BERT as it is used here (Devlin et al. 2019): its sizes, and its states for pieces of text.

The network itself is HuggingFace's.  Nothing is ever fetched: a model is made from sizes, and
weights come from a local folder (`tacit.models.bert_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from tacit.models.base import check_size


@dataclass(frozen=True)
class BertSizes:
    """The defaults are those of Dupuy et al. 2021, section 4.2, and of TinyBERT of four layers."""

    pieces: int
    width: int = 312
    layers: int = 4
    heads: int = 12
    intermediate: int = 1200
    positions: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_size("pieces", self.pieces)
        for name in ("width", "intermediate", "positions"):
            check_size(name, getattr(self, name), at_most=100_000)
        for name in ("layers", "heads"):
            check_size(name, getattr(self, name), at_most=1000)
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}, got {self.width}")
        share = self.dropout
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 <= share < 1):
            raise ValueError(f"dropout must be at least 0 and below 1, got {share!r}")

    def hugging_face(self) -> BertConfig:
        """The same sizes in HuggingFace's names."""
        return BertConfig(  # type: ignore[call-arg]
            vocab_size=self.pieces,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.intermediate,
            max_position_embeddings=self.positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            attn_implementation="sdpa",  # the one that takes a mask of booleans
        )


def states(bert: BertModel, pieces: Tensor, mask: Tensor) -> Tensor:
    """The last layer's state of each piece: [B, P, width]; it means nothing where `mask` is False.

    Positions and types are given for every example, though they are the same for all: left to the
    network they are looked up once for the batch, and gradients of each example would be wrong.
    """
    batch, length = pieces.shape
    limit = bert.config.max_position_embeddings
    if length > limit:
        raise ValueError(f"the model has places for {limit} pieces, got {length}")
    places = torch.arange(length, device=pieces.device).expand(batch, length)
    # With four dimensions the mask is used as it is, and nothing looks at its values.
    found: Tensor = bert(
        input_ids=pieces,
        attention_mask=mask[:, None, None, :],
        position_ids=places,
        token_type_ids=torch.zeros_like(pieces),
    ).last_hidden_state
    return found
