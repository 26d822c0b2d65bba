"""`tacit train` on bad input: one sentence, exit code 2, and nothing is touched."""

from __future__ import annotations

import pytest
import torch

from tests.cli.training import CORPUS, TINY, flat, refused, train

MISTAKES = {
    "nothing": ([], "a RECIPE (tacit recipes list)"),
    "recipe": (["mcmahan2081"], "did you mean 'mcmahan2018'?"),
    "recipe file": (["nowhere.toml"], "there is no recipe at nowhere.toml"),
    "key": (["mcmahan2018", "--set", "plan.clipnorm=3"], "did you mean 'plan.clip_norm'?"),
    "value": (["mcmahan2018", "--set", "plan.clip_norm=low"], "plan.clip_norm cannot be 'low'"),
    "no value": (["mcmahan2018", "--set", "plan.clip_norm"], "--set must be key=value"),
    "rounds": (["mcmahan2018", "--rounds", "0"], "rounds cannot be 0"),
    "phases": (
        ["mcmahan2018-tradeoff", "--variant", "then-flat-10", "--rounds", "5"],
        "rounds must be the sum of the phases' rounds",
    ),
    "cohort": (
        ["mcmahan2018", "--corpus", "synthetic:users=60,words=40"],
        "plan.cohort of 100 users a round is more than the 58 training users",
    ),
    "cohort of a variant": (
        ["mcmahan2018-cohort", "--corpus", "synthetic:users=1000,words=2"],
        "mcmahan2018-cohort/noised-1250: plan.cohort of 1250 users",
    ),
    "corpus": (["mcmahan2018", "--corpus", "nowhere"], "there is no corpus 'nowhere'"),
    "delta": (["mcmahan2018", *TINY, "--delta", "0.5"], "must be below 1/population"),
    "population": (
        ["mcmahan2018", *TINY, "--population", "5"],
        "is less than the 58 training users",
    ),
    "target and noise": (["mcmahan2018", *TINY, "--target-epsilon", "2"], "leave one out"),
    "target": (["mcmahan2018", "--target-epsilon", "-1"], "privacy.target_epsilon cannot be -1"),
    "target without a clip": (["fedavg", *TINY[:6], "--target-epsilon", "2"], "tacit: "),
    "variant": (["mcmahan2018-table2", "--variant", "sigma"], "it has sigma-0.003"),
    "variant of none": (["mcmahan2018", "--variant", "a"], "has no variant 'a'"),
    "variant alone": (["--resume", "--variant", "a"], "--variant needs the RECIPE"),
    "workers": (["mcmahan2018", *TINY, "--workers", "0"], "--workers must be at least 1"),
    "engine": (["mcmahan2018", *TINY, "--engine", "warp"], "must be processes or vectorized"),
    "device": (["mcmahan2018", *TINY, "--device", "tpu"], "must be cpu, cuda or mps"),
    "no run": (["--resume"], "there is no run at"),
    "option": (["mcmahan2018", "--round", "5"], "--round"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_one_sentence(tmp_path, name):
    words, message = MISTAKES[name]
    assert message in refused(*words, "--run", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_later_tokenizer_that_is_not_there_is_refused_before_the_first_round(tmp_path):
    recipe = tmp_path / "switch.toml"
    recipe.write_text(
        'extends = "mcmahan2018"\nrounds = 4\n[[phases]]\nrounds = 2\n'
        '[[phases]]\nrounds = 2\ntokenizer = { source = "nowhere.json" }\n'
    )
    words = [recipe, "--run", tmp_path / "run", *TINY]
    assert "there is no dictionary at nowhere.json" in refused(*words)
    assert list(tmp_path.iterdir()) == [recipe]


def test_an_accelerator_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["mcmahan2018", "--run", tmp_path / "run", *TINY[:2], *TINY[4:]]
    assert "must be one that torch has here" in refused(*words, "--device", "cuda")
    assert "--workers is for --engine" in refused(*words, "--device", "cuda", "--workers", "2")


def test_something_else_in_the_place_of_the_run_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("do not lose this")
    assert "exists and is not empty" in refused("mcmahan2018", "--run", tmp_path / "run", *TINY)
    assert "it has no experiment.toml" in refused("--resume", "--run", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


class TestPrivacyIsNotLeftOutInSilence:
    """A recipe without a word about noise is refused; --no-privacy says it."""

    def test_an_empty_recipe(self, tmp_path):
        empty = tmp_path / "empty.toml"
        empty.write_text("")
        words = (empty, "--run", tmp_path / "run", "--corpus", CORPUS)
        told = refused(*words)
        assert "empty says nothing about noise, without which nobody in" in told
        assert "give --epsilon 8" in told
        assert "say --no-privacy" in told
        assert not (tmp_path / "run").exists()

    def test_it_is_trained_without_when_that_is_asked_for(self, tmp_path):
        tiny = [word for word in TINY if word != "plan.noise_multiplier=1"]
        del tiny[tiny.index("--set", tiny.index("plan.cohort=10"))]
        words = ("mcmahan2018", "--run", tmp_path / "run", "--rounds", "1", *tiny)
        code, out, _ = train(*words, "--no-privacy")
        assert code == 0
        assert "No differential privacy: no noise is added to the updates." in flat(out)

    def test_it_contradicts_noise(self, tmp_path):
        words = ("mcmahan2018", "--run", tmp_path / "run", "--no-privacy")
        assert "privacy.target_epsilon asks for it" in refused(*words, "--target-epsilon", "8")
        assert "plan.noise_multiplier asks for it" in refused(*words, *TINY)

    def test_intents_are_learnt_by_plain_sgd(self):
        from tacit.cli.requests import no_privacy
        from tacit.tasks import recipes

        settings, unset = no_privacy("nlu", [])
        experiment = recipes.load("generated", settings, unset=unset).only()
        assert experiment.training.method == "sgd"
        assert experiment.noise.noise_multiplier is None
        assert experiment.privacy.target_epsilon is None


class TestUnset:
    """--unset KEY: as if the recipe did not name it."""

    def test_the_default_comes_back(self):
        from tacit.tasks import recipes

        plain = recipes.load("mcmahan2018-small", unset=["plan.noise_stddev"]).only()
        assert plain.plan.noise_stddev is None
        assert recipes.load("mcmahan2018-small").only().plan.noise_stddev is not None
        variant = recipes.load("demo", variant="fedavg", unset=["plan.noise_multiplier"])
        assert variant.only("fedavg").plan.noise_multiplier is None
        without = recipes.load("demo", unset=["model.pretrain"])
        assert all(each.model.pretrain is None for each in without.experiments.values())

    def test_mistakes(self, tmp_path):
        words = ("mcmahan2018-small", "--run", tmp_path / "run", "--corpus", CORPUS)
        told = refused(*words, "--unset", "plan.noise_multiplyer")
        assert "has no key 'plan.noise_multiplyer' to unset; did you mean" in told
        assert "'plan.noise_multiplier'" in told
        assert "has no key 'plans.cohort'" in refused(*words, "--unset", "plans.cohort")
        both = ("--unset", "plan.cohort", "--set", "plan.cohort=5")
        assert "plan.cohort is both set and unset" in refused(*words, *both)
        assert "says nothing about noise" in refused(*words, "--unset", "plan.noise_stddev")
        assert "--set must be key=value" in refused(*words, "--set", "plan.noise_stddev=")


def test_what_would_be_wasted_is_said_before_the_training_and_after_no_refusal(
    tmp_path, monkeypatch
):
    from tacit.planner import waste

    words = ("mcmahan2018", "--run", tmp_path / "run", "--rounds", "1", *TINY)
    monkeypatch.setattr(waste, "_SHORT", 0.0)
    monkeypatch.setattr(waste, "LOUD", 3.0)
    code, _, err = train(*words)
    assert code == 0
    first, second = err.splitlines()[:2]
    assert "mcmahan2018 is meant for about 763,430 users" in first
    assert "times as long as clipping at" in second
    told = refused("mcmahan2018", "--run", tmp_path / "other", *TINY, "--set", "plan.cohort=999")
    assert "plan.cohort of 999" in told
