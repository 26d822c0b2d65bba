"""`tacit train` without a recipe, and the plan that it follows."""

import json
import tomllib

import pytest

from tacit.planner import proposal
from tacit.planner.speed import TrainingSpeed
from tacit.runs.directory import RunDirectory
from tests.cli.training import flat, refused, tacit
from tests.planner.test_proposal import start  # noqa: F401  (a fixture)

CORPUS = "synthetic:users=120,words=30"


@pytest.fixture(autouse=True)
def _fixed_speed(monkeypatch):
    speed = TrainingSpeed(200.0, 0.01, 20_000.0)
    monkeypatch.setattr(proposal, "measure_speed", lambda *_, **__: speed)


def asked(start, *more, noise=("--noise", "independent")):  # noqa: F811
    words = ["--corpus", CORPUS, "--start", start, "--minutes", "0.5", "--workers", "1"]
    return [*words, "--epsilon", "6", "--delta", "1e-3", *noise, *more]


def test_a_corpus_and_an_epsilon_are_enough(start, tmp_path):  # noqa: F811
    code, out, err = tacit(
        "train", "--run", tmp_path / "run", *asked(start, "--seed", "1", noise=())
    )
    assert code == 0, err
    assert "people a round" in flat(err)  # the plan comes first
    directory = RunDirectory.open(tmp_path / "run")
    result = directory.result()
    assert result["epsilon"][result["accountant"]] <= 6
    assert directory.experiment().privacy.target_epsilon == 6
    assert "epsilon" in out


def test_the_plan_is_what_is_trained(start, tmp_path):  # noqa: F811
    code, out, _ = tacit("plan", "--out", tmp_path / "plan.toml", "--json", *asked(start))
    assert code == 0
    plan = json.loads(out)
    written = tomllib.loads((tmp_path / "plan.toml").read_text())
    assert written == plan["experiment"]
    run = tmp_path / "run"
    code, _, err = tacit("train", tmp_path / "plan.toml", "--run", run, "--workers", "1")
    assert code == 0, err
    assert RunDirectory.open(run).result()["rounds"] == plan["rounds"]


def test_a_setting_changes_the_plan(start, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    words = asked(start, "--set", "rounds=2", "--set", "evaluation.every=2", "--quiet")
    code, _, err = tacit("train", "--run", run, *words)
    assert code == 0, err
    assert RunDirectory.open(run).result()["rounds"] == 2


def test_why_each_value_is_so_is_said_when_asked(start):  # noqa: F811
    code, out, _ = tacit("plan", "--explain", *asked(start))
    assert code == 0
    assert "update.tokens_per_round" in out
    assert "epsilon x 2" in flat(out)


def test_minutes_with_a_recipe_are_refused(tmp_path):
    words = ("mcmahan2018-small", "--run", tmp_path / "run", "--minutes", "3")
    assert "leave RECIPE out" in refused(*words)


@pytest.mark.parametrize("option", [["--rounds", "5"], ["--variant", "x"], ["--no-privacy"]])
def test_what_changes_a_recipe_needs_one(option, start, tmp_path):  # noqa: F811
    assert f"{option[0]} changes a RECIPE" in refused(
        "--run", tmp_path / "r", *asked(start, *option)
    )


def test_without_a_corpus_it_says_what_to_name(tmp_path):
    assert "name a --corpus to plan for" in refused("--run", tmp_path / "run")


def test_a_plan_for_a_corpus_chooses_its_own_cohort(start):  # noqa: F811
    code, _, err = tacit("plan", "--cohort", "5", *asked(start))
    assert code == 2
    assert "--cohort is chosen by the plan" in err


def test_a_plan_without_people_says_what_to_give():
    code, _, err = tacit("plan", "--epsilon", "8")
    assert code == 2
    assert "--population" in err


def test_a_run_that_is_there_is_not_planned_over(start, tmp_path):  # noqa: F811
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text("")
    assert "run" in refused("--run", tmp_path / "run", *asked(start))
