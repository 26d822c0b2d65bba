"""`tacit train` on bad input: one sentence, exit code 2, and nothing is touched."""

from __future__ import annotations

import pytest
import torch

from tests.cli.training import TINY, refused

MISTAKES = {
    "nothing": ([], "name a RECIPE"),
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
