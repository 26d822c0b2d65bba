"""Users per second of one core: the papers' LSTM, 10,000 words, 1,600 tokens, B = 8, unroll 10.

Beside our paths two bare eager loops with `torch.optim.SGD`, without clipping or summing: one with
our model, one with torch's own `nn.LSTM`, whose word vectors nobody brings back to unit norm.  All
are interleaved, because the machine may be busy; a figure is the median with the range.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.federated.cohort import CohortJob, CohortTask, sum_over
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import AutogradSGD, LocalSGD, local_sgd_for
from tacit.mechanisms.clipping import FlatClip, NoClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler
from tacit.models.base import loss, to_vector
from tacit.models.registry import build
from tacit.privacy.randomness import RunKey

VOCABULARY, TOKENS, BATCH, UNROLL, RATE = 10_000, 1600, 8, 10, 6.0
USERS = 2  # in one measurement


class Synthetic:
    """Users with words as frequent as in text."""

    def __len__(self) -> int:
        return 100

    def tokens(self, index: int) -> np.ndarray:
        random = np.random.default_rng(index)
        ranks = np.minimum(random.zipf(1.2, TOKENS), VOCABULARY - 3)
        return np.concatenate([[0], ranks[1:] + 2]).astype(np.uint16)

    def key(self, index: int) -> str:
        return f"{index:032x}"


class Reference(nn.Module):
    """The same language model around torch's LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 96)
        self.lstm = nn.LSTM(96, 256, batch_first=True)
        self.projection = nn.Linear(256, 96)

    def forward(self, tokens: Tensor) -> tuple[Tensor, object]:
        hidden, state = self.lstm(self.embedding(tokens))
        return functional.linear(self.projection(hidden), self.embedding.weight), state


def eager(model: nn.Module, users: Synthetic) -> Callable[[], object]:
    """What one writes down first: an optimizer, `backward`, and a difference of state dicts."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    normalise = getattr(model, "normalise_", lambda: None)

    def run() -> None:
        for user in range(USERS):
            model.load_state_dict(start)
            tokens = torch.from_numpy(users.tokens(user).astype(np.int64))
            inputs, targets = tokens[:-1], tokens[1:]
            for first in range(0, len(inputs), BATCH * UNROLL):
                x = inputs[first : first + BATCH * UNROLL]
                y = targets[first : first + BATCH * UNROLL]
                whole = len(x) // UNROLL * UNROLL  # the last row is short by one token
                optimizer.zero_grad()
                logits, _ = model(x[:whole].view(-1, UNROLL))
                total, count = loss(logits, y[:whole].view(-1, UNROLL))
                (total / count).backward()
                optimizer.step()
                normalise()
            {name: value - start[name] for name, value in model.state_dict().items()}

    return run


def ours(
    sgd: LocalSGD, update: FedAvg | FedSGD, clip: bool, job: CohortJob
) -> Callable[[], object]:
    plan = RoundPlan(
        population=100,
        sampler=PoissonSampler(0.5),
        clipper=FlatClip(15.0) if clip else NoClip(),
        estimator=FixedDenominator(100.0),
        noise=IndependentNoise(1.0) if clip else None,
    )
    job = CohortJob(job.weights, plan.initial_clip_state(), job.key, job.branch, job.round)
    task = CohortTask(plan, update, 0, Synthetic())
    return lambda: sum_over(task, job, range(USERS), sgd)


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build("lstm", VOCABULARY)
    job = CohortJob(to_vector(model), None, RunKey.from_seed(0), "main", 0)  # type: ignore[arg-type]
    fedavg = FedAvg(learning_rate=RATE, batch_size=BATCH, unroll=UNROLL)
    greedy = FedAvg(learning_rate=RATE, batch_size=BATCH, unroll=UNROLL, clip_each_step=True)
    fedsgd = FedSGD(learning_rate=RATE, unroll=UNROLL)
    general, chosen = AutogradSGD(model), local_sgd_for(model)
    best = type(chosen).__name__
    runs = {
        "eager loop": eager(build("lstm", VOCABULARY), Synthetic()),
        "eager loop, nn.LSTM": eager(Reference(), Synthetic()),
        "AutogradSGD, FedAvg": ours(general, fedavg, False, job),
        "AutogradSGD, DP-FedAvg": ours(general, fedavg, True, job),
        "AutogradSGD, DP-FedSGD": ours(general, fedsgd, True, job),
        f"{best}, FedAvg": ours(chosen, fedavg, False, job),
        f"{best}, DP-FedAvg": ours(chosen, fedavg, True, job),
        f"{best}, DP-FedAvg greedy": ours(chosen, greedy, True, job),
        f"{best}, DP-FedSGD": ours(chosen, fedsgd, True, job),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if repetition:  # the first one warms up
                rates[name].append(USERS / (time.perf_counter() - began))
    base = rates["eager loop"]
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(
            f"{name:32} {statistics.median(found):6.2f} users/s"
            f"  ({min(found):.2f} to {max(found):.2f})  x{ratio:.2f}"
        )


if __name__ == "__main__":
    main()
