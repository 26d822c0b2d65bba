"""How fast this machine trains a model, measured before anything is trained.

The probe computes the updates of made-up users, one release and a short evaluation, with the
experiment's own model and settings, for about a second.  It reads nobody's text: what it finds is
a fact about the machine, and may decide about a plan without a cost in privacy.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.engines.engine import Engine, SerialEngine
from tacit.evaluation.accuracy import evaluate
from tacit.federated.cohort import CohortJob, CohortTask
from tacit.federated.server import normalised
from tacit.federated.user_update import Tokens
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights as model_files
from tacit.models.base import LanguageModel, from_vector_, layer_sizes, parameter_count, to_vector
from tacit.privacy.guarantee import default_delta
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import NonNegative, Positive, Record
from tacit.tasks.language import assembly, plans

_KEY = RunKey.from_seed(0)  # of streams that hide nothing: nobody's text is here
_BOS, _EOS, _FIRST_WORD = 0, 1, 3  # as all of our tokenizers have them
_TEXT = 18  # tokens of a made-up text, which is a short message
_EVALUATED = 2_000  # made-up tokens that an evaluation is timed on
_TEXTS = 3  # made-up users share these


@dataclass(frozen=True)
class TrainingSpeed(Record):
    """What the parts of a training take on this machine, with one experiment's model.

    A user here has as many tokens as the experiment takes from one at most, so that times are upper
    bounds: how much text people have is private.
    """

    users_per_second: Positive
    seconds_per_release: NonNegative  # noise, the server's step and a checkpoint
    evaluated_per_second: Positive  # tokens of held-out text

    def seconds(
        self, experiment: Experiment, *, rounds: int | None = None, cohort: float | None = None
    ) -> float:
        """How long the rounds and evaluations of the experiment take; or of others than it has."""
        rounds = experiment.rounds if rounds is None else rounds
        cohort = experiment.plan.cohort if cohort is None else cohort
        evaluations = 1 + math.ceil(rounds / experiment.evaluation.every)
        each_evaluation = experiment.evaluation.max_tokens / self.evaluated_per_second
        each_round = cohort / self.users_per_second + self.seconds_per_release
        return rounds * each_round + evaluations * each_evaluation


def measure_speed(
    experiment: Experiment,
    model: LanguageModel,
    *,
    engine: Engine | None = None,
    workers: int = 1,
    seconds: float = 1.0,
) -> TrainingSpeed:
    """The speed of this machine at an experiment's training, in about `seconds`.

    Args:
        experiment: whose update, clip and server are timed; it need not be complete.
        model: the model that would be trained; it is left as it is.
        engine: what computes cohorts.  Without one, this process is timed.
        workers: how many processes the engine has.  Without an engine, how many there will be:
            each is taken to be as fast as this one, which it is where there are cores enough.
        seconds: how long to compute users' updates for.
    """
    return TrainingSpeed(
        users_per_second(experiment, model, engine=engine, workers=workers, seconds=seconds),
        _seconds_per_release(experiment, model),
        _evaluated_per_second(model),
    )


def users_per_second(
    experiment: Experiment,
    model: LanguageModel,
    *,
    engine: Engine | None = None,
    workers: int = 1,
    seconds: float = 1.0,
) -> float:
    """How many users' updates are computed in a second; see `measure_speed`.

    Where one user takes longer than the probe may, a part of its text is computed and the rest
    taken to be as fast.
    """
    computing = engine or SerialEngine(local_sgd_for(model))
    processes = workers if engine else 1
    cap, settings = tokens_per_round(experiment), experiment.update
    # FedSGD takes one step, however long the text is; FedAvg as many steps as the text is long.
    is_linear = settings.algorithm == "fedavg"
    part = min(cap, settings.batch_size * settings.unroll) if is_linear else cap
    warm_up = _task(experiment, model, min(cap, 2 * settings.unroll))
    job = CohortJob(to_vector(model), warm_up.plan.initial_clip_state(), _KEY, "speed", 0)
    computing.sum(warm_up, job, range(processes))  # the first ones build and load what they need
    took = _seconds_per_user(computing, _task(experiment, model, part), job, processes)
    each = took * cap / part
    if took * processes < seconds / 2:
        users = seconds / (processes * each)
        tokens = min(cap, max(part, round(cap * users)))
        count = processes * max(1, round(users))
        whole = _task(experiment, model, tokens)
        each = _seconds_per_user(computing, whole, job, count) * cap / tokens
    return (1 if engine else workers) / each


def tokens_per_round(experiment: Experiment) -> int:
    """How many tokens a user reads in a round, at most."""
    cap, part = experiment.corpus.max_tokens_per_user, experiment.update.tokens_per_round
    return cap if part is None else min(cap, part)


def made_up_tokens(count: int, vocab_size: int, seed: int = 0) -> NDArray[np.int64]:
    """`count` tokens of short texts whose words are as frequent as in a language (Zipf's law)."""
    first = min(_FIRST_WORD, vocab_size - 1)
    shares = np.cumsum(1 / np.arange(3, 3 + vocab_size - first))
    drawn = np.random.default_rng(seed).random(count) * shares[-1]
    tokens: NDArray[np.int64] = first + np.searchsorted(shares, drawn).astype(np.int64)
    tokens[::_TEXT] = _BOS
    tokens[_TEXT - 1 :: _TEXT] = min(_EOS, vocab_size - 1)
    return tokens


@dataclass(frozen=True)
class _MadeUpUsers:
    """Any number of users, who share a few made-up texts."""

    texts: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.texts)

    def tokens(self, index: int) -> Tokens:
        return self.texts[index % len(self.texts)]

    def key(self, index: int) -> str:
        return f"{index:032x}"


def _task(experiment: Experiment, model: LanguageModel, tokens: int) -> CohortTask:
    """The experiment's user update on made-up users with so many tokens."""
    size = model.config.vocab_size
    texts = tuple(made_up_tokens(tokens, size, seed) for seed in range(_TEXTS))
    update = assembly.user_update(experiment)
    return CohortTask(_round_plan(experiment, model), update, _BOS, _MadeUpUsers(texts))


def _round_plan(experiment: Experiment, model: LanguageModel) -> RoundPlan:
    """The plan of the first phase, complete: what is still to be solved for costs no time."""
    plan, privacy = experiment.plan, experiment.privacy
    counts = [plan.cohort, plan.total_weight, plan.min_weight, plan.max_cohort, 2]
    population = plan.population or math.ceil(max(filter(None, counts)))
    changes: dict[str, Any] = {"population": population}
    if experiment.noise_target is not None:
        changes |= {"noise_stddev": None, "noise_multiplier": 1.0}
    delta = privacy.delta or default_delta(population)
    filled = experiment.changed(plan=changes, privacy={"delta": delta})
    return plans.round_plans(filled, layer_sizes(model))[0]


def _seconds_per_user(engine: Engine, task: CohortTask, job: CohortJob, count: int) -> float:
    began = time.perf_counter()
    engine.sum(task, job, range(count))
    return (time.perf_counter() - began) / count


def _seconds_per_release(experiment: Experiment, model: LanguageModel) -> float:
    """Noise on a sum, the server's step, and the bytes of a checkpoint."""
    plan, vector = _round_plan(experiment, model), to_vector(model)
    server = assembly.server_optimizer(experiment)
    total, state = plan.empty(len(vector)), server.initial(parameter_count(model))
    noise = partial(_KEY.hiding_stream, bytes(32))
    began = time.perf_counter()
    release = plan.release(total, plan.initial_clip_state(), noise)
    moved, _ = server.apply(vector, release.average, state)
    try:
        normalised(model, moved)
        model_files.to_bytes(model)
    finally:
        from_vector_(model, vector)
    return time.perf_counter() - began


def _evaluated_per_second(model: LanguageModel) -> float:
    """Tokens of held-out text that are scored in a second."""
    texts = made_up_tokens(_EVALUATED, model.config.vocab_size).reshape(-1, 20)
    evaluate(model, list(texts[:2]), bos=_BOS, unk=None)
    began = time.perf_counter()
    evaluate(model, list(texts), bos=_BOS, unk=None)
    return _EVALUATED / (time.perf_counter() - began)
