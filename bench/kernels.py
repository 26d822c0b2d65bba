"""Users per second of one core: eager autograd, both hand-written forms, and products alone.

The LSTM, users and local steps of McMahan et al. 2018: 10,000 words, embedding 96, 256 cells, 1,600
tokens in batches of 8 rows of 10, so 20 local steps.  "products" are the matrix products of the
same shapes as torch does them and nothing else, which is what the rest can be measured by.  All
are interleaved, so that a busy machine slows each alike.  The first argument is the number of
repetitions, the second the model.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.kernels import handwritten as kernel
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.local_sgd import LocalSGD
from tacit.kernels.rows import TokenRows
from tacit.models.base import from_vector_, loss, to_vector
from tacit.models.registry import build

VOCABULARY, EMBEDDING, CELLS = 10_000, 96, 256
BATCH, UNROLL, STEPS = 8, 10, 20
RATE = 0.5
GATES = {"lstm": 4, "cifg": 3, "gru": 3}


def batches() -> list[TokenRows]:
    generator = torch.Generator().manual_seed(0)
    everything = torch.ones(BATCH, UNROLL, dtype=torch.bool)
    made = []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, UNROLL + 1), generator=generator)
        made.append(TokenRows(tokens[:, :-1], tokens[:, 1:], everything))
    return made


def eager(kind: str, start: NDArray[np.float32], users: list[TokenRows]) -> Callable[[], object]:
    """What one writes first: a loop with an optimizer."""
    model = build(kind, VOCABULARY)

    def run() -> None:
        from_vector_(model, start)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for batch in users:
            optimizer.zero_grad()
            total, count = loss(model(batch.inputs)[0], batch.targets, batch.mask)
            (total / count).backward()
            optimizer.step()
            model.normalise_()
        to_vector(model)

    return run


def local(
    sgd: LocalSGD, start: NDArray[np.float32], users: list[TokenRows]
) -> Callable[[], object]:
    def run() -> None:
        sgd.load(start)
        for batch in users:
            sgd.step(batch, RATE)
        sgd.weights()

    return run


def products(kind: str) -> tuple[Callable[[], object], float]:
    """The products of a user, and how many operations they are."""
    V, E, C, B, N, G = VOCABULARY, EMBEDDING, CELLS, BATCH, BATCH * UNROLL, GATES[kind] * CELLS
    words, logits, outputs = torch.randn(V, E), torch.randn(V, N), torch.randn(N, E)
    gates, entering, kernels = torch.randn(N, G), torch.randn(N, E + C), torch.randn(G, E + C)
    hidden, projection = torch.randn(N, C), torch.randn(E, C)
    small = 1e-9  # so that adding the same again and again stays in range
    pairs = [  # result, left, right, how often in a step; a result of weights is added to
        (logits, words, outputs.t(), 1),
        (outputs.clone(), logits.t(), words, 1),
        (words, logits, outputs, 1),
        (gates.clone(), entering[:, :E], kernels[:, :E].t(), 1),
        (gates[:B].clone(), hidden[:B], kernels[:, E:].t(), UNROLL - 1),
        (hidden[:B].clone(), gates[:B], kernels[:, E:], UNROLL - 1),
        (outputs.clone(), gates, kernels[:, :E], 1),
        (kernels, gates.t(), entering, 1),
        (outputs.clone(), hidden, projection.t(), 1),
        (hidden.clone(), outputs, projection, 1),
        (projection, outputs.t(), hidden, 1),
    ]
    weights = [words, kernels, projection]

    def run() -> None:
        for _ in range(STEPS):
            for result, left, right, often in pairs:
                for _ in range(often):
                    if any(result is weight for weight in weights):
                        result.addmm_(left, right, alpha=small)
                    else:
                        torch.mm(left, right, out=result)

    each = [2 * left.numel() * right.shape[1] * often for _, left, right, often in pairs]
    return run, float(STEPS * sum(each))


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    kind = sys.argv[2] if len(sys.argv) > 2 else "lstm"
    torch.set_num_threads(1)
    model = build(kind, VOCABULARY)
    start, users = to_vector(model), batches()
    alone, operations = products(kind)
    actions = {
        "eager autograd": eager(kind, start, users),
        "torch operations": local(HandwrittenSGD(model, "torch"), start, users),
    }
    if kernel.built_kernel() is not None:
        actions["c++ kernel"] = local(HandwrittenSGD(model, "c++"), start, users)
    actions["products"] = alone
    times: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats + 1):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            if repeat:  # the first is for the caches
                times[name].append(time.perf_counter() - began)
    print(
        f"{kind}, {operations / 1e9:.1f} GFLOP per user, chosen here: {HandwrittenSGD(model).name}"
    )
    print(f"{'':18} {'users/s':>8} {'quartiles':>14} {'x eager':>8} {'of products':>12}")
    for name, taken in times.items():
        low, middle, high = (1 / t for t in reversed(statistics.quantiles(taken, n=4)))
        pairs = zip(times["eager autograd"], times["products"], taken, strict=True)
        ratios = [(first / mine, floor / mine) for first, floor, mine in pairs]
        gain, share = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"{name:18} {middle:8.2f} {low:7.2f}-{high:5.2f} {gain:8.2f} {share:11.0%}")


if __name__ == "__main__":
    main()
