"""Training a language model: a leg is a round (McMahan et al. 2018, Algorithm 1).

    prepare   draw the cohort; let each user train, clip, weigh and quantise; sum the integers
    run       add noise to the sum, divide by the public denominator, take the server's step

`prepare` releases nothing: between the two, the session charges the ledger.  The noise follows from
the proof that `prepare` returns, so a repeated round has the same noise on the same sum, and
independent noise on any other (design rule 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.engines.engine import Engine, SerialEngine
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.evaluation.names import ACCURACIES
from tacit.federated import averaging
from tacit.federated.averaging import IterateMean
from tacit.federated.cohort import (
    CachedUsers,
    CohortJob,
    CohortSum,
    CohortTask,
    CohortUsers,
    RemoteUsers,
)
from tacit.federated.server import normalised
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.noise import CorrelatedNoise
from tacit.mechanisms.samplers import TurnSampler
from tacit.mechanisms.turns import Turns
from tacit.models import weights as model_files
from tacit.models.base import LanguageModel, from_vector_, layer_sizes, to_vector
from tacit.privacy.ledger_lines import Charge
from tacit.privacy.records import canonical_json
from tacit.privacy.stream import Stream
from tacit.tasks.language import assembly, plans
from tacit.tasks.language.canaries import record_planted
from tacit.tasks.language.canary_clients import CanaryClients, WithCanaryClients, keep_coins
from tacit.tasks.language.noise_memory import NoiseMemory
from tacit.tasks.language.people import People
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.tokenizer_switch import switch_tokenizer
from tacit.tasks.task import Advance, Opened, Pending, Row, State
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.tokenizer import Tokenizer

# Metrics that are also averaged over the last evaluations.
SMOOTHED = (
    *ACCURACIES,
    "perplexity",
    "word_accuracy",
    "word_accuracy_unk_competes",
    "perplexity_per_word",
)


class LanguageTrainer:
    """All rounds in one tokenizer; a switch to another makes a new trainer.

    What a round changes is here: weights, the server optimizer's state, clip norms, and the mean of
    iterates if the released model is one.  Everything else is made once from the last checkpoint.
    """

    def __init__(self, opened: Opened) -> None:
        experiment: Experiment = opened.experiment
        people: People = opened.data
        last, folder = opened.last, opened.folder
        tokenizer = RunTokenizers(folder).by_fingerprint(last.facts["tokenizer"])
        model = model_files.load(
            last.model_file,
            vocab_size=tokenizer.vocab_size,
            own_factory=experiment.model.own_factory,
            trained=experiment.model.trained,
        )
        optimizer = averaging.without_mean(last.arrays)
        weights, mean = averaging.from_arrays(last.arrays, to_vector(model))
        switch = switch_tokenizer(opened, tokenizer, model)
        if switch is not None:
            tokenizer, model, optimizer = switch.tokenizer, switch.model, switch.optimizer
            weights, mean = to_vector(model), None
        users = _users(opened, people, tokenizer, model)
        if switch is not None:
            switch.record(opened.ledger, folder)
        update = assembly.user_update(experiment)
        texts = held_out_texts(people.corpus.test, tokenizer, experiment.evaluation.max_tokens)
        self._experiment = experiment
        self._first_leg, self._just_switched = last.leg, switch is not None
        self._key, self._branch = opened.key, opened.ledger.header.branch
        self._phases = [
            CohortTask(plan, update, tokenizer.bos, users)
            for plan in plans.round_plans(experiment, layer_sizes(model))
        ]
        self._server = assembly.server_optimizer(experiment)
        self._schedule = assembly.rate_schedule(experiment)
        self._averaging = assembly.iterate_averaging(experiment)
        self.engine = (opened.engine or _serial_engine)(model)
        self._evaluate = partial(
            evaluate,
            sequences=texts.sequences,
            owners=texts.owners,
            bos=tokenizer.bos,
            unk=tokenizer.unk,
        )
        self._tokenizer = tokenizer.fingerprint
        self._trained_on = model_files.trained_on(last.model_file)
        self.model = model
        self.weights: NDArray[np.float32] = weights
        self._mean = mean
        self._optimizer = optimizer
        clip_norms = tuple(float(norm) for norm in last.facts["clip_norms"])
        self.clip_state = ClipState(clip_norms, last.facts["clip_round"])
        self._ledger = opened.ledger
        self._turns: dict[int, Turns] = {}  # by separation
        self._memory = self._recalled({} if switch is not None else last.facts, opened)
        self._ahead = self._memory  # what the attempt that is prepared goes on from
        self._computed: tuple[int, CohortSum] | None = None  # the cohort's size and sum

    @property
    def end(self) -> int:
        return self._experiment.next_switch(self._first_leg)

    def numbers(self, leg: int) -> range:
        return range(leg, leg + 1)

    def phase(self, leg: int) -> CohortTask:
        """What the users of a round compute."""
        return self._phases[self._experiment.phase_of(leg)]

    def job(self, leg: int, attempt: int) -> CohortJob:
        """What the users of an attempt at a round are sent."""
        return CohortJob(self.weights, self.clip_state, self._key, self._branch, leg, attempt)

    def prepare(self, leg: int, attempt: int, advance: Advance) -> Pending:
        """The sum over a fresh cohort, and the proof of all that its release is made from."""
        phase, job = self.phase(leg), self.job(leg, attempt)
        plan, cohort = phase.plan, self._cohort(phase, leg, attempt)
        summed = self.engine.sum(phase, job, cohort, lambda done: advance(done, len(cohort)))
        plan.refuse_few(int(summed.diagnostics.users), leg)
        self._computed = len(cohort), summed
        event = plan.event()
        if plan.has_horizon:
            self._ahead = self._memory.next(self._ledger, leg, attempt)
            event = plan.event(self._ahead.position)
        release = Charge("round", leg, attempt, event, plan.hash(), estimator=plan.estimator_name)
        return Pending(leg, attempt, self.proof(leg, attempt, summed.total), [release])

    def _cohort(self, phase: CohortTask, leg: int, attempt: int) -> list[int]:
        """Who is asked in an attempt at a round: all silos, since each draws its people itself."""
        users = phase.users
        if isinstance(users, RemoteUsers) and users.silos:
            return list(range(len(users)))
        stream = self._key.stream(branch=self._branch, round=leg, attempt=attempt, purpose="cohort")
        drawn = phase.plan.cohort(len(users), stream, leg, self._turns_of(phase))
        return [int(user) for user in drawn]

    def _turns_of(self, phase: CohortTask) -> Turns | None:
        """Whose turn it is in which round, where users take turns."""
        sampler, users = phase.plan.sampler, phase.users
        if not isinstance(sampler, TurnSampler):
            return None
        if sampler.separation not in self._turns:
            keys = (users.key(user) for user in range(len(users)))
            self._turns[sampler.separation] = Turns.of(keys, sampler.separation)
        return self._turns[sampler.separation]

    def _recalled(self, facts: Mapping[str, Any], opened: Opened) -> NoiseMemory:
        """What the run remembers of its noise at its last checkpoint."""
        leg = min(opened.last.leg, self._experiment.rounds - 1)
        return NoiseMemory.recalled(
            facts,
            self.phase(leg).plan,
            self.clip_state,
            len(self.weights),
            opened.ledger,
            opened.key,
            opened.recorded,
            opened.announce,
        )

    def proof(self, leg: int, attempt: int, total: Contribution) -> bytes:
        """HMAC over all that a release is made from; its noise is keyed by it.

        So the same sum gets the same noise again, and any other sum independent noise, whatever
        was copied, restored, edited or raced.  The round is in it as well: equal sums of two
        rounds must not show by equal noise.
        """
        plan_hash = self.phase(leg).plan.hash()
        public = [plan_hash, list(self.clip_state.norms), self._branch, leg, attempt]
        if self._ahead.horizon:  # what the noise's state follows from
            public += [self._ahead.horizon, self._ahead.rounds, self._ahead.proof.hex()]
        return self._key.hmac(
            canonical_json(public).encode(),
            self._key.digest(np.ascontiguousarray(self.weights).data),
            self._key.digest(np.ascontiguousarray(total.update).data),
            str(total.weight).encode(),
            total.bits.tobytes(),
        )

    def noise(self, proof: bytes, purpose: str) -> Stream:
        """The randomness of the release with this proof."""
        return self._key.hiding_stream(proof, purpose)

    def run(self, pending: Pending, advance: Advance) -> None:
        """Noise on the sum, the server's step, and unit norms after the noise.

        What comes out is a function of the sum, the noise and the last state, so there is no
        outcome to prove.  Where the next round is of another phase, its clip norms begin anew.
        """
        assert self._computed is not None
        phase = self._experiment.phase_of(pending.leg)
        plan = self._phases[phase].plan
        noise = partial(self.noise, pending.proof)
        release = plan.release(self._computed[1].total, self.clip_state, noise, self._ahead.state)
        if plan.has_horizon:
            self._memory = self._ahead.after(pending.proof, release.noise_state)
        if release.noise_state and not isinstance(plan.noise, CorrelatedNoise):
            raise ValueError(
                "plan.noise must be a kind that needs nothing of earlier rounds, or correlated by a"
                " strategy: a run cannot remember the state of any other"
            )
        rate_share = self._schedule.share(pending.leg, self._experiment.rounds)
        moved, self._optimizer = self._server.apply(
            self.weights, release.average, self._optimizer, rate_share
        )
        self.weights = normalised(self.model, moved)
        self._average(pending.leg)
        self._just_switched = False
        self.clip_state = release.clip_state
        later = self._experiment.phase_of(pending.leg + 1)
        if pending.leg + 1 < self._experiment.rounds and later != phase:
            self.clip_state = self._phases[later].plan.initial_clip_state()
            self._memory = self._ahead = NoiseMemory()

    def _average(self, leg: int) -> None:
        """Let the mean, if the released model is one by now, include this round's iterate."""
        how = self._averaging
        if how is not None and leg >= how.begins(self._experiment.rounds):
            before = self._mean or IterateMean(self.weights, 0)
            self._mean = before.followed_by(self.weights, how)

    def _released(self) -> LanguageModel:
        """The model that is evaluated and kept: the mean of iterates, or the last one itself."""
        if self._mean is None:
            from_vector_(self.model, self.weights)
        else:
            normalised(self.model, self._mean.values)
        return self.model

    def go_back(self) -> None:
        raise AssertionError("what comes out of a round follows from its proof")

    def state(self, leg: int) -> State:
        try:
            model = model_files.to_bytes(self._released(), trained_on=self._trained_on)
        except ValueError as error:
            raise ValueError(
                f"the training diverged in round {leg}: {error}; lower a learning rate"
            ) from error
        facts = checkpoint_facts(self.clip_state, self._tokenizer) | self._memory.facts()
        kept = averaging.to_arrays(self.weights, self._mean) if self._mean else {}
        return State(model, self._optimizer | kept, facts)

    def evaluate(
        self, leg: int, rows: Sequence[Row], epsilon: Callable[[], float | None], *, now: bool
    ) -> Row | None:
        """Metrics on the text of test users, also averaged over the last evaluations.

        At a switch of tokenizers there are two rows, before it and after it, of which the second is
        marked; figures of different tokens are never averaged.
        """
        settings, switched = self._experiment.evaluation, self._just_switched
        due = now or leg >= self.end or switched or leg % settings.every == 0
        if not due or any(row.get("switched", False) == switched for row in _rows_of(leg, rows)):
            return None
        mark = {"switched": True} if switched else {}
        row: Row = {"round": leg, **mark, **self._evaluate(self._released()).as_row()}
        recent = [*([] if switched else _latest(rows, settings.smooth - 1)), row]
        for name in SMOOTHED:
            values = [past[name] for past in recent if past.get(name) is not None]
            row[f"{name}_smoothed"] = sum(values) / len(values) if values else None
        clip_norm = self.clip_state.total_norm
        row["epsilon"] = epsilon()
        row["clip_norm"] = clip_norm if math.isfinite(clip_norm) else None
        return row

    def diagnostics(self) -> Row | None:
        """Private sums about the last cohort, which never enter a release."""
        if self._computed is None:
            return None
        cohort, summed = self._computed
        return {"cohort": cohort, **asdict(summed.diagnostics)}

    def close(self) -> None:
        self.engine.close()


def checkpoint_facts(clip: ClipState, tokenizer: str) -> dict[str, Any]:
    """What a checkpoint says besides arrays: the clip norms in force, and the tokenizer."""
    return {"clip_norms": list(clip.norms), "clip_round": clip.round, "tokenizer": tokenizer}


def _users(
    opened: Opened, people: People, tokenizer: Tokenizer, model: LanguageModel
) -> CohortUsers:
    """The users as tokens, with what an audit plants among them.

    Canaries are recorded in canaries.json, whose digest goes to the ledger; of canary clients the
    ledger gets a commitment to their coins.  Both come before the first round, so that nothing can
    be chosen after the result is known.
    """
    experiment, folder = opened.experiment, opened.folder
    source = people.view(experiment, tokenizer)
    if not people.corpus.has_text:
        most = experiment.corpus.max_tokens_per_user
        return RemoteUsers(source, tokenizer, most, people.corpus.silos)
    cache = TokenCache.open_or_build(
        source,
        tokenizer,
        people.cache_folder(opened.private),
        max_tokens_per_user=experiment.corpus.max_tokens_per_user,
        progress=partial(opened.announce, "tokenizing") if opened.announce else None,
    )
    if planting := people.planting(experiment, tokenizer):
        tokens = (cache.tokens(user) for user in range(len(cache)))
        record_planted(folder, planting, tokens, opened.ledger)
    users: CohortUsers = CachedUsers(cache, source)
    if experiment.audit.canary_clients is not None:
        coins = keep_coins(folder, opened.key, opened.ledger)
        clients = CanaryClients.of(experiment, model, coins)
        assert clients is not None
        users = WithCanaryClients(users, clients, UserWeighting(experiment.plan.user_weight_cap))
    return users


def _rows_of(leg: int, rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a round, which are the last ones: the others are not looked at."""
    return takewhile(lambda row: row["round"] == leg, reversed(rows))


def _latest(rows: Sequence[Row], count: int) -> list[Row]:
    """At most so many of the last rows, in order, and none from before the last switch.

    Figures of tokens from before it do not average with these.
    """
    latest: list[Row] = []
    for row in islice(reversed(rows), count):
        latest.append(row)
        if row.get("switched"):
            break
    return latest[::-1]


def _serial_engine(model: LanguageModel) -> Engine:
    return SerialEngine(local_sgd_for(model))
