"""Tokens per second of each model at its paper's size, one thread, beside torch's own LSTM.

The reference has the same embedding, projection and softmax around an `nn.LSTM` of the same sizes;
the Transformer's is that of the LSTM of 14M parameters.  Batches of 8, as in McMahan et al. 2018,
with 10 steps for models of about 1M parameters and 32 for those of 14M.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.models.base import loss, parameter_count
from tacit.models.registry import NAMES, build

VOCABULARY = 10_000
BATCH = 8
SECONDS_PER_FIGURE = 1.5

# Embedding, cells, layers of the reference, and steps.
REFERENCES = {name: (96, 256, 1, 10) for name in ("lstm", "cifg", "gru")} | {
    "lstm-14m": (576, 576, 3, 32),
    "transformer-14m": (576, 576, 3, 32),
}


class Reference(nn.Module):
    """The same language model around torch's LSTM."""

    def __init__(self, embedding_size: int, cells: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, embedding_size)
        self.lstm = nn.LSTM(embedding_size, cells, layers, batch_first=True)
        self.projection = nn.Linear(cells, embedding_size)

    def forward(self, tokens: Tensor) -> tuple[Tensor, object]:
        hidden, state = self.lstm(self.embedding(tokens))
        return functional.linear(self.projection(hidden), self.embedding.weight), state


def forward(model: nn.Module, tokens: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(tokens)

    return run


def forward_and_backward(model: nn.Module, tokens: Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad()
        total, count = loss(model(tokens)[0], tokens)
        (total / count).backward()

    return run


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compared(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of ours, and the median ratio of speeds, interleaved on a busy machine."""
    ours(), theirs()
    pairs = []
    until = time.perf_counter() + 2 * SECONDS_PER_FIGURE
    while time.perf_counter() < until or len(pairs) < 3:
        pairs.append((seconds(ours), seconds(theirs)))
    ratio = statistics.median(their / our for our, their in pairs)
    return statistics.median(our for our, _ in pairs), ratio


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'model':16} {'parameters':>11} {'forward':>20} {'with backward':>20}  (x nn.LSTM)")
    for name in NAMES:
        *sizes, steps = REFERENCES[name]
        model, reference = build(name, VOCABULARY), Reference(*sizes)
        tokens = torch.randint(VOCABULARY, (BATCH, steps))
        figures = []
        for kind in (forward, forward_and_backward):
            time_taken, ratio = compared(kind(model, tokens), kind(reference, tokens))
            figures.append(f"{tokens.numel() / time_taken:8,.0f}/s x{ratio:.2f}")
        print(f"{name:16} {parameter_count(model):>11,} {figures[0]:>20} {figures[1]:>20}")


if __name__ == "__main__":
    main()
