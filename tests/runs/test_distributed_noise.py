"""Trainings whose users add the noise.

What any run does when it is killed, resumed or ended by a budget is in test_contract.py.
"""

from __future__ import annotations

import pytest

from tacit.engines.engine import SerialEngine
from tacit.kernels.local_sgd import local_sgd_for
from tacit.privacy.events import Adjacency, TurnsDistributedGaussian
from tacit.privacy.ledger import Ledger
from tacit.train import train
from tests.runs.small import TRAINED, experiment, files_of

IN_TURNS = {
    "sampling": "min-separation",
    "separation": 3,
    "cohort": TRAINED / 3,
    "noise": "distributed",
}
GROUPS = (18, 13, 13)  # whose turn it is, by their ids


def distributed(folder, **changes):
    return experiment(folder, plan=IN_TURNS | changes.pop("plan", {}), **changes)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    return train(distributed(folder), tmp_path_factory.mktemp("whole") / "run")


def test_a_whole_run_is_one_horizon_whose_turns_are_charged_by_what_the_fewest_add(whole):
    entries = [entry for entry in whole.ledger.entries if entry.kind == "round"]
    assert all(isinstance(entry.event, TurnsDistributedGaussian) for entry in entries)
    assert [entry.event.rounds for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert whole.ledger.header.adjacency is Adjacency.ZERO_OUT
    [plan] = whole.plans()
    assert whole.ledger.composition().costly() == plan.releases(6).counts
    assert plan.releases(6).counts == ((plan.shared_noise.each(), 2),)


def test_the_claim_says_what_is_hidden_and_by_whose_noise(whole):
    claim = whole.guarantee().claim
    assert "under zero-out-one adjacency" in claim
    assert (
        "each user at most twice, at least 3 rounds apart, at least 9 honest ones a round" in claim
    )
    assert "independent discrete Gaussian noise of 1 times the sensitivity of each turn" in claim
    assert "accounted by rdp" in claim


def test_an_epsilon_is_met_by_the_accountant_that_is_sound(folder, tmp_path):
    wanted = distributed(
        folder,
        plan={"noise_multiplier": None},
        privacy={"target_epsilon": 6.0, "accountant": None},
    )
    run = train(wanted, tmp_path / "run")
    assert run.experiment.privacy.accountant == "rdp"
    assert 5.98 < run.guarantee().epsilon["rdp"] <= 6


def test_a_group_that_is_too_small_is_refused_before_anything_is_written(folder, tmp_path):
    least = min(GROUPS)
    train(distributed(folder, rounds=1, plan={"survivors": least}), tmp_path / "enough")
    with pytest.raises(ValueError, match=f"round {GROUPS.index(least)} has {least} users, and"):
        train(distributed(folder, plan={"survivors": least + 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_round_that_loses_too_many_is_not_charged(folder, tmp_path):
    class Losing(SerialEngine):
        """Computes rounds before the fourth, and then of two users."""

        def sum(self, task, job, users, progress=None):
            return super().sum(task, job, users[: 2 if job.round == 3 else None], progress)

    with pytest.raises(ValueError, match="round 3 has 2 users, and the noise that they share is"):
        train(
            distributed(folder),
            tmp_path / "run",
            engine=lambda model: Losing(local_sgd_for(model)),
        )
    entries = Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    assert [entry.round for entry in entries if entry.kind == "round"] == [0, 1, 2]


def test_workers_give_the_bits_of_one_process(folder, whole, tmp_path):
    run = train(distributed(folder), tmp_path / "run", workers=2)
    assert files_of(run.path) == files_of(whole.path)
