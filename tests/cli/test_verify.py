"""`tacit verify`: a table and exit code 0, or a sentence for each difference and exit code 1."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tacit.runs.run import Run


@pytest.fixture
def tacit(command):
    return command("verify")


@pytest.fixture
def copied(private_run, tmp_path):
    """A run that may be damaged."""
    shutil.copytree(private_run, tmp_path / "run")
    return tmp_path / "run"


def test_what_holds_is_a_table_the_head_and_the_claim(tacit, private_run):
    printed = tacit.says(private_run)
    run = Run.open(private_run)
    for word in ("chain", "charges", "experiment", "header", "claim", "digests", "key"):
        assert word in printed
    assert "Nothing differs." in printed
    assert run.ledger.head.hash in printed
    assert run.guarantee().claim in printed


def test_what_scripts_rely_on(tacit, private_run):
    found = tacit.json(private_run)
    assert found["verified"] is True
    assert found["differences"] == []
    assert found["kind"] == "run"
    assert found["claim"] == Run.open(private_run).guarantee().claim
    assert found["head"] == Run.open(private_run).ledger.head.to_json()
    assert {row["name"] for row in found["checks"]} >= {"chain", "claim", "key"}


def test_a_difference_is_one_sentence_and_exit_code_1(tacit, copied):
    with (copied / "experiment.toml").open("a") as file:
        file.write("# nothing\n")
    code, out, err = tacit(copied)
    assert (code, err) == (1, "")
    file = copied / "experiment.toml"
    assert f"{file} was changed: the ledger's header has another digest of it\n" in out
    assert "Nothing differs" not in out


def test_so_it_is_for_scripts(tacit, copied):
    (copied / "result.json").write_text("{}\n")
    code, out, _ = tacit(copied, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["verified"] is False
    assert all("result.json" in one for one in found["differences"])
    assert any("does not say claim" in one for one in found["differences"])


def test_a_broken_chain_is_exit_code_1_too(tacit, copied):
    (copied / "ledger.jsonl").write_text("")
    code, out, _ = tacit(copied, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["claim"] is found["head"] is None
    assert "the file is empty" in found["differences"][0]


def test_a_bundle_is_verified_by_itself(command, tacit, private_run, tmp_path, monkeypatch):
    command("export").says(private_run, "--out", tmp_path / "bundle")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "nobody"))
    assert tacit.json(tmp_path / "bundle")["kind"] == "bundle"
    assert not (tmp_path / "nobody").exists()


def test_a_path_that_holds_nothing_is_a_mistake(tacit, tmp_path):
    assert "there is no run or bundle at" in tacit.refused(tmp_path / "nowhere")
    assert "neither a run nor a bundle" in tacit.refused(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "not trained privately" in tacit.refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "there is no run or bundle at" in tacit.refused(tmp_path / "file")


@pytest.mark.slow
def test_a_model_of_ones_own_code_is_verified_without_running_it(tacit, small, tmp_path):
    """The code is nowhere to be found when the run is verified."""
    module = tmp_path / "mine"
    module.mkdir()
    (module / "own_model_of_a_test.py").write_text(OWN)
    training = TRAINING.format(folder=str(small), run=str(tmp_path / "run"), module=str(module))
    subprocess.run([sys.executable, "-c", training], check=True)
    shutil.rmtree(module)
    found = tacit.json(tmp_path / "run")
    assert found["differences"] == []
    [remark] = [one for row in found["checks"] for one in row["remarks"]]
    assert "your own code" in remark


OWN = """
import torch

class Words(torch.nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.inner = torch.nn.Embedding(vocab_size, 4)
        self.outer = torch.nn.Linear(4, vocab_size)

    def forward(self, tokens):
        return self.outer(self.inner(tokens))

def make(vocab_size):
    return Words(vocab_size)
"""
TRAINING = """
import sys
from pathlib import Path
sys.path[:0] = [{module!r}, "."]
from tacit.train import train
from tests.runs.small import experiment
model = {{"name": "own_model_of_a_test:make", "options": {{}}}}
base = experiment(Path({folder!r}), rounds=1).model_dump()
from tacit.config.experiment import Experiment
train(Experiment.from_data(base | {{"model": model}}, "test"), {run!r})
"""
