"""Modules as users might bring them, good and bad, for `package.module:factory`."""

from __future__ import annotations

import torch
from torch import nn


class Bigram(nn.Module):
    """The least there can be: a table of logits, returned by themselves."""

    def __init__(self, vocab_size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Parameter(scale * torch.randn(vocab_size, vocab_size))

    def forward(self, tokens):
        return self.table[tokens]


class Counter(nn.Module):
    """With state, context and a restriction: counts what it saw, and scores by the counts."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(vocab_size))
        self.same = self.weight  # one parameter by two names
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens, state=None, context=None):
        counts = nn.functional.one_hot(tokens, len(self.weight)).float().cumsum(dim=1)
        if state is not None:
            counts = counts + state[0].unsqueeze(1)
        shift = 0.0 if context is None else context.sum(dim=1)[:, None, None]
        return counts * self.weight + shift, (counts[:, -1],)

    def normalise_(self):
        with torch.no_grad():
            self.weight.clamp_(0, 1)


class LooksAhead(Bigram):
    def forward(self, tokens):
        return self.table[tokens].cumsum(dim=1).flip(1).cumsum(dim=1)


class MixesRows(Bigram):
    def forward(self, tokens):
        return self.table[tokens] * tokens.shape[0]


class BatchNormalised(Bigram):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.norm = nn.BatchNorm1d(vocab_size)


class ForgetsItsState(Bigram):
    def forward(self, tokens, state=None):
        logits = self.table[tokens].cumsum(dim=1)
        return logits, (logits[:, -1],)


class StateWithoutBatch(Bigram):
    def forward(self, tokens, state=None):
        return self.table[tokens], (torch.zeros(1),)


class WrongShape(Bigram):
    def forward(self, tokens):
        return self.table[tokens][:, -1]


class NotANumber(Bigram):
    def forward(self, tokens):
        return self.table[tokens] * float("nan")


class Raises(Bigram):
    def forward(self, tokens):
        raise RuntimeError("out of order")


class Untrainable(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, tokens):
        return torch.zeros(*tokens.shape, self.vocab_size)


def not_a_module(vocab_size):
    return "a string"


def without_vocabulary(size):
    return Bigram(size)


NOT_CALLABLE = 3
