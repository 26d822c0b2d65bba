"""What every contestant computes, and how it is asked to: NumPy and torch are all that this needs.

The model, users and local steps of McMahan et al. 2018: 10,000 words, embedding 96, LSTM 256,
projection 96, output tied to the embedding; 1,600 targets per user in 20 local steps of 8 rows by
10 words; the update clipped to S = 15 at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, EMBEDDING, CELLS = 10_000, 96, 256
BATCH, UNROLL, STEPS = 8, 10, 20
TOKENS = BATCH * UNROLL * STEPS + 1  # the first is BOS, which is no target
RATE, CLIP_NORM = 1.0, 15.0
NOISE_MULTIPLIER = 1e-3  # costs what any other does, and leaves a model of few users in shape
DISTINCT = 500  # so many different users there are; user k has the tokens of user k % DISTINCT


def user_tokens(user: int) -> NDArray[np.uint16]:
    """BOS, which is token 0, and words by Zipf's law: about 580 different ones, frequent first."""
    random = np.random.default_rng(user % DISTINCT)
    share = np.arange(1, VOCABULARY) ** -1.1
    words = random.choice(VOCABULARY - 1, TOKENS - 1, p=share / share.sum()) + 1
    return np.concatenate([[0], words]).astype(np.uint16)


def user_rows(user: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each [160, 10]."""
    tokens = torch.from_numpy(user_tokens(user).astype(np.int64))
    return tokens[:-1].view(-1, UNROLL), tokens[1:].view(-1, UNROLL)


class WordLSTM(nn.Module):
    """The language model as one writes it with torch's own LSTM, which is its fastest on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, CELLS)
        self.projection = nn.Linear(CELLS, EMBEDDING)
        with torch.no_grad():
            self.embedding.weight.div_(self.embedding.weight.norm(dim=1, keepdim=True))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over all targets; both are [rows, time]."""
        hidden, _ = self.lstm(self.embedding(inputs.t()))
        logits = functional.linear(self.projection(hidden), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.t().flatten())


def commands() -> Iterator[list[str]]:
    """What the bench says next, in words; ends when it has gone."""
    print(json.dumps({"ready": True}), flush=True)
    while line := sys.stdin.readline():
        yield line.split()


def answer(**facts: object) -> None:
    """What the bench is told, on one line."""
    print(json.dumps(facts), flush=True)


def serve(run: Callable[[list[str]], dict[str, object]]) -> None:
    """Do what is asked until the bench has gone; `run` says how many users it has trained."""
    torch.set_num_threads(1)
    for words in commands():
        began = time.perf_counter()
        facts = run(words)
        answer(**({"seconds": time.perf_counter() - began} | facts))


def own_stdout() -> None:
    """Whatever a library prints goes to the errors, so that the answers stay readable."""
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(kept, "w")
