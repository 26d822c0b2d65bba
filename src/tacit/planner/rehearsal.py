"""A few rounds with test people, before anybody who is protected is asked for anything.

How much a model can learn from a corpus depends on how far that text is from what it knows, and
the corpus itself is the only thing that says so.  Test people are not protected, and every claim
says that.  So some of them train the start for a few rounds without noise, others are measured on,
and what that gains stands for the text.  The weights are thrown away: all that a plan takes from it
is this gain, which weighs learning against noise (`planner.law`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.corpus.source import Subset, UserSource
from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.federated.cohort import CohortJob, CohortTask, sum_over
from tacit.federated.server import normalised
from tacit.kernels.local_sgd import local_sgd_for
from tacit.models.base import LanguageModel, from_vector_, layer_sizes, to_vector
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import assembly, plans
from tacit.tokenizers.cache import user_tokens
from tacit.tokenizers.tokenizer import Tokenizer

ROUNDS = 12
COHORT = 48
_MEASURED = 40_000  # tokens of the others
_KEY = RunKey.from_seed(0)  # of streams that hide nothing


@dataclass(frozen=True)
class Rehearsal:
    """The start on all test people; and on some of them, before and after others trained it."""

    start: Metrics
    before: Metrics
    after: Metrics

    @property
    def gain(self) -> float:
        """By how much the loss fell, in nats a token."""
        return self.before.loss - self.after.loss


def rehearse(
    experiment: Experiment, model: LanguageModel, tokenizer: Tokenizer, test: UserSource
) -> Rehearsal:
    """Twelve rounds of the experiment's update and server on half of the test people, no noise.

    The model is left as it is.  With fewer test people than a cohort, all of their half take part
    in every round.
    """
    order = np.random.default_rng(1).permutation(len(test)).tolist()
    half = max(1, len(order) // 2)

    def measure(users: UserSource) -> Metrics:
        texts = held_out_texts(users, tokenizer, _MEASURED)
        return evaluate(model, texts.sequences, bos=tokenizer.bos, unk=tokenizer.unk)

    learners = _Learners.of(test, order[: min(half, ROUNDS * COHORT)], tokenizer, experiment)
    others = Subset(test, order[half:] or order)
    weights, start, before = to_vector(model), measure(test), measure(others)
    try:
        _train(experiment, model, learners, tokenizer.bos)
        return Rehearsal(start, before, measure(others))
    finally:
        from_vector_(model, weights)


@dataclass(frozen=True)
class _Learners:
    """Test people who train, each as tokens."""

    texts: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(
        cls, test: UserSource, users: list[int], tokenizer: Tokenizer, experiment: Experiment
    ) -> _Learners:
        cap = experiment.corpus.max_tokens_per_user
        texts = (user_tokens(test.texts(user), tokenizer, cap) for user in users)
        return cls(tuple(np.array(tokens, np.int64) for tokens in texts))

    def __len__(self) -> int:
        return len(self.texts)

    def tokens(self, index: int) -> NDArray[np.int64]:
        return self.texts[index]

    def key(self, index: int) -> str:
        return f"{index:032x}"


def _train(experiment: Experiment, model: LanguageModel, learners: _Learners, bos: int) -> None:
    """Rounds without noise, each with the next learners; the model ends up trained."""
    cohort = min(COHORT, len(learners))
    population, declared = max(2, cohort), experiment.plan
    weight = None
    if declared.total_weight is not None and declared.population is not None:
        weight = population * declared.total_weight / declared.population
    unprotected = experiment.changed(
        rounds=ROUNDS,
        plan={
            "population": population,
            "cohort": float(cohort),
            "total_weight": weight,
            "noise_multiplier": 0.0,
        },
        privacy={"target_epsilon": None, "delta": 0.1 / population},
    )
    [plan] = plans.round_plans(unprotected, layer_sizes(model))
    task = CohortTask(plan, assembly.user_update(experiment), bos, learners)
    server, schedule = assembly.server_optimizer(experiment), assembly.rate_schedule(experiment)
    sgd = local_sgd_for(model)
    weights, clip = to_vector(model), plan.initial_clip_state()
    state = server.initial(len(weights))
    for round in range(ROUNDS):
        job = CohortJob(weights, clip, _KEY, "rehearsal", round)
        users = [(round * cohort + index) % len(learners) for index in range(cohort)]
        total = sum_over(task, job, users, sgd).total
        release = plan.release(total, clip, lambda purpose: _KEY.hiding_stream(bytes(32), purpose))
        rate_share = schedule.share(round, ROUNDS)
        moved, state = server.apply(weights, release.average, state, rate_share)
        weights = normalised(model, moved)
    from_vector_(model, weights)
