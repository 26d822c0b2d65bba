"""Silos as real processes, with TLS: the trial of the page, and sampling that is claimed."""

import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.own_ledger import Consent
from tacit.federation.participations import FILE, Participations
from tacit.federation.silo_ledger import SiloLedger
from tacit.federation.trial import Trial, ending, free_port, processes, started
from tacit.runs.run import Run

ROUNDS, WHO = 12, "the board of three schools"
SMALL = {
    "tokenizer.size": 200,
    "model.options.embedding_size": 8,
    "model.options.cells": 12,
    "plan.sampling": '"poisson"',
    "plan.cohort": 20,
    "plan.estimator": '"fixed"',
    "plan.clipping": '"flat"',
    "plan.clip_norm": 0.5,
    "plan.noise_multiplier": 1.0,
    "evaluation.max_tokens": 2000,
}


@pytest.mark.slow
def test_secure_sums_of_silos_that_are_processes_have_the_bits_of_the_simulation(tmp_path):
    words = ["federate", "try", "--silos", "--secure-sum", "--clients", "3", "--rounds", "2"]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "tacit.cli.main",
            *words,
            "--out",
            tmp_path / "trial",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["same_bits"], row["answered"], row["people"]) == (True, [3, 3], 58)


@pytest.mark.slow
def test_a_silo_that_is_killed_fails_its_round_and_comes_back_with_the_sample_of_that_round(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    trial = Trial(tmp_path / "trial", "synthetic:users=60,words=60", 3, silos=True).set_up()
    port, record = free_port(), trial.run / "private" / FILE
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    first = ["fedavg-small", "--evaluate-on", trial.corpus, "--rounds", str(ROUNDS), "--quiet"]
    first += ["--always-on", WHO, "--delta", "1e-3", *settings]
    often = ["--silence", "3", "--deadline", "120"]

    def drawn(number):
        given = trial.folder / f"client-{number}.key.given.jsonl"
        rows = [json.loads(line) for line in given.read_text().splitlines()]
        return {(row["round"], row["attempt"]): row["people"] for row in rows}

    with processes() as stack:

        def client(number):
            log = trial.folder / f"client-{number}.log"
            return ending(stack, started(trial.client_words(number, port), log))

        def server(*words):
            log = trial.folder / "server.log"
            return ending(stack, started(trial.server_words(port, *words, *often), log))

        silos, training = [client(number) for number in range(3)], server(*first)
        while not record.exists() and training.poll() is None:
            time.sleep(0.05)
        silos[1].kill()
        silos[1].wait()
        assert training.wait(timeout=300) == 2, (trial.folder / "server.log").read_text()
        said = (trial.folder / "server.log").read_text()
        assert "of 3 silos" in said
        charged = len(Run.open(trial.run).ledger.entries)
        assert 1 < charged < 1 + ROUNDS
        before = [drawn(number) for number in range(3)]
        client(1)
        assert server("--resume").wait(timeout=300) == 0, (trial.folder / "server.log").read_text()
    run = Run.open(trial.run)
    rounds = [(entry.round, entry.attempt) for entry in run.ledger.entries[1:]]
    assert rounds == [(round, 0) for round in range(ROUNDS)]
    assert all(len(Participations(record).of(*round)) == 3 for round in rounds)
    for number in range(3):
        after = drawn(number)
        assert {at: after[at] for at in before[number]} == before[number]
        assert len(SiloLedger(trial.folder / f"client-{number}.key.given.jsonl", Consent())) == sum(
            map(len, after.values())
        )
    assert any(WHO in said for said in run.ledger.header.excluded)
