"""The whole of it, with real processes, TLS, and kill -9; a server and eight clients."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.participations import FILE, Participations
from tests.federation.small import charges_of, in_turns, models_of, simulated

HERE = Path(__file__).parent


@pytest.mark.slow
def test_a_federation_survives_kills_and_bad_clients_with_the_bits_of_its_simulation(
    tmp_path, monkeypatch
):
    """One client is killed, the server in every phase of a round, three clients send what is not a
    number, far too large, of another shape, replayed or stale, and a stranger is turned away."""
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    done = subprocess.run(
        [sys.executable, str(HERE / "processes.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    logs = {log.name: log.read_text()[-3000:] for log in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stderr[-3000:], logs)
    facts = json.loads(done.stdout)
    assert facts["endings"].pop("whole") == 0, logs
    assert set(facts["endings"].values()) == {-9}, (facts, logs)
    assert facts["stranger"] == 2
    assert "has to be enrolled" in logs["stranger.log"]
    for hostile in facts["hostile"].values():
        assert hostile["answers"] > 0
        assert hostile["replays taken"] == 0
    assert facts["hostile"]["6"]["taken"] < facts["hostile"]["6"]["answers"]  # refused unread

    run, people = tmp_path / "run", facts["people"]
    record = Participations(run / "private" / FILE)
    there = [record.of(round, 0) for round in range(10)]
    turns = {person: sum(person in row for row in there) for person in people}
    assert all(turns[person] == 5 for person in people[1:5])  # in every round of their turn
    assert turns[people[5]] == turns[people[6]] == 0
    assert turns[people[7]] == 1  # its first answer was right, and all others were that one again
    assert turns[people[0]] < 5  # it was killed
    assert sum(len(row) for row in there[1::2]) >= 20  # the server was killed in rounds with people

    simulated(in_turns(tmp_path / "world", 10), tmp_path / "alone", like=run)
    assert models_of(run) == models_of(tmp_path / "alone")
    assert charges_of(run) == charges_of(tmp_path / "alone")
