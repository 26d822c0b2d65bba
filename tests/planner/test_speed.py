"""The speed probe: about this machine and this experiment, and about nobody's text."""

import dataclasses

import numpy as np
import pytest

from tacit.config.experiment import Experiment
from tacit.engines.engine import SerialEngine
from tacit.kernels.local_sgd import local_sgd_for
from tacit.models import registry
from tacit.models.base import to_vector
from tacit.planner.speed import (
    TrainingSpeed,
    made_up_tokens,
    measure_speed,
    users_per_second,
)

EXPERIMENT = Experiment().changed(
    corpus={"max_tokens_per_user": 120},
    update={"batch_size": 2, "unroll": 5, "learning_rate": 0.1},
    evaluation={"max_tokens": 1000, "every": 10},
)


def small_model():
    return registry.build("lstm", 50, embedding_size=4, cells=6)


class Counted(SerialEngine):
    """Remembers the users that it computes, and takes a given time for each token."""

    def __init__(self, model):
        super().__init__(local_sgd_for(model))
        self.asked = []

    def sum(self, task, job, users, progress=None):
        self.asked.append((len(users), len(task.users.tokens(0))))
        return super().sum(task, job, users, progress)


class Clock:
    """A clock that goes on by a second for each token of an update."""

    def __init__(self, monkeypatch, per_token):
        self.now, self.per_token = 0.0, per_token
        monkeypatch.setattr("tacit.planner.speed.time.perf_counter", lambda: self.now)

    def engine(self, model):
        clock = self

        class Timed(Counted):
            def sum(self, task, job, users, progress=None):
                for user in users:
                    clock.now += clock.per_token * len(task.users.tokens(user))
                return super().sum(task, job, users, progress)

        return Timed(model)


def test_all_parts_of_a_training_are_timed_and_the_model_stays_as_it_was():
    model = small_model()
    before = to_vector(model)
    speed = measure_speed(EXPERIMENT, model, seconds=0.01)
    assert speed.users_per_second > 0
    assert 0 < speed.seconds_per_release < 10
    assert speed.evaluated_per_second > 0
    assert np.array_equal(to_vector(model), before)


def test_no_text_is_read(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a corpus was opened")

    monkeypatch.setattr("tacit.corpus.builtin.load_corpus", refuse)
    monkeypatch.setattr("tacit.corpus.store.Corpus.open", refuse)
    assert users_per_second(EXPERIMENT, small_model(), seconds=0.01) > 0


def test_users_have_as_many_tokens_as_the_cap_allows(monkeypatch):
    """0.001 s a token and 120 tokens a user: 8.3 users a second, and not a tenth more."""
    model = small_model()
    engine = Clock(monkeypatch, 0.001).engine(model)
    assert users_per_second(EXPERIMENT, model, engine=engine) == pytest.approx(1 / 0.12)
    assert engine.asked[-1] == (8, 120)


def test_of_a_slow_model_only_a_part_of_one_user_is_computed(monkeypatch):
    model = small_model()
    clock = Clock(monkeypatch, 0.02)  # 2.4 s a user
    engine = clock.engine(model)
    assert users_per_second(EXPERIMENT, model, engine=engine) == pytest.approx(1 / 2.4)
    assert clock.now < 2
    clock.per_token = 10.0
    before = clock.now
    assert users_per_second(EXPERIMENT, model, engine=engine) == pytest.approx(1 / 1200)
    assert clock.now - before <= 10 * (10 + 10)  # two local steps, and no more


def test_more_workers_are_faster_in_proportion_unless_an_engine_was_measured(monkeypatch):
    model = small_model()
    monkeypatch.setattr(
        "tacit.planner.speed.SerialEngine", lambda _: Clock(monkeypatch, 0.001).engine(model)
    )
    one, four = (users_per_second(EXPERIMENT, model, workers=count) for count in (1, 4))
    assert four == pytest.approx(4 * one)
    engine = Clock(monkeypatch, 0.001).engine(model)
    assert users_per_second(EXPERIMENT, model, engine=engine, workers=4) == pytest.approx(one)
    assert engine.asked[0][0] == 4  # all processes warm up
    assert engine.asked[-1][0] % 4 == 0  # and each has as much to do as the others


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"target_epsilon": 8.0}},
        {"update": {"algorithm": "fedsgd"}},
        {"update": {"sampled_negatives": 8}},
        {"plan": {"clipping": "none", "noise_multiplier": 0.0, "estimator": "true-average"}},
        {"plan": {"sampling": "truncated", "noise_multiplier": 1.0}},
        {"plan": {"clipping": "per-layer", "noise_multiplier": 1.0}},
        {"plan": {"total_weight": 400.0, "noise_multiplier": 1.0}},
    ],
)
def test_an_experiment_need_not_be_complete(changes):
    experiment = EXPERIMENT.changed(**changes)
    assert measure_speed(experiment, small_model(), seconds=0.01).users_per_second > 0


def test_a_training_takes_its_rounds_releases_and_evaluations():
    speed = TrainingSpeed(50.0, 0.5, 500.0)
    experiment = EXPERIMENT.changed(rounds=25, plan={"cohort": 100.0})
    # 25 rounds of 100 users and a release; measured before, after 10, 20 and 25 rounds.
    assert speed.seconds(experiment) == pytest.approx(25 * (2 + 0.5) + 4 * 2)
    assert speed.seconds(experiment, rounds=10, cohort=50) == pytest.approx(10 * 1.5 + 2 * 2)
    assert dataclasses.replace(speed, users_per_second=100.0).seconds(experiment) < 50


def test_made_up_text_is_like_text():
    tokens = made_up_tokens(20_000, 10_000)
    assert tokens.min() == 0
    assert tokens.max() < 10_000
    assert 0.04 < np.mean(tokens == 0) < 0.07  # a text of eighteen tokens begins with BOS
    counts = np.bincount(tokens[tokens > 1], minlength=10_000)
    assert counts[3] > 5 * counts[100] > 0  # frequent words are frequent
    assert 2000 < (counts > 0).sum() < 8000  # and most words are rare
    assert not np.array_equal(tokens, made_up_tokens(20_000, 10_000, seed=1))
    assert made_up_tokens(10, 2).max() < 2


def test_users_who_read_a_part_of_their_text_are_as_fast_as_those_who_have_no_more(monkeypatch):
    model = small_model()
    part = EXPERIMENT.changed(
        corpus={"max_tokens_per_user": 1200}, update={"tokens_per_round": 120}
    )
    speeds = []
    for experiment in (EXPERIMENT, part):
        clock = Clock(monkeypatch, per_token=0.01)
        speeds.append(users_per_second(experiment, model, engine=clock.engine(model)))
    assert speeds[0] == pytest.approx(speeds[1])
