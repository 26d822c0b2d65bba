"""Models small enough to count by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.models.base import LanguageModel, ModelConfig, State
from tacit.models.registry import build

SIZES = {
    "lstm": {"embedding_size": 4, "cells": 5},
    "cifg": {"embedding_size": 4, "cells": 5},
    "gru": {"embedding_size": 4, "cells": 5, "layers": 2},
    "transformer-14m": {"embedding_size": 4, "heads": 2, "feed_forward": 8, "layers": 2},
}


def tiny(kind: str, vocab_size: int = 7, seed: int = 0) -> LanguageModel:
    """A real model with a handful of weights, made large enough to have opinions.

    In double precision, so that what differs is the method and not the rounding.
    """
    model = build(kind, vocab_size, seed=seed, **SIZES[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.double()


@dataclass(frozen=True)
class TableConfig(ModelConfig):
    kind: ClassVar[str] = "table"


class Table(LanguageModel):
    """The next token depends on the last one only, by a table of logits.

    With `carry`, it takes a text in pieces; the state counts tokens, so that tests can see it.
    """

    def __init__(self, logits: Tensor, *, carry: bool = True) -> None:
        super().__init__(TableConfig(logits.shape[1]))
        self.logits = nn.Parameter(logits.to(torch.float32))
        self.carry = carry
        self.calls: list[tuple[int, int]] = []

    @property
    def carries_state(self) -> bool:
        return self.carry

    def forward(
        self, tokens: Tensor, state: State = None, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.calls.append(tuple(tokens.shape))
        assert self.carry or state is None
        before = torch.zeros(len(tokens)) if state is None else state[0]
        after = (before + tokens.shape[1],) if self.carry else None
        return self.logits[tokens], after


def evaluate_words(model, tokenizer, texts) -> Metrics:
    """Figures of whole texts, their words counted."""
    split = [tokenizer.word_ids(text) for text in texts]
    return evaluate(
        model,
        [ids for ids, _ in split],
        bos=tokenizer.bos,
        unk=tokenizer.unk,
        owners=[owners for _, owners in split],
    )
