"""Trainings between hosts of their own, over a network that delays, loses and cuts off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.participations import FILE, Participations
from tacit.privacy.ledger import Ledger
from tacit.train import train
from tests.federation.hosts import UNSHARED, what_is_missing
from tests.federation.members import SecureWorld
from tests.federation.small import PEOPLE, charges_of, in_turns, models_of, simulated

SCRIPT = Path(__file__).parent / "network_processes.py"


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train over a bad network; what came of it, and who took part in each round."""
    if missing := what_is_missing():
        pytest.skip(f"no network of several hosts can be made here: {missing}")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))

    def run(mode):
        done = subprocess.run(
            [*UNSHARED, sys.executable, str(SCRIPT), str(tmp_path), mode],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        logs = {log.name: log.read_text()[-3000:] for log in tmp_path.glob("*.log")}
        assert done.returncode == 0, (done.stderr[-3000:], logs)
        facts = json.loads(done.stdout)
        assert facts["ending"] == 0, (facts, logs)
        assert facts["lost"] > 0.01 * facts["passed"] > 1  # 2% on average
        assert facts["held"], facts
        assert min(facts["held"]) > 0  # each time, somebody spoke who was cut off
        record = Participations(tmp_path / "run" / "private" / FILE)
        entries = Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
        rounds = [entry.round for entry in entries if entry.kind == "round"]
        return facts, [set(record.of(number, 0)) for number in rounds]

    return run


def assert_same(run, alone):
    assert models_of(run) == models_of(alone)
    assert charges_of(run) == charges_of(alone)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clear", "secure"])
def test_delay_loss_and_a_partition_in_a_round_leave_the_bits_as_they_are(mode, tmp_path, trained):
    facts, there = trained(mode)
    assert facts["cuts"] == 3
    assert sum(map(len, there)) == PEOPLE * len(there) / (2 if mode == "clear" else 1)  # everybody
    world = tmp_path / "world"
    wanted = in_turns(world, 6) if mode == "clear" else SecureWorld(tmp_path / "other", 3).simulated
    train(wanted, tmp_path / "alone", progress=False)
    assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_a_client_that_stays_cut_off_is_left_out_and_the_others_go_on(tmp_path, trained):
    facts, there = trained("absent")
    assert facts["cuts"] == 1
    cut = facts["people"][0]
    others = [len(row - {cut}) for row in there]
    assert others[::2] == others[:1] * 3  # all others, whenever it was their turn
    assert others[1::2] == others[1:2] * 3
    assert 1 <= sum(cut in row for row in there) < 3  # of its three turns
    simulated(in_turns(tmp_path / "world", 6), tmp_path / "alone", like=tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "alone")
