"""What a training would waste is said before it starts, and only where there is much to waste."""

import math

import pytest

from tacit.config.experiment import Experiment
from tacit.config.recipes import load
from tacit.planner import waste
from tacit.planner.speed import TrainingSpeed

LARGE = Experiment().changed(
    rounds=5000,
    corpus={"source": "synthetic:users=300,words=40"},
    plan={"cohort": 100.0, "noise_multiplier": 0.02},
)


@pytest.fixture
def speed(monkeypatch):
    """A machine on which an update takes a hundredth of a second."""
    asked = []

    def measured(experiment, model, *, workers):
        asked.append(workers)
        return TrainingSpeed(100.0 * workers, 0.001, 1e6)

    monkeypatch.setattr(waste, "measure_speed", measured)
    return asked


def warned(experiment, workers=2):
    return waste.warnings_before(experiment, "runs/first", workers)


def test_a_short_training_is_not_spoken_of(monkeypatch, speed):
    def refuse(*_):
        raise AssertionError("a corpus was opened for nothing")

    monkeypatch.setattr(waste.People, "of", refuse)
    assert warned(LARGE.changed(rounds=1, plan={"cohort": 10.0, "noise_multiplier": 9.0})) == []
    assert speed == []


def test_a_training_without_waste_is_not_spoken_of(speed):
    experiment = LARGE.changed(rounds=500)
    assert warned(experiment) == []
    assert speed == [2]  # it could have been long


def test_more_than_an_hour(speed):
    [told] = warned(LARGE, workers=1)
    # 5,000 rounds of 100 users at 100 a second.
    assert "5,000 rounds of 100 users with up to 1,600 tokens take up to about 1:24 hours" in told
    assert "--rounds" in told
    assert warned(LARGE, workers=2) == []


def test_noise_far_above_what_the_model_bears(speed):
    loud = LARGE.changed(rounds=100, plan={"noise_multiplier": 2.0})
    [told] = warned(loud)
    # z sqrt(d) / cohort = 2 * sqrt(1.35e6) / 100 = 23; sigma = 2 * 15 / 100.
    assert "the noise on each round's average, 0.3 on each of 1,346,144 weights" in told
    assert "is 23.2 times as long as clipping at 15 lets the average itself be" in told
    assert "a cohort of about 2,3" in told
    quiet = LARGE.changed(rounds=100, plan={"noise_multiplier": 0.2})  # 2.3 times: not far above
    assert warned(quiet) == []
    assert warned(LARGE.changed(rounds=100, plan={"noise_multiplier": 0.0})) == []


def test_noise_that_is_solved_for_is_judged_too(speed):
    experiment = LARGE.changed(rounds=100, privacy={"target_epsilon": 1.0})
    assert any("times as long as clipping" in line for line in warned(experiment))


def test_a_recipe_for_many_more_users(speed):
    experiment = LARGE.changed(about={"users": 763_430}, rounds=100)
    [told] = warned(experiment)
    assert "is meant for about 763,430 users, and synthetic:users=300,words=40 has 2" in told
    assert warned(LARGE.changed(about={"users": 2_000}, rounds=100)) == []


def test_people_are_told_what_would_be_better(speed, tmp_path):
    from tests.runs.small import make_corpus

    corpus = make_corpus(tmp_path / "corpus", users=300)
    loud = {"cohort": 100.0, "noise_multiplier": 2.0}
    experiment = LARGE.changed(rounds=100, corpus={"source": str(corpus)}, plan=loud)
    assert warned(experiment)[-1].endswith(
        f"tacit train --corpus {corpus} --run runs/first --epsilon 8 --minutes 30"
    )


def test_the_papers_own_settings_are_near_what_the_rule_calls_bearable():
    """McMahan et al. 2018, Figure 3: sigma = 0.012 costs almost nothing, 0.2 destroys accuracy."""
    from tacit.tasks.language.plans import round_plans

    def times(sigma):
        plan = {"population": 763_430, "cohort": 100.0, "clip_norm": 20.0, "noise_stddev": sigma}
        filled = Experiment().changed(plan=plan, privacy={"delta": 1e-9})
        return waste.noise_over_clip_norm(round_plans(filled, (1,))[0], 1_350_000, filled.rounds)

    assert times(0.012) == pytest.approx(0.012 * math.sqrt(1_350_000) / 20)
    assert times(0.024) < waste.LOUD < times(0.2)


def test_the_papers_recipes_say_for_how_many_users_they_are_meant():
    users = {
        "mcmahan2018": 763_430,
        "mcmahan2018-table2": 763_430,
        "mcmahan2018-small": 1000,
        "thakkar2020": 392_000,
        "thakkar2020-small": 1000,
        "bagdasaryan2022": 10_000_000,
        "bagdasaryan2022-small": 1000,
        "demo": 1000,
    }
    for name, meant in users.items():
        for experiment in load(name).experiments.values():
            assert experiment.about.users == meant, name
