"""How long `tacit verify` takes for 5,000 rounds: a run with its report, and its bundle.

The rounds are charged and not computed: a verification looks at the ledger, and at the last models.
People's ledger, result and report are as a training leaves them.  The times are those of a process
of its own, beyond its imports.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tacit.cli.main import main as tacit
from tacit.config.experiment import Experiment
from tacit.corpus.ingest import ingest_records
from tacit.privacy.ledger_lines import Charge
from tacit.runs.start import create
from tacit.tokenizers import build, provenance
from tacit.train import train

ROUNDS = 5000
WORDS = "the a dog cat runs sleeps eats and then quickly slowly red blue big small".split()
TIMED = """
import sys, time
from tacit.verification import verify
start = time.perf_counter()
found = verify(sys.argv[1])
assert not found.differences, found.differences
print(f"{time.perf_counter() - start:.2f}")
"""


def experiment(folder: Path) -> Experiment:
    """60 people, two phases of noise, all of the settings that a claim names."""
    records = [(f"user {n}", [" ".join(WORDS[n % 5 :])] * 3) for n in range(60)]
    ingest_records(records, folder / "corpus", count=len(records))
    made = build.word_level(WORDS, provenance=provenance.public("a list of words"))
    return Experiment.from_data(
        {
            "rounds": ROUNDS,
            "corpus": {"source": str(folder / "corpus")},
            "tokenizer": {"source": str(made.save(folder / "tokenizer.json"))},
            "model": {"name": "lstm", "options": {"embedding_size": 6, "cells": 8}},
            "plan": {"cohort": 5, "clip_norm": 0.3, "noise_multiplier": 8.0, "population": 1000},
            "evaluation": {"every": ROUNDS, "max_tokens": 200},
            "phases": [
                {"rounds": ROUNDS // 2},
                {"rounds": ROUNDS // 2, "plan": {"noise_multiplier": 9.0}},
            ],
        },
        "the benchmark",
    )


def charged(folder: Path) -> Path:
    """A finished run of so many rounds."""
    session = create(experiment(folder), folder / "run")
    try:
        plans = [session.tasks[session.experiment.phase_of(n)].plan for n in range(ROUNDS)]
        session.ledger.charge(
            [
                Charge("round", n, 0, plan.event(), plan.hash(), None, plan.estimator_name)
                for n, plan in enumerate(plans)
            ]
        )
        session.round = ROUNDS
        session.save()
    finally:
        session.close()
    return train(None, folder / "run", resume=True).path


def command(*words: object) -> None:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        tacit([str(word) for word in words])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TACIT_STATE"] = str(folder / "state")
        run = charged(folder)
        command("report", run)
        command("export", run, "--out", folder / "bundle")
        for what in (run, folder / "bundle"):
            done = subprocess.run(
                [sys.executable, "-c", TIMED, str(what)],
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{ROUNDS:,} rounds, the {what.name}: {done.stdout.strip()} s")


if __name__ == "__main__":
    main()
