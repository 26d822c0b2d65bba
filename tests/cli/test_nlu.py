"""Intents and slots by the commands of both tasks; a mistake is one sentence and no files."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
import torch

from tacit.cli.requests import requests
from tacit.runs.run import NluRun
from tacit.runs.session import Session
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.predictions import understand
from tacit.train import train
from tests.tasks.nlu.small import BASE, of_method
from tests.tasks.nlu.writing import ROWS, json_lines, write, write_folder


@pytest.fixture
def tacit(command):
    return command("")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-nlu")


@pytest.fixture(scope="module")
def recipe(folder):
    """A training of a second."""
    return write(folder / "small.toml", of_method("edp-sgd").to_toml())


@pytest.fixture(scope="module")
def finished(folder):
    """The same, done; not to be written to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(of_method("edp-sgd"), folder / "finished")
    finally:
        torch.set_num_threads(threads)
    return folder / "finished"


def weights(run):
    return (run / "checkpoints" / "model-000003.safetensors").read_bytes()


def test_a_training_prints_its_claim_and_says_the_same_as_json(tacit, recipe, finished, tmp_path):
    found = tacit.json("train", recipe, "--run", tmp_path / "run", "--quiet")
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert kept.pop("sha256")
    assert found == kept
    assert found["claim"] == NluRun.open(tmp_path / "run").guarantee().claim
    assert (found["ending"], found["method"], found["key_kept"]) == ("complete", "edp-sgd", False)
    assert found["epsilon"]["pld"] > 0
    assert 0 <= found["test"]["intent_accuracy"] <= 1
    assert weights(tmp_path / "run") == weights(finished)  # the seed decides, not the command


def test_options_and_settings_reach_the_experiment(tacit, recipe, tmp_path):
    said = tacit.says(
        *("train", recipe, "--run", tmp_path / "run", "--epochs", 1, "--keep-key"),
        *("--set", "training.method=edp-sgd-paper", "--set", "noise.scaling=first-gradient"),
        *("--set", "noise.clip_norm=2"),
    )
    experiment = NluRun.open(tmp_path / "run").experiment
    assert (experiment.noise.clip_norm, experiment.training.epochs) == (2.0, 1)
    assert "No differential privacy" in said
    assert "The run key was kept" in said
    assert (tmp_path / "run" / "private" / "key").exists()


def test_an_interrupted_training_goes_on_to_the_same_weights(
    tacit, recipe, finished, tmp_path, monkeypatch
):
    run, save = tmp_path / "run", Session.save

    def interrupted(self, attempt):
        save(self, attempt)
        if self.leg == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "save", interrupted)
        code, _, err = tacit("train", recipe, "--run", run, "--quiet")
    assert code == 130
    assert f"interrupted after epoch 2; nothing is lost: tacit train --resume --run {run}" in err
    assert not (run / "result.json").exists()
    other = tacit.refused("train", "--resume", "--run", run, "--epochs", 5)
    assert "holds another experiment: training.epochs is 3 there and 5 here" in other
    found = tacit.json("train", "--resume", "--run", run, "--quiet")
    assert found["epochs"] == 3
    assert weights(run) == weights(finished)
    assert (run / "ledger.jsonl").read_bytes() == (finished / "ledger.jsonl").read_bytes()
    assert "is complete after 3 epochs" in tacit.refused("train", "--resume", "--run", run)


def test_a_run_goes_on_with_its_own_experiment_only(tacit, recipe, finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "result.json").unlink()
    other = ("train", recipe, "--resume", "--run", run, "--set", "noise.clip_norm=7")
    assert "holds another experiment: noise.clip_norm is 1.0 there" in tacit.refused(*other)


def test_evaluation_adds_up_by_intent(tacit, finished, folder):
    found = tacit.json("evaluate", finished)
    kept = json.loads((finished / "result.json").read_text())["test"]
    assert found["semantic_error_rate"] == kept["semantic_error_rate"]
    assert sum(row["utterances"] for row in found["by_intent"].values()) == found["utterances"]
    other = write(folder / "other.jsonl", json_lines())
    assert tacit.json("evaluate", finished, "--corpus", other)["utterances"] == len(ROWS)
    assert "must be test or valid, got 'train'" in tacit.refused(
        "evaluate", finished, "--part", "train"
    )
    assert "slot F1" in tacit.says("evaluate", finished, "--part", "valid")


def test_predict_says_the_intent_and_the_slots_of_a_run_and_of_its_bundle(
    tacit, finished, tmp_path, monkeypatch
):
    text = "play nina simone"
    expected = understand(NluRun.open(finished).stored(), text)
    said = tacit.json("predict", finished, text)
    assert said["intent"] == expected.intent
    assert [(slot["type"], slot["words"]) for slot in said["slots"]] == list(expected.slots)
    tacit.says("export", finished, "--out", tmp_path / "shared", "--not-for-release")
    assert tacit.json("predict", tmp_path / "shared", text) == said
    assert expected.intent in tacit.says("predict", finished, text)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n"))
    assert tacit.says("predict", finished).split()[0] == expected.intent
    assert "--top is for language models" in tacit.refused("predict", finished, text, "--top", 2)
    assert "nothing to understand" in tacit.refused("predict", finished, " ")


def test_an_audit_is_kept_in_the_private_folder(command, finished, tmp_path):
    run, tacit = shutil.copytree(finished, tmp_path / "run"), command("audit")
    found = tacit.json(run)
    assert found["internal"] is True
    kept = json.loads((run / "private" / "attack.json").read_text())
    assert kept["attacks"] == found["attacks"]
    assert {path.name for path in run.iterdir()} == {path.name for path in finished.iterdir()}
    code, out, errors = tacit(run, "--fail-if", "membership_auc>0.01")
    assert code == 1
    assert "the audit fails: membership_auc>0.01" in errors
    assert "membership of 62 utterances against 50 others" in out
    assert "loss" in out
    assert tacit(run, "--fail-if", "membership_auc>0.99")[0] == 0
    assert "has no figure memorized" in tacit.refused(run, "--fail-if", "memorized>0")
    assert "was trained on the attacked run's own data" in tacit.refused(run, "--shadow", finished)
    assert "strictly between 0 and 1" in tacit.refused(run, "--confidence", "2")
    for options in (["--ranks"], ["--samples", "9"], ["--membership"], ["--phrases", "x"]):
        assert f"{options[0]} is for language models" in tacit.refused(run, *options)


def test_recipes_of_intents_and_slots_are_listed_and_printed(tacit):
    rows = {row["name"]: row for row in tacit.json("recipes", "list") if row["task"] == "nlu"}
    assert "generated" in rows
    assert all(row["says"] for row in rows.values())
    code, out, _ = tacit("recipes", "show", "generated")
    assert code == 0
    assert "[training]" in out
    assert "did you mean 'dupuy2021-clc'" in tacit.refused("recipes", "show", "dupuy2021-cl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "RECIPE", "--rounds", "3"],
            "--rounds is for language models",
        ),
        (["train", "RECIPE", "--engine", "vectorized"], "--engine is for language models"),
        (["train", "mcmahan2018", "--epochs", "3"], "--epochs is for intent and slot models"),
        (["evaluate", "RUN", "--baselines"], "--baselines is for language models"),
        (["evaluate", "RUN", "--part", "train"], "must be test or valid, got 'train'"),
    ],
)
def test_options_of_the_other_task_are_refused(tacit, recipe, finished, tmp_path, words, message):
    known = {"RECIPE": recipe, "RUN": finished}
    run = ["--run", tmp_path / "run"] if words[0] == "train" else []
    assert message in tacit.refused(*(known.get(word, word) for word in words), *run)
    assert list(tmp_path.iterdir()) == []


WRONG = {
    "counts": (("one two", "O", "ask"), "2 tokens and 1 tags"),
    "a tag that continues nothing": (("one two", "O I-x", "ask"), "'I-x' of token 2 continues no"),
    "empty": (("", "", "ask"), "the utterance is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_utterance_is_named_by_file_and_line(tacit, recipe, tmp_path, name):
    row, message = WRONG[name]
    data = write(tmp_path / "set.jsonl", json_lines([ROWS[0], row, ROWS[2]]))
    said = tacit.refused("train", recipe, "--corpus", data, "--run", tmp_path / "run")
    assert f"line 2 of '{data}'" in said
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["set.jsonl"]


def test_an_intent_of_test_alone_is_refused(tacit, recipe, tmp_path):
    for part in ("train", "valid"):
        write_folder(tmp_path / "set" / part, [ROWS[0]])
    write_folder(tmp_path / "set" / "test", ROWS)
    wanted = ("train", recipe, "--corpus", tmp_path / "set", "--run", tmp_path / "run")
    said = tacit.refused(*wanted, "--set", "data.unseen_intents=refuse")
    assert "no utterance of train has the intent 'ask' (utterance 2 of test)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "20"], "training.batch_size must be at least training.workers"),
        (["--set", "noise.clipnorm=3"], "did you mean 'noise.clip_norm'?"),
        (["--set", "noise.clip_norm=nan"], "noise.clip_norm cannot be"),
        (["--set", "training.method=magic"], "training.method cannot be 'magic'"),
        (["--corpus", "nowhere"], "there is no set 'nowhere'"),
        (["--delta", "0.5"], "privacy.delta must be below 1/population"),
        (["--variant", "a"], "has no variant 'a'"),
        (["--set", "model.vocabulary=oracle"], "the model's guarantee would be void"),
        (["--set", "training.unit=user"], "does not say whose utterances these are"),
        (["--set", "training.batch_size=10000"], "is more than the"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_mistake_is_one_sentence_and_leaves_nothing(tacit, recipe, tmp_path, words, message):
    assert message in tacit.refused("train", recipe, "--run", tmp_path / "run", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_pretrained_folder_of_another_shape_is_refused(tacit, tmp_path):
    pytest.importorskip("transformers")
    from tacit.models.bert import BertSizes
    from tacit.tokenizers.wordpiece import PieceVocabulary
    from tacit_papers.dupuy2021.masked import MaskedModel

    texts = ["play the blue moon", "wake me at 7:30"] * 3
    pieces = PieceVocabulary.learn(texts, 60, provenance="public: made up")
    sizes = BertSizes(len(pieces), width=12, layers=1, heads=2, intermediate=16, positions=40)
    (tmp_path / "bert").mkdir()
    MaskedModel.new(sizes, pieces, np.ones(len(pieces), np.int64), 1).save(tmp_path / "bert")
    model = {"name": "bert", "pretrained": str(tmp_path / "bert"), "options": {"layers": 2}}
    wanted = NluExperiment.from_data(BASE | {"model": model}, "the test")
    recipe = write(tmp_path / "bert.toml", wanted.to_toml())
    said = tacit.refused("train", recipe, "--run", tmp_path / "run")
    assert "has num_hidden_layers 1, and the model wants 2: set its layers to 1" in said
    assert {path.name for path in tmp_path.iterdir()} == {"bert", "bert.toml"}


def test_runs_of_other_kinds_and_other_things_are_refused_and_left_alone(tacit, recipe, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "experiment.toml").write_text("")
    assert "has no checkpoint" in tacit.refused("train", "--resume", "--run", other)
    assert "holds no model" in tacit.refused("evaluate", other)
    assert "holds a run already: add --resume" in tacit.refused("train", recipe, "--run", other)
    assert "there is no run and no model at" in tacit.refused("evaluate", tmp_path / "missing")
    assert [path.name for path in other.iterdir()] == ["experiment.toml"]


def test_a_report_of_such_a_run_is_written_by_the_same_command(command, finished, tmp_path):
    found = command("report").json(finished, "--out", tmp_path / "page.html")
    assert found["task"] == "nlu"
    assert found["claim"] == NluRun.open(finished).guarantee().claim
    assert found["claim"] in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "page.json").read_text())["task"] == found["task"]
    assert not (finished / "report.html").exists()
    (tmp_path / "empty").mkdir()
    assert "is not a run directory" in command("report").refused(tmp_path / "empty")
    projected = ("--projected-cohort", 10, "--projected-population", 100)
    assert "a projection is for language models" in command("report").refused(finished, *projected)


def test_noise_that_is_set_and_a_target_that_solves_for_it_contradict_each_other(tacit, tmp_path):
    both = ("--set", "noise.noise_multiplier=5", "--target-epsilon", 3)
    said = tacit.refused("train", "generated", "--run", tmp_path / "run", *both)
    assert "solves for the noise, and --set noise.noise_multiplier sets it; leave one out" in said


@pytest.mark.parametrize(
    ("settings", "noise", "target"),
    [
        ([], None, 8.0),
        (["noise.noise_multiplier=5"], 5.0, None),
        (["privacy.target_epsilon=3"], None, 3.0),
    ],
)
def test_noise_that_is_set_takes_the_place_of_a_recipe_s_target(tmp_path, settings, noise, target):
    [request] = requests("generated", tmp_path / "run", settings)
    asked = request.experiment
    assert (asked.noise.noise_multiplier, asked.privacy.target_epsilon) == (noise, target)
