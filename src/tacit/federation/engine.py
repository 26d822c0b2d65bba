"""An engine whose users are clients on other machines: it sends orders and adds up the answers.

Guarantee: what is summed is what `SerialEngine` sums over the clients that answered, bit for bit,
where they compute on machines of the same kind.  A client that is absent, late, or sends anything
else than a contribution within the plan's bound counts as zero, which is what an honest client may
be too; nothing else of the round depends on it.  Answers are added as they come, so that the memory
does not grow with the cohort.

The run key stays here.  A client gets the seed of its own stream, which tells nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from tacit.federated.cohort import (
    CohortJob,
    CohortSum,
    CohortTask,
    Diagnostics,
    Progress,
    RemoteUsers,
)
from tacit.federation.bounds import Bound
from tacit.federation.flower import RecordDict
from tacit.federation.orders import Answer, Order, addressed, width_of
from tacit.federation.participations import Participations
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.samplers import MinSeparationSampler, TurnSampler
from tacit.models.base import LanguageModel

Told = Callable[[str], None]  # is told, in a sentence, what was refused


class Clients(Protocol):
    """The other ends of a federation, by their ids."""

    def ask(
        self, contents: Iterator[tuple[str, RecordDict]], answer_bytes: int
    ) -> Iterator[tuple[str, RecordDict]]:
        """Send each client its content, and yield what comes back, as it comes.

        At most one answer for each client that was asked; it ends with the last, or at a deadline.
        """


class Gathering(Protocol):
    """How the contributions of some clients become their sum."""

    def gather(
        self, order: Order, seeds: Mapping[str, bytes], progress: Progress
    ) -> tuple[Contribution, list[str]]:
        """The sum, and whose contributions are in it."""


class InTheClear:
    """The server sees every contribution, checks it, and adds it up.

    `secure_gathering.Masked` sees the sum alone.  `silos` has how many people at most a client's
    contribution may be of, where clients are silos.
    """

    def __init__(
        self,
        clients: Clients,
        told: Told = lambda what: None,
        silos: Mapping[str, int] | None = None,
    ) -> None:
        self._clients, self._told, self._silos = clients, told, silos or {}

    def gather(
        self, order: Order, seeds: Mapping[str, bytes], progress: Progress
    ) -> tuple[Contribution, list[str]]:
        """The sum of all answers that are within the bound."""
        if order.plan.shared_noise is not None:
            raise ValueError(
                f'plan.noise = "{order.plan.shared_noise.kind}" needs secure sums, in which a share'
                " of the noise is enough to hide an update; add --secure-sum"
            )
        size = len(order.weights)
        bounds = {
            people: Bound(order.plan, order.clip_state, size, people)
            for people in {1, *self._silos.values()}
        }
        widest = width_of(max(bound.limit for bound in bounds.values()))
        total, took_part = order.plan.empty(size), []
        shared = order.shared()
        contents = ((client, addressed(shared, seed)) for client, seed in seeds.items())
        for done, (client, content) in enumerate(self._clients.ask(contents, size * widest), 1):
            people = self._silos.get(client, 1)
            bound = bounds[people]
            width = width_of(bound.limit)
            try:
                answer = Answer.read(content, size, order.plan.bits, width, people)
                if (answer.round, answer.attempt) != (order.round, order.attempt):
                    raise ValueError(
                        f"it is for round {answer.round}, attempt {answer.attempt}, and this is"
                        f" {order.round}, attempt {order.attempt}"
                    )
                bound.check(answer.contribution)
            except ValueError as mistake:
                self._told(f"round {order.round}: client {client} is left out: {mistake}")
            else:
                total += answer.contribution
                took_part.append(client)
            if progress is not None:
                progress(done)
        return total, took_part


class Absent(ValueError):
    """A round that lacks a silo, where sampling is claimed: nothing of it is charged or released.

    Whether a silo answers could depend on whom it drew, and then a sum without it would not be that
    of a sample.
    """


class FederatedEngine:
    """Computes cohorts of enrolled people, whose text is on their own machines.

    Silos draw their people themselves, and keep them apart by their own record.  Where the plan
    claims that sampling, a round is one of all silos, or none.
    """

    def __init__(
        self, model: LanguageModel, run: str, gathering: Gathering, record: Participations
    ) -> None:
        self._model, self._run = model, run
        self._gathering, self._record = gathering, record

    @property
    def kernel(self) -> str:
        """That of the clients is not known here; each of them uses the one that it has."""
        return f"torch {torch.__version__}, federated"

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum over those of these users who answer; who they are is on record when it returns.

        Raises `ValueError` if one of them took part too recently for the plan's guarantee, and
        `Absent` if a silo did not.
        """
        seeds = {client: job.seed(client) for client in map(task.users.key, users)}
        sampler = task.plan.sampler
        are_silos = isinstance(task.users, RemoteUsers) and bool(task.users.silos)
        if isinstance(sampler, TurnSampler) and not are_silos:
            self._record.refuse_early(job.round, seeds, sampler.separation)
        order = Order.of(self._run, task, job, self._model)
        total, took_part = self._gathering.gather(order, seeds, progress)
        absent = sorted(seeds.keys() - set(took_part))
        if absent and not isinstance(sampler, MinSeparationSampler):
            raise Absent(
                f"round {job.round} lacks {len(absent)} of {len(seeds)} silos ({absent[0]}), and"
                " sampling is claimed of all of them: nothing was charged or released; go on with"
                " --resume when all are there"
            )
        self._record.record(job.round, job.attempt, took_part)
        return CohortSum(total, Diagnostics(users=len(took_part)))

    def close(self) -> None:
        """Nothing: the clients stay connected for the next trainer."""
