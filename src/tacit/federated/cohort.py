"""The sum over a cohort: the part of a round that users' text goes into.

Guarantee (isolation): what a user adds to the sum is a function of that user's tokens, the job's
released weights and clip norms, the task's public constants, and a stream keyed by the user's own
id.  Neither other users, nor the order, nor the number of processes has a part in it, and integers
are summed, so that any partition of a cohort gives the same bits on the same kind of machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.corpus.source import UserSource
from tacit.federated.own_noise import simulated_stream
from tacit.federated.user_update import Clip, FedAvg, FedSGD, Tokens, UserResult, stretch
from tacit.kernels.local_sgd import LocalSGD
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.distributed_noise import OwnStream
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution, Integers
from tacit.mechanisms.plan import RoundPlan
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.tokenizer import Tokenizer

Progress = Callable[[int], None] | None  # is told how many users are done


class CohortUsers(Protocol):
    """The users of a task, by number; what a `CohortTask` reads people's text through."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> Tokens:
        """All that the user trains on."""

    def key(self, index: int) -> str:
        """The name of the user's stream, which no other user changes: the hashed id."""


@dataclass(frozen=True)
class CachedUsers:
    """The users of a source, with their tokens from its cache."""

    cache: TokenCache
    source: UserSource

    def __post_init__(self) -> None:
        if len(self.cache) != len(self.source):
            raise ValueError(
                f"the token cache must be of the source's {len(self.source)} users, got"
                f" {len(self.cache)}"
            )

    def __len__(self) -> int:
        return len(self.cache)

    def tokens(self, index: int) -> Tokens:
        """The user's tokens, read from the memory-mapped cache."""
        return self.cache.tokens(index)

    def key(self, index: int) -> str:
        """The user's hashed id in the corpus."""
        return self.source.user_id(index)


@dataclass(frozen=True)
class RemoteUsers:
    """Users whose text is on machines of their own: their ids, and how they are to read the text.

    Only an engine that sends them messages can compute with them.  Where they are `silos`, each
    stands for so many people at most, whom nobody here knows.
    """

    source: UserSource
    tokenizer: Tokenizer
    max_tokens_per_user: int | None
    silos: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)

    def tokens(self, index: int) -> Tokens:
        """Nothing: it is not here."""
        raise ValueError(
            "the text of enrolled people is on their own machines: train on it with tacit federate"
            " server"
        )

    def key(self, index: int) -> str:
        """The id that the user was enrolled with."""
        return self.source.user_id(index)


@dataclass(frozen=True)
class CohortTask:
    """What stays the same over all rounds of a phase."""

    plan: RoundPlan
    update: FedAvg | FedSGD
    bos: int
    users: CohortUsers

    def read(self, user: int, stream: Stream) -> Tokens:
        """What the user trains on in a round; `stream` is the user's own stream of that round."""
        return stretch(self.users.tokens(user), self.update.tokens_per_round, stream)

    def brought(self, user: int) -> UserResult | None:
        """The precomputed update of a user who does not train, as a canary client; else None.

        Users that have such updates have a method `brought(index)` for them.
        """
        brought = getattr(self.users, "brought", None)
        result: UserResult | None = brought(user) if brought is not None else None
        return result


@dataclass(frozen=True)
class CohortJob:
    """What belongs to one attempt at one round: released values, and the key of the streams."""

    weights: NDArray[np.float32]
    clip_state: ClipState
    key: RunKey
    branch: str
    round: int
    attempt: int = 0

    def stream(self, user_key: str) -> Stream:
        """The user's own stream of this round."""
        return Stream(self.seed(user_key))

    def seed(self, user_key: str) -> bytes:
        """What that stream is made from, for a user who computes on a machine of its own."""
        return self.key.seed(
            branch=self.branch,
            round=self.round,
            attempt=self.attempt,
            purpose=f"user {user_key}",
        )

    def own_stream(self, plan: RoundPlan, user_key: str) -> OwnStream:
        """What the user draws its share of the noise from, where users share it."""
        where = (self.branch, self.round, self.attempt)
        return partial(
            simulated_stream, self.key, plan, self.weights, self.clip_state, where, user_key
        )


class UserJob(Protocol):
    """As much of a job as one user's update is computed from."""

    @property
    def weights(self) -> NDArray[np.float32]: ...

    @property
    def clip_state(self) -> ClipState: ...

    def stream(self, user_key: str) -> Stream:
        """The user's own stream of this round."""


class SummedJob(UserJob, Protocol):
    """As much of a job as a sum over users is computed from."""

    def own_stream(self, plan: RoundPlan, user_key: str) -> OwnStream:
        """What the user draws its share of the noise from, where users share it."""


@dataclass
class Diagnostics:
    """Private sums about a cohort, for `private/` alone: they never enter a release.

    Norms are those before the clip, in float32 precision.  `loss_sum` over `examples` is the mean
    training loss.  A user whose update is not finite is in `users` and `not_finite` only.
    """

    users: float = 0.0
    examples: float = 0.0
    clipped: float = 0.0
    norm_sum: float = 0.0
    loss_sum: float = 0.0
    not_finite: float = 0.0

    def __add__(self, other: Diagnostics) -> Diagnostics:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Diagnostics(*(one + another for one, another in pairs))


@dataclass
class CohortSum:
    """What a cohort, or a part of one, adds up to: the private total and its diagnostics."""

    total: Contribution
    diagnostics: Diagnostics

    @classmethod
    def empty(cls, task: CohortTask, job: SummedJob) -> CohortSum:
        """The sum over no users, which every other sum starts from."""
        return cls(task.plan.empty(len(job.weights)), Diagnostics())

    @classmethod
    def of(
        cls, update: Integers, weight: int, bits: Integers, diagnostics: Diagnostics
    ) -> CohortSum:
        """A sum from its parts, computed elsewhere; the arrays are kept, not copied."""
        return cls(Contribution(update, weight, bits), diagnostics)

    def add(self, task: CohortTask, job: SummedJob, user: int, computed: UserResult) -> None:
        """Add one more user's update: clipped, weighed, quantised, and with its share of noise."""
        plan, own = task.plan, None
        if plan.shared_noise is not None:
            own = job.own_stream(plan, task.users.key(user))
        plan.add(self.total, computed.update, computed.examples, job.clip_state, own)
        self.diagnostics += _diagnosed(task.plan, job.clip_state, computed)


def sum_over(
    task: CohortTask,
    job: SummedJob,
    users: Iterable[int],
    sgd: LocalSGD,
    progress: Progress = None,
) -> CohortSum:
    """The summed contributions of these users, computed one after the other."""
    results = ((user, user_result(task, job, user, sgd)) for user in users)
    return sum_results(task, job, results, progress)


def sum_results(
    task: CohortTask,
    job: SummedJob,
    results: Iterable[tuple[int, UserResult]],
    progress: Progress = None,
) -> CohortSum:
    """The summed contributions of users with these results, which are asked for one by one.

    All of it is computed on one thread; `progress` is told how many users are done.
    """
    result = CohortSum.empty(task, job)
    with one_thread():
        for done, (user, computed) in enumerate(results, start=1):
            result.add(task, job, user, computed)
            if progress is not None:
                progress(done)
    return result


def user_result(task: CohortTask, job: UserJob, user: int, sgd: LocalSGD) -> UserResult:
    """One user's update, not yet clipped."""
    if (brought := task.brought(user)) is not None:
        return brought
    stream = job.stream(task.users.key(user))
    tokens = task.read(user, stream)
    return task.update.run(
        sgd,
        job.weights,
        tokens,
        bos=task.bos,
        stream=stream,
        clip=clip_function(task, job, tokens),
    )


def clip_function(task: CohortTask, job: UserJob, tokens: Tokens) -> Clip:
    """The ClipFn of greedy clipping (Algorithm 1) for the user of these tokens.

    For a weight-aware plan it bounds the weighted update w_k (theta - theta^0), not the update.
    """
    plan, clip_state = task.plan, job.clip_state
    examples = int((tokens[1:] != task.bos).sum())
    clipper = plan.clipper.with_norms(clip_state.norms)
    share = plan.weighting.weigh(examples) / WHOLE_WEIGHT if plan.weight_aware else 1.0

    def clip(update: NDArray[np.float64]) -> NDArray[np.float64]:
        """The update within its bound; the same array if it was within it."""
        if share == 1:
            return clipper.clip(update, plan.layers).values
        # The plan bounds the weighted update; without any weight there is nothing to bound.
        clipped = clipper.clip(update * share, plan.layers)
        return update if all(clipped.within) else clipped.values / share

    return clip


def _diagnosed(plan: RoundPlan, clip_state: ClipState, result: UserResult) -> Diagnostics:
    """The diagnostics of one user: was any norm above its bound before the clip?"""
    square = _squares(result.update)
    if not math.isfinite(square) and not np.isfinite(result.update).all():
        return Diagnostics(users=1, not_finite=1)
    layers = plan.layers if len(clip_state.norms) > 1 else None
    squares = (
        [square]
        if layers is None
        else map(_squares, np.split(result.update, np.cumsum(layers)[:-1]))
    )
    weight = plan.weighting.weigh(result.examples) / WHOLE_WEIGHT if plan.weight_aware else 1.0
    clipped = any(
        weight * math.sqrt(block) > norm
        for block, norm in zip(squares, clip_state.norms, strict=False)
    )
    return Diagnostics(
        users=1,
        examples=result.examples,
        clipped=clipped,
        norm_sum=math.sqrt(square),
        loss_sum=result.loss * result.examples,
    )


def _squares(block: NDArray[Any]) -> float:
    """The sum of squares in the update's own precision: good enough for diagnostics."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(block, block))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside: sums in a product depend on the number of threads, and a
    resumed round has to repeat every bit.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
