"""The contract of models of intents and slots: utterances in, a loss of each or its scores out.

The loss of an utterance is the sum of two (Dupuy et al. 2021, section 4.2): the cross entropy of
its intent, and the negative log-likelihood of its tags under a linear-chain CRF.

Guarantee (design rule 8): what is computed for an utterance depends on that utterance and on the
parameters alone.  Padding is masked wherever it could be felt, and there are no batch statistics.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.models.crf import LinearChainCrf


@dataclass(frozen=True)
class UtteranceBatch:
    """Utterances side by side; the first dimension of every tensor counts them."""

    inputs: dict[str, Tensor]  # what the model reads: its encoder and it agree on the names
    mask: Tensor  # [B, T] bool: where there is a token; there is one at the start of each row
    tags: Tensor  # [B, T] int64; 0 where there is no token
    intents: Tensor  # [B] int64

    def __len__(self) -> int:
        return len(self.mask)


@dataclass(frozen=True)
class UtteranceScores:
    """Scores of the intents and the tags of a batch."""

    intents: Tensor  # [B, I] logits
    emissions: Tensor  # [B, T, K]: of each token and tag, for the CRF


class UnderstandingModel(nn.Module, abc.ABC):
    """A network with an intent layer and a CRF over tags."""

    config: Any  # its sizes: a frozen dataclass with a `kind`, `intents` and `tags`
    crf: LinearChainCrf

    @abc.abstractmethod
    def scores(self, inputs: dict[str, Tensor], mask: Tensor) -> UtteranceScores:
        """The scores of utterances, whose labels need not be known."""

    def forward(self, batch: UtteranceBatch) -> Tensor:
        """The loss of each utterance: [B]."""
        scores = self.scores(batch.inputs, batch.mask)
        intent = functional.cross_entropy(scores.intents, batch.intents, reduction="none")
        # Called as a module, so that hooks on it (per-example gradients) see the call.
        slots: Tensor = self.crf(scores.emissions, batch.tags, batch.mask)
        return intent - slots

    @torch.no_grad()
    def decode(self, inputs: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, list[list[int]]]:
        """The likeliest intent of each utterance, and its likeliest sequence of tags.

        The intents are indices [B]; the tags are one list for each utterance, as long as it has
        tokens.
        """
        scores = self.scores(inputs, mask)
        return scores.intents.argmax(dim=1), self.crf.decode(scores.emissions, mask)
