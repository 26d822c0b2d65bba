"""A silo: a client with many people's text, of whom it draws those that take part in a round.

Each of them is clipped, weighed and put on the grid alone, by the code that a simulation has, and
one sum over them is all that leaves.  Who is in it is drawn here, from the silo's own randomness:

- where people take turns, those whose turn it is by a hash of their own ids, as anywhere else;
- with Poisson sampling everybody independently, by secret randomness that is fresh for each order.

Independent draws in each silo are independent draws of all their people, so the sampling is that of
the plan, if every silo is there: `docs/privacy/silos.md` says what else it needs.

The randomness of a person's own training follows from the seed in the silo's order and the person's
id.  The server has that seed; it does not have the id, and nobody's privacy rests on it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.source import UserCorpus, UserSource
from tacit.federated.cohort import (
    CachedUsers,
    CohortJob,
    CohortSum,
    CohortTask,
    Progress,
    sum_over,
)
from tacit.federation.client import BuiltModel
from tacit.federation.orders import Answer, Order
from tacit.federation.own_ledger import Refused
from tacit.federation.silo_ledger import SiloLedger
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.distributed_noise import OwnStream
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import MinSeparationSampler, PoissonSampler, TurnSampler
from tacit.mechanisms.turns import Turns
from tacit.models.base import LanguageModel
from tacit.privacy.stream import Stream
from tacit.tasks.language.people import cache_folder
from tacit.tokenizers.cache import TokenCache


@dataclass(frozen=True)
class SiloJob:
    """An attempt at a round as one silo's people compute it."""

    weights: NDArray[np.float32]
    clip_state: ClipState
    seed: bytes  # the silo's own

    @classmethod
    def of(cls, job: CohortJob, silo: str) -> Self:
        """What the silo is sent."""
        return cls(job.weights, job.clip_state, job.seed(silo))

    def stream(self, user_key: str) -> Stream:
        """A person's own stream."""
        return Stream(hmac.digest(self.seed, f"a person of a silo: {user_key}".encode(), "sha256"))

    def own_stream(self, plan: RoundPlan, user_key: str) -> OwnStream:
        """Nothing: the noise is the server's to add."""
        raise ValueError("the people of a silo share no noise")


class People:
    """The people of a silo: all training users of a corpus, or one part of them."""

    def __init__(
        self, corpus: UserCorpus, declared: int, tokens: Path, part: tuple[int, int] = (1, 1)
    ) -> None:
        """`declared` is how many the silo was enrolled with; `tokens` is where caches may go."""
        users = corpus.train if part == (1, 1) else corpus.train.part(*part)
        if not len(users):
            raise ValueError("a silo needs somebody to train on, and the corpus has nobody")
        if len(users) > declared:
            raise ValueError(
                f"a silo's people must be at most the {declared:,} that it declares in its key, and"
                f" the corpus has {len(users):,} training users: make the key with --silo"
                f" {len(users)} or more, and enrol it anew"
            )
        self._source: UserSource = users.kept()
        self._tokens = cache_folder(corpus, tokens)
        self._ids = [self._source.user_id(index) for index in range(len(self._source))]
        if len(set(self._ids)) < len(self._ids):
            raise ValueError("the corpus has the same user twice; ingest it with everybody once")
        self._read: tuple[bytes, int | None, CachedUsers] | None = None
        self._turns: dict[int, Turns] = {}  # by separation

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, order: Order) -> CachedUsers:
        """Everybody's text in the order's tokens."""
        how = (order.tokenizer, order.max_tokens_per_user)
        if self._read is None or self._read[:2] != how:
            tokenizer = order.read_tokenizer()
            if tokenizer.vocab_size != order.model.vocab_size:
                raise Refused("the order's tokenizer is not the one of its model")
            cache = TokenCache.open_or_build(
                self._source, tokenizer, self._tokens, max_tokens_per_user=how[1]
            )
            self._read = (*how, CachedUsers(cache, self._source))
        return self._read[2]

    def draw(self, order: Order) -> list[str]:
        """Who takes part in the order's round, by randomness that nobody else ever has."""
        sampler = order.plan.sampler
        if not isinstance(sampler, MinSeparationSampler | PoissonSampler):
            raise Refused(
                "a silo draws its people by turns or each of them alone, and the plan has"
                f" {sampler.kind} sampling, which is about all people together"
            )
        turns = None
        if isinstance(sampler, TurnSampler):
            turns = self._turns_of(sampler.separation)
        stream = Stream(secrets.token_bytes(32))
        drawn = order.plan.cohort(len(self), stream, order.round, turns)
        return [self._ids[index] for index in drawn]

    def places(self, people: Iterable[str]) -> list[int]:
        """Where people are in the corpus; `Refused` if one of them is not there any more."""
        where = {person: index for index, person in enumerate(self._ids)}
        try:
            return [where[person] for person in people]
        except KeyError as gone:
            raise Refused(
                f"person {gone} was in the answer to this order, and is not in the corpus any more"
            ) from None

    def _turns_of(self, separation: int) -> Turns:
        if separation not in self._turns:
            self._turns[separation] = Turns.of(self._ids, separation)
        return self._turns[separation]


@dataclass
class Silo:
    """Computes the sums of a silo, which was enrolled with so many people at most."""

    members: People
    people: int
    ledger: SiloLedger
    _model: BuiltModel = field(default_factory=BuiltModel)

    def answer(self, order: Order) -> Answer:
        """The sum that is asked for; who is in it is on record before it is made; or `Refused`."""
        if order.plan.shared_noise is not None:
            raise Refused("a silo shares no noise: that of the plan has to be the server's to add")
        if order.plan.population < self.people:
            raise Refused(
                f"the plan's population of {order.plan.population:,} is less than the"
                f" {self.people:,} people that this silo was enrolled with"
            )
        sgd, _ = self._model.of(order)
        users = self.members.read(order)
        people = self.ledger.give(order, lambda: self.members.draw(order))
        job = SiloJob(order.weights, order.clip_state, order.seed)
        total = sum_over(order.task(users), job, self.members.places(people), sgd).total
        return Answer(order.round, order.attempt, total)

    def answer_in_the_clear(self, order: Order) -> Answer:
        """The same: there is no share of the noise in it."""
        return self.answer(order)


class SilosHere:
    """An engine that computes in this process what silos would: for simulations to compare with.

    `silos` has for each person the id of the silo.  Where local training draws nothing at random,
    all engines have these bits; where it does, a person's draws are those of `SiloJob`.
    """

    kernel = "silos, simulated"

    def __init__(self, model: LanguageModel, silos: Mapping[str, str]) -> None:
        self._sgd, self._silos = local_sgd_for(model), silos

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum of all silos' sums over these users."""
        result = CohortSum.empty(task, job)
        by_silo: dict[str, list[int]] = {}
        for user in users:
            by_silo.setdefault(self._silos[task.users.key(user)], []).append(user)
        for silo, members in by_silo.items():
            part = sum_over(task, SiloJob.of(job, silo), members, self._sgd)
            result.total += part.total
            result.diagnostics += part.diagnostics
        return result

    def close(self) -> None:
        """Nothing: there are no other processes."""
