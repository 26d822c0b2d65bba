"""`tacit ledger`: what a run cost, and one sentence if the book was touched."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.privacy.accountants import accountant_named
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge
from tacit.runs.run import Run
from tacit.train import train
from tests.runs.small import experiment, make_folder


@pytest.fixture
def tacit(command):
    return command("ledger")


@pytest.fixture
def copied(private_run, tmp_path):
    """A run that may be damaged."""
    shutil.copytree(private_run, tmp_path / "run")
    return tmp_path / "run"


def test_what_scripts_rely_on(tacit, private_run):
    found = tacit.json(private_run)
    ledger = Ledger.read(private_run / "ledger.jsonl")
    assert found["intact"] is True
    assert found["rounds"] == 6
    assert found["delta"] == 1e-3
    pld = accountant_named("pld").epsilon(ledger.composition(), 1e-3)
    assert found["epsilon"]["pld"] == pld
    assert {"pld", "rdp", "moments"} == set(found["epsilon"])
    assert found["claim"] == Run.open(private_run).guarantee().claim
    assert "User-level" in found["claim"]
    assert found["entries"] == {"tokenizer": 1, "round": 6}
    assert found["charged_again"] == []
    assert found["parent"] is None
    assert found["complete"] is True
    assert found["head"]["entries"] == 7


def test_the_budget_is_counted_down(tacit, private_run):
    found = tacit.json(private_run)
    assert found["budget"]["epsilon"] == 50.0
    assert found["budget"]["spent"] == found["epsilon"]["pld"]
    assert found["budget"]["left"] == pytest.approx(50.0 - found["epsilon"]["pld"])
    assert "of which" in tacit.says(private_run)


def test_people_read_the_claim_in_full(tacit, private_run):
    printed = tacit.says(private_run)
    assert Run.open(private_run).guarantee().claim in printed
    assert "epsilon by pld" in printed
    assert "as long as the checkpoint of round 6 says" in printed


def test_a_run_without_noise_has_no_epsilon(tacit, plain_run):
    found = tacit.json(plain_run)
    assert list(found["epsilon"].values()) == [None]
    assert "No differential privacy" in found["claim"]
    assert "infinity" in tacit.says(plain_run)


def test_a_simulation_says_so(tacit, simulated_run):
    found = tacit.json(simulated_run)
    assert found["simulation"] is True
    assert found["claim"].startswith("Simulation, not for release")


def test_a_branch_names_its_parent_and_a_repeated_round_is_listed(tacit, tmp_path):
    own = make_folder(tmp_path / "own")
    private_run, path = own / "parent", own / "branch"
    parent = train(experiment(own, seed=None), private_run)
    train(experiment(own, seed=None, rounds=8), path, branch_from=(private_run, 6))
    found = tacit.json(path)
    assert found["parent"] == {"run_id": parent.ledger.header.run_id, "entries": 7}
    assert found["rounds"] == 8
    assert found["epsilon"]["rdp"] > tacit.json(private_run)["epsilon"]["rdp"]
    assert "other run" in found["other_runs"]

    ledger = Ledger.open(path / "ledger.jsonl")  # as after a change to somebody's text
    last = ledger.entries[-1]
    ledger.charge(
        [
            Charge(
                kind="round",
                round=last.round,
                attempt=1,
                event=last.event,
                plan_hash=last.plan_hash,
            )
        ]
    )
    ledger.close()
    again = tacit.json(path)
    assert again["charged_again"] == [{"round": 7, "attempts": 2}]
    assert again["rounds"] == 9
    assert "7 (2 times)" in tacit.says(path)


def break_hash(lines):
    lines[3] = lines[3].replace('"attempt":0', '"attempt":1')
    return lines, "line 4"


def drop_last(lines):
    return lines[:-1], "line 8"


def reorder(lines):
    lines[2], lines[3] = lines[3], lines[2]
    return lines, "line 3"


@pytest.mark.parametrize("damage", [break_hash, drop_last, reorder])
def test_a_touched_ledger_is_named_with_its_line(tacit, copied, damage):
    path = copied / "ledger.jsonl"
    lines, where = damage(path.read_text().splitlines())
    path.write_text("\n".join(lines) + "\n")
    assert f"cannot be trusted at {where}" in tacit.refused(copied)
    code, out, err = tacit(copied, "--json")
    assert code == 2
    found = json.loads(out)
    assert found["intact"] is False
    assert where in found["why"]
    assert err.count("\n") == 1


def test_a_missing_ledger_is_not_intact(tacit, copied):
    (copied / "ledger.jsonl").unlink()
    code, out, _ = tacit(copied, "--json")
    assert (code, json.loads(out)["intact"]) == (2, False)


def test_a_bundle_has_a_ledger_too(tacit, command, private_run, tmp_path):
    command("export").says(private_run, "--out", tmp_path / "bundle")
    found = tacit.json(tmp_path / "bundle")
    assert found["checked_against"] == "its last line"
    assert found["epsilon"] == tacit.json(private_run)["epsilon"]
    assert found["claim"] == tacit.json(private_run)["claim"]


def test_epsilon_is_drawn(tacit, private_run, tmp_path):
    tacit.says(private_run, "--plot", tmp_path / "epsilon.svg")
    assert (tmp_path / "epsilon.svg").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["epsilon.svg"]


def test_a_run_that_is_refused_leaves_no_plot(tacit, copied, tmp_path):
    (copied / "result.json").write_text("[]")
    assert "damaged" in tacit.refused(copied, "--plot", tmp_path / "epsilon.png")
    assert not (tmp_path / "epsilon.png").exists()


def test_mistakes_are_one_sentence(tacit, private_run, plain_run, tmp_path):
    assert "there is no run at" in tacit.refused(tmp_path / "nothing")
    assert "is not a run directory" in tacit.refused(tmp_path)
    assert "must end in" in tacit.refused(private_run, "--plot", "epsilon.gif")
    assert "nothing to draw" in tacit.refused(plain_run, "--plot", tmp_path / "a.png")
