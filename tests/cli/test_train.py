"""`tacit train` as a user meets it: runs, tables, JSON, resuming, branching, variants."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch

from tacit.cli import requests
from tacit.evaluation.accuracy import ACCURACIES
from tacit.runs.run import Run
from tacit.runs.session import TrainingProgress
from tests.cli.training import (
    CORPUS,
    ROUNDS,
    SETTINGS,
    TINY,
    flat,
    refused,
    train,
    weights,
    with_tokenizer,
)


@pytest.fixture(scope="module", autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(folder):
    """A seeded run of a few rounds, and what it printed."""
    path = folder / "first"
    code, out, err = train("mcmahan2018", "--run", path, "--rounds", ROUNDS, "--seed", 3, *TINY)
    assert code == 0, err
    return types.SimpleNamespace(path=path, out=out, err=err)


@pytest.fixture(scope="module")
def interrupted(folder):
    """The same run, killed by an error after round 2: what a crash leaves behind."""
    import tacit.train

    path = folder / "interrupted"
    options = {"corpus.source": CORPUS, "rounds": ROUNDS, "seed": 3, "privacy.delta": 1e-3}
    [request] = requests.requests(
        "mcmahan2018", path, requests.all_settings([with_tokenizer(s) for s in SETTINGS], options)
    )

    def stop(now: TrainingProgress) -> None:
        if now.leg == 2 and now.done == 1:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        tacit.train.train(request.experiment, path, observer=stop)
    return path


def test_the_table_ends_with_what_the_model_has_to_beat(first):
    result = Run.open(first.path).directory.result()
    assert list(result["baselines"]) == ["start", "unigram", "bigram"]
    for name in ("the starting model", "the test users' unigram"):
        assert f"top-1 of {name}" in first.out
    best = max(row["accuracy_top1"] for row in result["baselines"].values())
    assert ("is right less often" in flat(first.out)) == (best > result["accuracy_top1"])


def test_the_output_says_what_was_reached_what_it_cost_and_what_to_do_next(first):
    run = Run.open(first.path)
    assert run.is_complete
    assert run.round == ROUNDS
    for text in ("top-1 accuracy", "top-3", "top-5", "perplexity", "epsilon at delta 0.001"):
        assert text in first.out
    assert run.guarantee().claim in flat(first.out)
    assert f'tacit predict {first.path} "see you"' in first.out
    assert "tacit export" not in first.out  # a simulation is not for release


def test_without_a_terminal_there_is_one_line_for_each_evaluation(first):
    lines = [line for line in first.err.splitlines() if line.startswith("round ")]
    assert [line.partition(":")[0] for line in lines] == [f"round {n} of 6" for n in (0, 2, 4, 6)]
    assert re.search(
        r"top-1 \d+\.\d\d% \(\d+\.\d\d% if UNK competes\), perplexity [\d.,e+]+, epsilon [\d.]+;"
        r" .* rounds/min, about \S+ left$",
        lines[1],
    )
    assert "tokenizing" in first.err


def test_the_experiment_holds_what_the_options_say(first):
    experiment = Run.open(first.path).experiment
    assert experiment.name == "mcmahan2018"
    assert experiment.corpus.source == CORPUS
    assert (experiment.rounds, experiment.seed, experiment.privacy.delta) == (ROUNDS, 3, 1e-3)
    assert experiment.model.options == {"embedding_size": 8, "cells": 8}
    assert experiment.plan.noise_multiplier == 1
    assert experiment.plan.noise_stddev is None


def test_json_is_the_result_and_nothing_else(folder, first):
    path = folder / "json"
    words = ["--seed", 3, "--json", "--quiet", "--keep-key"]
    code, out, err = train("mcmahan2018", "--run", path, "--rounds", ROUNDS, *TINY, *words)
    found = json.loads(out)
    assert (code, err) == (0, "")
    kept = json.loads((path / "result.json").read_text())
    assert kept.pop("sha256")
    assert found == kept
    assert found["run"] == str(path)
    assert found["ending"] == "complete"
    assert found["rounds"] == ROUNDS
    assert found["simulation"] is True
    assert found["key_kept"] is True
    assert (path / "private" / "key").exists()
    assert found["epsilon"]["pld"] > 0
    assert {*ACCURACIES, "perplexity", "tokens", "claim"} <= set(found)
    assert {f"{name}_smoothed" for name in ACCURACIES} <= set(found)
    assert weights(path, ROUNDS) == weights(first.path, ROUNDS)


def test_a_run_that_was_cut_short_goes_on_to_the_same_weights(interrupted, first):
    words = ["--rounds", ROUNDS, *TINY]
    message = refused("mcmahan2018", "--resume", "--run", interrupted, *words, "--rounds", 9)
    assert "holds another experiment: rounds is 6 there and 9 here" in message
    message = refused("mcmahan2018", "--resume", "--run", interrupted)
    assert "holds another experiment: rounds is 6 there and 5000 here" in message
    message = refused("--resume", "--run", interrupted, "--set", "plan.clip_norm=3")
    assert "plan.clip_norm is 15.0 there and 3.0 here" in message
    code, _, err = train("mcmahan2018", "--resume", "--run", interrupted, *words)
    assert code == 0, err
    assert weights(interrupted, ROUNDS) == weights(first.path, ROUNDS)
    ledgers = [(path / "ledger.jsonl").read_bytes() for path in (interrupted, first.path)]
    assert ledgers[0] == ledgers[1]


def test_a_complete_run_and_a_taken_directory_are_refused(first):
    assert f"--from {first.path}@6" in refused("--resume", "--run", first.path)
    before = (first.path / "ledger.jsonl").read_bytes()
    message = refused("mcmahan2018", "--run", first.path, "--rounds", 2, *TINY)
    assert "holds a run already: add --resume" in message
    assert (first.path / "ledger.jsonl").read_bytes() == before


def test_a_branch_starts_from_the_parents_model_and_pays_for_it(folder, first):
    path = folder / "branch"
    words = ["--rounds", 6, "--set", "plan.clip_norm=5", "--workers", 1, "--json", "--quiet"]
    code, out, err = train("--from", f"{first.path}@4", "--run", path, *words)
    assert code == 0, err
    branch, parent = Run.open(path), Run.open(first.path)
    assert weights(path, 4) == weights(first.path, 4)
    assert branch.experiment.plan.clip_norm == 5
    assert branch.experiment.plan.noise_multiplier == 1
    assert branch.guarantee().rounds == parent.guarantee().rounds == 6
    assert json.loads(out)["epsilon"]["pld"] == pytest.approx(parent.guarantee().epsilon["pld"])


def test_a_branch_meets_a_target_together_with_what_it_inherited(folder, first):
    path = folder / "further"
    words = ["--rounds", 8, "--target-epsilon", 4, "--workers", 1, "--json", "--quiet"]
    code, out, err = train("--from", f"{first.path}@4", "--run", path, *words)
    assert code == 0, err
    assert 3.9 < json.loads(out)["epsilon"]["pld"] <= 4


def test_a_command_that_torchrun_repeats_goes_on_with_its_own_run_only(first, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    words = ["mcmahan2018", "--run", first.path, "--rounds", ROUNDS, "--seed", 3, *TINY]
    assert "add --resume" in refused(*words)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "is complete after 6 rounds" in refused(*words)
    assert "holds another experiment" in refused(*words, "--set", "plan.clip_norm=2")


def test_branches_that_cannot_be_are_refused(folder, first):
    def branch(*words: object, at: object = f"{first.path}@4") -> str:
        return refused("--from", at, "--run", folder / "no", *words)

    assert "the nearest is 6" in branch("--rounds", 9, at=f"{first.path}@7")
    assert "there is no run at" in branch("--rounds", 9, at=folder / "nowhere@2")
    assert "must be RUN@ROUND" in branch(at=first.path)
    assert "must be RUN@ROUND" in branch(at=f"{first.path}@last")
    assert "add --rounds" in branch("--rounds", 4)
    assert "so model.name cannot be set with --from" in branch("--set", "model.name=gru")
    assert "so corpus.source cannot be set with --from" in branch("--corpus", "chitchat")
    assert "have spent as much or more already" in branch("--rounds", 9, "--target-epsilon", 1)
    assert "--resume goes on with a run" in branch("--resume")
    assert not (folder / "no").exists()


@pytest.mark.parametrize("how", ["option", "setting"])
def test_a_target_epsilon_takes_the_place_of_the_recipes_sigma(folder, how):
    path = folder / f"target-{how}"
    target = {"option": ["--target-epsilon", 8], "setting": ["--set", "privacy.target_epsilon=8"]}
    noise = TINY.index("plan.noise_multiplier=1")
    words = TINY[: noise - 1] + TINY[noise + 1 :]
    code, out, err = train(
        "mcmahan2018", "--run", path, "--rounds", 2, *words, *target[how], "--json", "--quiet"
    )
    assert code == 0, err
    assert 7.5 < json.loads(out)["epsilon"]["pld"] <= 8
    plan = Run.open(path).experiment.plan
    assert plan.noise_stddev is None
    assert plan.noise_multiplier is not None
    assert not Run.open(path).ledger.header.simulation
    assert not (path / "private" / "key").exists()


def test_a_noise_that_is_set_takes_the_place_of_a_recipes_target(tmp_path):
    for settings, target in (([], 2.0), (["plan.noise_multiplier=3"], None)):
        [request] = requests.requests("bagdasaryan2022", tmp_path / "run", settings, variant="lstm")
        assert request.experiment is not None
        assert request.experiment.noise_target == target


def test_a_budget_stops_the_run_and_the_output_says_so(folder):
    path = folder / "budget"
    words = ["--rounds", 50, "--budget-epsilon", 3, "--population", 100]
    code, out, err = train("mcmahan2018", "--run", path, *TINY, *words)
    assert code == 0, err
    assert "Stopped early" in out
    assert f"tacit export {path}" in out
    run = Run.open(path)
    assert 0 < run.round < 50
    assert run.guarantee().epsilon["pld"] <= 3
    assert run.experiment.plan.population == 100
    assert run.experiment.plan.population_is_counted is False


def test_all_variants_are_trained_and_a_resume_skips_the_finished_ones(folder):
    path = folder / "variants"
    recipe = folder / "pair.toml"
    recipe.write_text(
        'extends = "mcmahan2018"\nrounds = 2\n'
        "[variants.low.plan]\nclip_norm = 1.0\n[variants.high.plan]\nclip_norm = 5.0\n"
    )
    words = [recipe, "--run", path, *TINY, "--seed", 1, "--json", "--quiet"]
    code, out, err = train(*words)
    assert code == 0, err
    found = json.loads(out)
    assert [Path(one["run"]).name for one in found] == ["low", "high"]
    assert [one["clip_norm"] for one in found] == [1.0, 5.0]
    high = weights(path / "high", 2)

    low = weights(path / "low", 2)
    for file in sorted((path / "low").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (path / "low").rmdir()
    code, out, err = train(*words[:-1], "--resume")
    assert code == 0, err
    assert [one["rounds"] for one in json.loads(out)] == [2, 2]
    assert weights(path / "low", 2) == low
    assert weights(path / "high", 2) == high
    assert "low: round 2 of 2" in err
    assert "high" not in err

    assert "holds a run already" in refused(*words)
    assert "clip_norm is 1.0 there and 2.0 here" in refused(
        *words, "--resume", "--set", "plan.clip_norm=2"
    )
    assert "several variants; name the RECIPE" in refused("--resume", "--run", path)
    code, out, _ = train(*words[:-2], "--resume")
    assert code == 0
    assert f"tacit compare {path}" in out


def test_one_variant_goes_into_the_directory_itself(folder):
    path = folder / "one"
    code, _, err = train(
        "mcmahan2018-tradeoff", "--variant", "start-flat-10", "--rounds", 1, "--run", path, *TINY
    )
    assert code == 0, err
    assert Run.open(path).experiment.name == "mcmahan2018-tradeoff/start-flat-10"


def test_workers_are_handed_to_the_engine(tmp_path, monkeypatch):
    from tacit.engines import engine as processes

    asked = []
    serial = processes.engine_for

    def engine_for(model, workers):
        asked.append(workers)
        return serial(model, 1)

    monkeypatch.setattr(processes, "engine_for", engine_for)
    for number, words in enumerate(([], ["--workers", "3"])):
        run = ["--run", tmp_path / str(number), "--rounds", 1, "--quiet"]
        code, _, err = train("mcmahan2018", *run, *TINY[:2], *TINY[4:], *words)
        assert code == 0, err
    assert asked == [processes.available_cores(), 3]


def test_the_vectorized_engine_reaches_the_same_figures(tmp_path):
    """Without noise: its sums differ in their last bits, and other sums get other noise."""
    figures = []
    for engine in ("vectorized", "processes"):
        words = ["--rounds", ROUNDS, "--seed", 3, *TINY, "--engine", engine, "--json", "--quiet"]
        words += ["--set", "plan.noise_multiplier=0"]
        code, out, err = train("mcmahan2018", "--run", tmp_path / engine, *words)
        assert code == 0, err
        figures.append(json.loads(out)["perplexity"])
    assert figures[0] == pytest.approx(figures[1], rel=2e-3)


@pytest.mark.slow
def test_two_processes_end_with_the_same_weights(tmp_path, first):
    words = ["--rounds", ROUNDS, "--seed", 3, *TINY, "--workers", 2]
    code, _, err = train("mcmahan2018", "--run", tmp_path / "run", *words)
    assert code == 0, err
    assert weights(tmp_path / "run", ROUNDS) == weights(first.path, ROUNDS)


def test_tensorboard_gets_held_out_metrics_only(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def close(self):
            written.append("closed")

    path = tmp_path / "run"
    words = ["mcmahan2018", "--run", path, "--rounds", 2, *TINY, "--quiet", "--tensorboard"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "--tensorboard needs the package tensorboard" in refused(*words)
    assert not path.exists()
    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    code, _, err = train(*words)
    assert code == 0, err
    assert written[0] == (str(path / "tensorboard"), 0)
    assert written[-1] == "closed"
    names = {name.removeprefix("held_out/") for name, _ in written[1:-1]}
    assert names == set(Run.open(path).metrics()[-1]) - {"round"}
