"""What can be known without work is refused before any: nothing is tokenized or pre-trained."""

import pytest

from tacit.config.experiment import Experiment
from tacit.tasks.language import assembly, first_checks, plans
from tacit.tokenizers.cache import TokenCache
from tacit.train import train
from tests.runs import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_folder(tmp_path_factory.mktemp("first") / "made")


@pytest.fixture
def work(monkeypatch):
    """What was done so far of all that takes time."""
    done = []

    def note(what):
        def instead(*_, **__):
            done.append(what)
            raise AssertionError(f"{what} before the refusal")

        return instead

    monkeypatch.setattr(assembly.StartingModel, "of", note("the starting model"))
    monkeypatch.setattr(assembly, "_pretrain", note("pre-training"))
    monkeypatch.setattr(assembly, "tokenizer_of", note("the tokenizer"))
    monkeypatch.setattr(TokenCache, "open_or_build", note("tokenizing"))
    return done


def refused(experiment, run):
    with pytest.raises(ValueError, match=r".+") as error:
        train(experiment, run)
    assert not run.exists()
    return str(error.value)


PRETRAINED = {"pretrain": {"source": "chatterbot"}}


def test_a_model_that_reads_what_no_corpus_has(folder, tmp_path, work):
    sizes = {"embedding_size": 6, "cells": 8, "context_size": 3}
    experiment = small.experiment(folder, model=PRETRAINED | {"options": sizes})
    said = refused(experiment, tmp_path / "run")
    assert said.startswith(
        "context_size must be 0 in a training, got 3: a corpus has people's text"
    )
    assert work == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"delta": 0.1}}, "privacy.delta must be below 1/population = 0.0"),
        (
            {"projection": {"population": 10_000, "delta": 1e-3}},
            "projection.delta must be below 1/population = 0.0001",
        ),
        (
            {"projection": {"population": 10_000}, "plan": {"sampling": "fixed"}},
            "projection needs Poisson sampling",
        ),
        ({"projection": {"population": 3}}, "the projected cohort must be at most"),
        ({"plan": {"cohort": 500}}, "plan.cohort of 500 users a round is more than the"),
        ({"plan": {"population": 3}}, "plan.population of 3 is less than the"),
        ({"plan": {"population": 100, "total_weight": 200.0}}, "total_weight must be at most"),
        ({"plan": {"noise_multiplier": None}}, "small says nothing about noise"),
        ({"plan": {"sampling": "fixed", "cohort": 2.5}}, "plan.cohort must be whole"),
    ],
)
def test_what_contradicts_the_declared_numbers(folder, tmp_path, work, changes, message):
    experiment = small.experiment(folder, model=PRETRAINED).changed(**changes)
    assert message in refused(experiment, tmp_path / "run")
    assert work == []


def test_an_unreachable_target_is_refused_before_pre_training(folder, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(assembly, "_pretrain", lambda *_: trained.append(1))
    phases = [{"rounds": 6, "plan": {"noise_multiplier": 2.0}}]
    experiment = small.experiment(folder, model=PRETRAINED, privacy={"target_epsilon": 8.0})
    told = refused(experiment.changed(phases=phases), tmp_path / "run")
    assert "the phases set their own noise" in told
    assert trained == []


def test_a_full_disk(folder, tmp_path, work, monkeypatch):
    usage = first_checks.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(first_checks.shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    told = refused(small.experiment(folder), tmp_path / "run")
    assert told.startswith("the checkpoints of 6 rounds need about ")
    assert f"{tmp_path} has 0.0 MB free" in told
    assert "--set evaluation.snapshot_every=6" in told
    assert work == []


def test_too_little_memory(folder, tmp_path, work, monkeypatch):
    monkeypatch.setattr(first_checks, "available_memory", lambda: 1000)
    told = refused(small.experiment(folder), tmp_path / "run")
    assert "needs at least" in told
    assert "of memory" in told
    assert work == []
    monkeypatch.setattr(first_checks, "available_memory", lambda: None)  # not known: no refusal
    people = first_checks.People.of(small.experiment(folder))
    first_checks.refuse_early(small.experiment(folder), people, tmp_path / "run")


def test_too_little_memory_for_the_noise_of_earlier_rounds(folder, tmp_path, work, monkeypatch):
    """It is said before any work; without the vectors the same training would fit."""
    turns = {"sampling": "min-separation", "separation": 4, "noise": "square-root", "bands": 4}
    plain, noisy = small.experiment(folder), small.experiment(folder, plan=turns)
    weights = first_checks.parameter_count(first_checks.sized_model(plain))
    free = weights * (first_checks.BYTES_PER_WEIGHT + 2 * first_checks.BYTES_PER_NOISE)
    monkeypatch.setattr(first_checks, "available_memory", lambda: free)
    told = refused(noisy, tmp_path / "run")
    assert f"a model of {weights:,} weights with 3 vectors of earlier noise needs at least" in told
    assert "choose plan.bands or plan.buffers, or a smaller one" in told
    assert work == []
    people = first_checks.People.of(plain)
    first_checks.refuse_early(plain, people, tmp_path / "run")
    first_checks.refuse_early(noisy.changed(plan={"bands": 3}), people, tmp_path / "run")
    note = first_checks.noise_note(noisy, people)
    assert note.startswith(f"the noise of earlier rounds stays in memory: 3 vectors of {weights:,}")
    assert first_checks.noise_note(plain, people) is None


def test_checkpoints_are_counted_with_the_state_of_the_optimizer(folder):
    experiment = small.experiment(folder).changed(evaluation={"snapshot_every": 3})
    # After rounds 0, 3 and 6, and the last two; weights and the momentum in float32.
    assert first_checks.checkpoint_bytes(experiment, 1000) == 5 * 8 * 1000
    plain = experiment.changed(server={"optimizer": "sgd"})
    assert first_checks.checkpoint_bytes(plain, 1000) == 5 * 4 * 1000


def test_memory_is_known_here_or_not_at_all():
    free = first_checks.available_memory()
    assert free is None or free > 10**6


class TestNoNoise:
    """No privacy only for those who ask for it, at the command line and in Python."""

    def test_an_empty_experiment_is_refused(self, tmp_path):
        told = refused(Experiment(), tmp_path / "run")
        assert "says nothing about noise, without which nobody in chitchat is protected" in told
        assert "--epsilon 8 (privacy.target_epsilon) or plan.noise_multiplier" in told
        assert "--no-privacy (plan.noise_multiplier = 0)" in told

    def test_none_is_refused(self, tmp_path):
        assert "says nothing about noise" in refused(None, tmp_path / "run")

    @pytest.mark.parametrize(
        "changes",
        [
            {"plan": {"noise_multiplier": 0.0}},
            {"plan": {"noise_multiplier": 1.0}},
            {"plan": {"noise_stddev": 0.1}},
            {"plan": {"clipping": "none"}},
            {"privacy": {"target_epsilon": 8.0}},
        ],
    )
    def test_what_is_said_is_enough(self, changes):
        plans.refuse_unsaid_noise(Experiment().changed(**changes))

    def test_every_phase_has_to_say_it(self):
        phases = [{"rounds": 50, "plan": {"noise_multiplier": 1.0}}, {"rounds": 50}]
        experiment = Experiment().changed(phases=phases)
        with pytest.raises(ValueError, match="says nothing about noise"):
            plans.refuse_unsaid_noise(experiment)
        phases[1] = {"rounds": 50, "plan": {"noise_multiplier": 0.0}}
        plans.refuse_unsaid_noise(Experiment().changed(phases=phases))


def test_a_plan_whose_noise_is_still_to_be_solved_for_is_not_judged_without_it(folder, tmp_path):
    adaptive = {"bit_noise_stddev": 1.0}
    experiment = small.experiment(
        folder,
        plan={"noise_multiplier": None, "adaptive": adaptive},
        privacy={"target_epsilon": 8.0},
    )
    people = first_checks.People.of(experiment)
    first_checks.refuse_early(experiment, people, tmp_path / "run")
