"""THE loop over steps, the same in every worker (Dupuy et al. 2021, Algorithm 1 and around it).

A step: draw; let each worker make its share; add noise that follows from all of the shares; sum
them; turn the sum into a gradient; let the optimizer take its step.  All workers hold the same
weights at any time, since all of them do the same with the same sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.engines.ranks import Ranks
from tacit.mechanisms.method import Method, Work
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.public.pretrain import own_randomness
from tacit.tasks.nlu.experiment import Training
from tacit.tasks.nlu.gradients import UtteranceGradients
from tacit.tasks.task import Advance


@dataclass(frozen=True)
class AttemptStreams:
    """The random streams of an attempt at an epoch.

    A stream follows from the run's key, its branch, the attempt, the step, the purpose and an
    index.  Noise does not come from these, but from a `_NoiseChain`.
    """

    key: RunKey
    branch: str
    attempt: int

    def __call__(self, purpose: str, round: int, index: int = 0) -> Stream:
        return self.key.stream(
            branch=self.branch, round=round, attempt=self.attempt, purpose=purpose, index=index
        )


@dataclass(frozen=True)
class _NoiseChain:
    """The proof of an epoch so far, from which the noise of its latest step is drawn.

    The first link is an HMAC of the plan, the attempt, and the weights at the epoch's beginning.
    Each further one is an HMAC of the link before it, the step's number, and a digest of every
    worker's share before any noise.  All later weights follow from what is in the chain, so they
    need not be read again.

    Guarantee: all shares of a step determine their sum, so two steps that add the same noise have
    the same plan, the same beginning, the same sums in all steps before, and the same sum now: they
    are one release.  Any other sum has independent noise, on whatever machine, with whatever
    instruction set, and after whatever was done to the run's files (`RunKey.hiding_stream`).
    """

    key: RunKey
    proof: bytes

    @classmethod
    def begin(cls, key: RunKey, plan: str, attempt: int, weights: NDArray[Any]) -> Self:
        """The first link, at the beginning of an epoch.

        `plan` names all that decides about the epoch's steps.
        """
        read = key.digest(weights.data)
        return cls(key, key.hmac(b"nlu epoch", plan.encode(), b"%d" % attempt, read))

    def then(self, step: int, shares: Sequence[bytes]) -> Self:
        """The link of one more step; `shares` are the digests of all workers' shares."""
        link = self.key.hmac(b"nlu step", self.proof, b"%d" % step, *shares)
        return type(self)(self.key, link)

    def noise(self, worker: int) -> Stream:
        """The stream from which a worker draws its part of the latest step's noise."""
        return self.key.hiding_stream(self.proof, "noise", worker)


class Stepper:
    """One worker's part of a training: its weights, its optimizer, and the loop over steps.

    After every step all workers hold the same weights.  `go_back` undoes the last `run`, for an
    epoch whose outcome is not what is on record.
    """

    def __init__(
        self,
        method: Method,
        gradients: UtteranceGradients,
        training: Training,
        total_steps: int,
        state: dict[str, NDArray[Any]],
    ) -> None:
        """`state` is what `state()` gave at the last checkpoint; empty at the beginning."""
        self.method = method
        self.gradients = gradients
        self._training = training
        self._total = total_steps
        self._optimizer = _optimizer(training, gradients.flat.weights)
        self._start = gradients.flat.weights.detach().clone(), _copied(state)
        self._set_state(state)
        self.is_between_epochs = True

    @property
    def plan(self) -> str:
        """All public numbers that decide about the steps."""
        return f"{self.method!r} {self._training.model_dump_json()} {self._total}"

    def run(
        self, steps: range, streams: AttemptStreams, ranks: Ranks, tell: Advance | None
    ) -> bytes:
        """Go through the steps of an epoch.

        Args:
            steps: their numbers, counted from the beginning of the training.
            streams: where samples and dropout are drawn from.
            ranks: all workers, this one among them.
            tell: told after every step how much of the epoch is done.

        Returns:
            A proof of all that the noise was drawn for: the last link of the `_NoiseChain`.
        """
        method, gradients, rank = self.method, self.gradients, ranks.rank
        self.is_between_epochs = False
        weights = gradients.flat.weights.detach()
        self._start = weights.clone(), _copied(self.state())
        chain = _NoiseChain.begin(
            streams.key, f"{streams.branch} {self.plan}", streams.attempt, weights.numpy()
        )
        gradients.flat.model.train()
        draws = method.draws(steps, len(gradients), streams)
        for step, batches in zip(steps, draws, strict=True):
            seed = int(streams("dropout", step, rank).words(1)[0] >> np.uint64(2))
            with own_randomness(seed, 0):
                share = method.share(Work(step, rank, batches, gradients))
            if method.adds_noise:
                digest = streams.key.digest(share.data)
                chain = chain.then(step, ranks.exchange(digest))
                share = method.noise_(share, step, rank, chain.noise(rank))
            total = torch.from_numpy(share)
            ranks.sum_(total)
            self._apply(method.update(step, total.numpy()), step)
            if tell is not None:
                tell(step + 1 - steps.start, len(steps))
        self.is_between_epochs = True
        return chain.proof

    def go_back(self) -> None:
        """To the weights and the optimizer's state that the last run began with."""
        weights, state = self._start
        with torch.no_grad():
            self.gradients.flat.weights.copy_(weights)
        self._set_state(state)

    def _apply(self, update: NDArray[Any], step: int) -> None:
        self.gradients.flat.gradient.copy_(torch.from_numpy(update))
        self._optimizer.param_groups[0]["lr"] = _learning_rate_at(step, self._total, self._training)
        self._optimizer.step()

    def state(self) -> dict[str, NDArray[Any]]:
        """The optimizer's state, for a checkpoint."""
        state = self._optimizer.state[self.gradients.flat.weights]
        return {name: value.numpy() for name, value in state.items()}

    def _set_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._optimizer.state[self.gradients.flat.weights] = {
            name: torch.from_numpy(value) for name, value in _copied(state).items()
        }


def _copied(state: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: value.copy() for name, value in state.items()}


def _learning_rate_at(step: int, steps: int, training: Training) -> float:
    """The learning rate of a step.

    It rises over `training.warmup_steps`, and then stays, or falls in a line to 0 after the last
    of all `steps`.
    """
    rising = min(1.0, (step + 1) / (training.warmup_steps + 1))
    falling = 1 - step / steps if training.schedule == "linear" else 1.0
    return training.learning_rate * rising * falling


def _optimizer(training: Training, weights: torch.nn.Parameter) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam([weights], lr=training.learning_rate, fused=True)
    return torch.optim.SGD([weights], lr=training.learning_rate)
