"""BERT with an intent layer and a CRF over tags (Dupuy et al. 2021, section 4.2).

    h_p = BERT's state of piece p, of [CLS] w_1 ... w_T [SEP] cut into pieces
    intent logits = W_i h_[CLS] + b_i,   emissions_t = W_e h_(first piece of w_t) + b_e

as Devlin et al. 2019 classify texts (section 4.1) and tag words (section 5.3).  All layers are of
kinds that Opacus knows (linear, normalisation, embedding), except for the CRF.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from transformers import BertModel

from tacit.models import initial
from tacit.models.base import check_size
from tacit.models.bert import BertSizes, states
from tacit.models.crf import LinearChainCrf
from tacit.models.understanding import UnderstandingModel, UtteranceScores


@dataclass(frozen=True)
class BertTaggerConfig(BertSizes):
    """BERT's sizes, and how many intents and tags there are."""

    intents: int = field(kw_only=True)
    tags: int = field(kw_only=True)

    kind: ClassVar[str] = "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("intents", "tags"):
            check_size(name, getattr(self, name))


class BertTagger(UnderstandingModel):
    """Reads "pieces" and "piece_mask" [B, P], and "first" [B, T]: where each token begins.

    Every draw of dropout is torch's.
    """

    def __init__(self, config: BertTaggerConfig, seed: int | Generator = 0) -> None:
        super().__init__()
        self.config = config
        draws = initial.seeded(seed)
        with torch.random.fork_rng(devices=[]):  # HuggingFace draws from torch's own generator
            # On the CPU, whatever the default device: a number has no value on "meta".
            torch.manual_seed(int(torch.randint(2**62, (), generator=draws, device="cpu")))
            self.bert = BertModel(  # type: ignore[no-untyped-call]
                config.hugging_face(), add_pooling_layer=False
            )
            self.dropout = nn.Dropout(config.dropout)
            self.intent = nn.Linear(config.width, config.intents)
            self.emission = nn.Linear(config.width, config.tags)
            for layer in (self.intent, self.emission):
                nn.init.normal_(layer.weight, std=self.bert.config.initializer_range)
                nn.init.zeros_(layer.bias)
        # Constants that `states` gives for each example; they are in no file, and would be left
        # without values in a model that is made on "meta" and filled from one.
        del self.bert.embeddings.position_ids, self.bert.embeddings.token_type_ids
        self.crf = LinearChainCrf(config.tags)

    def scores(self, inputs: dict[str, Tensor], mask: Tensor) -> UtteranceScores:
        found = self.dropout(states(self.bert, inputs["pieces"], inputs["piece_mask"]))
        # Where there is no token, `first` is 0; what that emits is masked in the CRF.
        first = inputs["first"].unsqueeze(2).expand(-1, -1, self.config.width)
        return UtteranceScores(self.intent(found[:, 0]), self.emission(found.gather(1, first)))
