"""Trainings whose noise is taken back: copies, edits, phases and branches.

What any run does when it is killed, resumed or ended by a budget is in test_contract.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tacit.privacy.events import Horizon
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.train import train
from tests.runs.small import experiment, files_of
from tests.runs.test_resume import Died, dies

BUFFERED = {"sampling": "min-separation", "separation": 3, "noise": "blt", "buffers": 2}


def correlated(folder, **changes):
    return experiment(folder, plan=BUFFERED | changes.pop("plan", {}), **changes)


def interrupted(folder, run, monkeypatch) -> None:
    """Three rounds done, and the fourth charged and drawn, but not saved."""
    with monkeypatch.context() as patch:
        dies(patch, Checkpoints, "write", call=5, after=False)
        with pytest.raises(Died):
            train(correlated(folder), run)
    assert Checkpoints(run / "checkpoints").legs()[-1] == 3


def charged(run: Path) -> list[tuple[int, int, str, int]]:
    entries = Ledger.read(run / "ledger.jsonl").entries
    events = [(entry, entry.event) for entry in entries if isinstance(entry.event, Horizon)]
    return [(entry.round, entry.attempt, e.horizon, e.rounds) for entry, e in events]


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    return train(correlated(folder), tmp_path_factory.mktemp("whole") / "run")


def test_a_whole_run_is_one_horizon(whole):
    assert charged(whole.path) == [(n, 0, "main 0.0", n + 1) for n in range(6)]
    [plan] = whole.plans()
    assert whole.ledger.composition().costly() == plan.releases(6).counts
    assert "no sampling assumed (each user at most twice, at least 3 rounds apart)" in (
        whole.guarantee().claim
    )


def test_copies_of_an_interrupted_run_end_with_the_same_bits(folder, whole, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        resumed = train(None, tmp_path / name, resume=True)
        assert files_of(resumed.path) == files_of(whole.path)


@pytest.mark.parametrize("leg", [0, 2])
def test_an_edited_proof_of_an_earlier_round_gets_no_noise_that_was_used(
    leg, folder, tmp_path, monkeypatch
):
    """Else the fourth round would be released twice, less other noise, and their difference show
    what was taken back.
    """
    interrupted(folder, tmp_path / "run", monkeypatch)
    proofs = tmp_path / "run" / "private" / "releases.jsonl"
    rows = [json.loads(line) for line in proofs.read_text().splitlines()]
    rows[leg]["hmac"] = "0" * 64
    proofs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(None, tmp_path / "run", resume=True)
    assert charged(tmp_path / "run") == [
        *((n, 0, "main 0.0", n + 1) for n in range(4)),
        (3, 1, "main 3.1", 1),
        (4, 0, "main 3.1", 2),
        (5, 0, "main 3.1", 3),
    ]


def test_lost_proofs_begin_a_horizon_that_is_paid_beside_the_first(folder, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    (tmp_path / "run" / "private" / "releases.jsonl").unlink()
    run = train(None, tmp_path / "run", resume=True)
    [plan] = run.plans()
    assert (
        run.ledger.composition().costly() == plan.releases(4).followed_by(plan.releases(3)).counts
    )


def test_another_clip_norm_begins_another_horizon(folder, tmp_path):
    phases = [{"rounds": 2}, {"rounds": 4, "plan": {"clip_norm": 0.2}}]
    run = train(correlated(folder, phases=phases), tmp_path / "run")
    assert charged(run.path) == [
        *((n, 0, "main 0.0", n + 1) for n in range(2)),
        *((n, 0, "main 2.0", n - 1) for n in range(2, 6)),
    ]
    first, second = run.plans()
    both = first.releases(2).followed_by(second.releases(4))
    assert run.ledger.composition().costly() == both.counts


def test_a_run_and_its_branch_may_both_go_on(folder, whole, tmp_path):
    branch = train(correlated(folder, seed=9), tmp_path / "branch", branch_from=(whole.path, 2))
    name = f"{branch.ledger.header.branch} 2.0"
    assert charged(branch.path)[2:] == [(n, 0, name, n - 1) for n in range(2, 6)]
    [plan] = branch.plans()
    expected = plan.releases(2).followed_by(plan.releases(4))
    assert branch.ledger.composition().costly() == expected.counts


def test_a_clip_norm_that_changes_within_a_horizon_is_refused(folder, tmp_path):
    for plan in (
        {"adaptive": {}},
        {"schedule": {"kind": "geometric", "factor": 0.9, "final_norm": 0.1}},
    ):
        with pytest.raises(ValueError, match="needs a clip norm that stays the same"):
            train(correlated(folder, plan=plan), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_noise_that_grows_is_refused_before_anything_is_written(folder, tmp_path):
    growing = {"noise": "banded", "strategy": {"kind": "banded", "values": [1, -3]}}
    del (plan := BUFFERED | growing)["buffers"]
    with pytest.raises(ValueError, match="at most 16 times as large as fresh noise"):
        train(experiment(folder, plan=plan), tmp_path / "run")
    assert not (tmp_path / "run").exists()
