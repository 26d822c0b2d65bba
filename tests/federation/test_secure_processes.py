"""Secure sums over real processes, TLS and kill -9."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.participations import FILE, Participations
from tests.federation.members import SecureWorld
from tests.federation.small import charges_of, models_of, simulated

HERE = Path(__file__).parent


def ran(words, folder):
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=1500,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    logs = {log.name: log.read_text()[-3000:] for log in folder.rglob("*.log")}
    assert done.returncode == 0, (done.stderr[-3000:], logs)
    return json.loads(done.stdout), logs


@pytest.mark.slow
def test_clients_that_are_killed_in_a_sum_are_recovered_and_too_few_are_not_charged(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    facts, logs = ran([str(HERE / "secure_processes.py"), str(tmp_path)], tmp_path)
    assert [facts[f"client {one}"] for one in range(3)] == [-9, -9, -9]
    assert facts["too few"] == [2, [[0, 0], [1, 0], [2, 0]]]
    assert "round 3 has no sum after 3 tries" in logs["server.log"]
    assert facts["killed"] == [-9, [[0, 0], [1, 0], [2, 0], [3, 0]]]
    assert facts["whole"] == [0, [[round, 0] for round in range(5)]], logs

    run, people = tmp_path / "run", facts["people"]
    record = Participations(run / "private" / FILE)
    there = [set(record.of(round, 0)) for round in range(5)]
    assert there[0] == set(people[1:])  # one had shared its keys and sent nothing
    assert there[1] == set(people[1:])  # the other had sent its input, which is in the sum
    assert there[2:] == [set(people[2:])] * 3
    assert not (run / "private" / "secure-sum.npz").exists()

    simulated(SecureWorld(tmp_path / "other", 5).simulated, tmp_path / "alone", like=run)
    assert models_of(run) == models_of(tmp_path / "alone")
    assert charges_of(run) == charges_of(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["independent", "distributed"])
def test_a_trial_on_one_machine_ends_with_the_bits_of_its_simulation(tmp_path, monkeypatch, noise):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    words = ["-P", "-m", "tacit.cli.main", "federate", "try", "--secure-sum", "--clients", "5"]
    words += ["--noise", noise]
    row, _ = ran([*words, "--rounds", "2", "--out", str(tmp_path / "trial"), "--json"], tmp_path)
    assert row["same_bits"]
    assert row["secure_sum"]
    assert row["answered"] == [5, 5]
    said = (tmp_path / "trial" / "client-0.log").read_text()
    assert "secure sums only, among 5 clients" in said
    assert "update is computed, to be summed" in said
    assert ("follows from a seed, so that it hides nothing" in said) == (noise == "distributed")
