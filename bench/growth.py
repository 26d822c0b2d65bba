"""Time and memory of long runs and of many or talkative people, in one table.

A run of two rounds that was measured 100,000 times, and its report.  A run of 100,000 rounds that
were charged and measured, and not computed: report, ledger, verify and compare look at what is on
the disk.  Then a million users with ten words each, and one user with ten million words: ingest,
two rounds of a tiny model, report.  Seconds are the least of `--repeat` runs, of the processor and
of the clock, imports included; memory is the peak of the command's process.  The first row is a
command that does nothing, so what imports alone take.  `--share 0.01` makes everything a hundredth
as large, and `--runs-only` leaves out the many users and the talkative one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.config.experiment import Experiment
from tacit.corpus.ingest import ingest_records
from tacit.privacy.ledger_lines import Charge
from tacit.runs.start import create
from tacit.tokenizers import build, provenance
from tacit.train import train

ROUNDS, USERS, WORDS_OF_ONE = 100_000, 1_000_000, 10_000_000
WORDS = "the a dog cat runs sleeps eats and then quickly slowly red blue big small".split()
TINY = {"name": "lstm", "options": {"embedding_size": 6, "cells": 8}}


# `ru_maxrss` would also count what the process was before it became Python: a copy of this one.
_CALL = """
import atexit, os, sys

def tell():
    used = sum(os.times()[:4])
    [peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    print(used, peak.split()[1], file=sys.stderr)

atexit.register(tell)
from tacit.cli.main import main
main()
"""


def experiment(folder: Path, corpus: Path, rounds: int, population: int) -> Experiment:
    """A tiny model in a public vocabulary, measured after each round."""
    made = build.word_level(WORDS, provenance=provenance.public("a list of words"))
    return Experiment.from_data(
        {
            "rounds": rounds,
            "corpus": {"source": str(corpus)},
            "tokenizer": {"source": str(made.save(folder / f"words of {corpus.name}"))},
            "model": TINY,
            "plan": {
                "cohort": 5,
                "clip_norm": 0.3,
                "noise_multiplier": 8.0,
                "population": population,
            },
            "evaluation": {"every": 1, "max_tokens": 200},
        },
        "the benchmark",
    )


def few_people(corpus: Path) -> Path:
    """A corpus of 60 people, who are in no other."""
    text = [f"{corpus.name} {' '.join(WORDS)}"]
    records = [(f"{corpus.name} {n}", text * 3) for n in range(60)]
    ingest_records(records, corpus, count=len(records))
    return corpus


def write_metrics(file: Path, row: dict[str, Any], lines: int) -> None:
    """So many lines like this one, of the rounds from 0 on."""
    with file.open("w", encoding="utf-8") as out:
        for n in range(lines):
            figures = {"round": n, "epsilon": n * 1e-4, "accuracy_top1": n * 7919 % 1000 / 1e4}
            out.write(json.dumps(row | figures) + "\n")


def often_measured(folder: Path, lines: int) -> Path:
    """A finished run of two rounds, with so many lines of metrics."""
    corpus = few_people(folder / "some")
    run = train(experiment(folder, corpus, 2, 1000), folder / "often measured")
    write_metrics(run.directory.metrics_file, run.directory.last_metrics(), lines)
    return run.path


def charged(folder: Path, rounds: int) -> Path:
    """A finished run of so many rounds, with a line of metrics for each."""
    corpus, run = few_people(folder / "others"), folder / "run"
    session = create(experiment(folder, corpus, rounds, 1000), run)
    try:
        plan = session.trainer.phase(0).plan
        event, digest, how = plan.event(), plan.hash(), plan.estimator_name
        session._ledger.charge(
            [Charge("round", n, 0, event, digest, estimator=how) for n in range(rounds)]
        )
        row = session.trainer.evaluate(0, [], lambda: 0.0, now=True)
        write_metrics(run / "metrics.jsonl", row, rounds + 1)
        session.leg = rounds
        session.save(0)
    finally:
        session.close()
    return train(None, run, resume=True).path


def write_rows(path: Path, rows: Iterator[tuple[int, str]]) -> Path:
    """A CSV of users and texts."""
    with path.open("w", encoding="utf-8") as file:
        file.write("user,text\n")
        file.writelines(f"{user},{text}\n" for user, text in rows)
    return path


def measured(name: str, *command: object, repeat: int = 1) -> None:
    """Run a command of tacit in a process of its own, and print its row of the table."""
    words = [sys.executable, "-c", _CALL, *map(str, command)]
    costs = []
    for _ in range(repeat):
        began = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed: {done.stderr}")
        used, kilobytes = done.stderr.split()[-2:]
        costs.append((float(used), time.perf_counter() - began, int(kilobytes) / 1024))
    used, passed, megabytes = map(min, zip(*costs, strict=True))
    print(f"| {name} | {used:.2f} | {passed:.2f} | {megabytes:,.0f} |", flush=True)


def corpus_rows(folder: Path, name: str, rows: Iterator[tuple[int, str]], population: int) -> None:
    """Ingest, train and report on one corpus."""
    file, corpus, run = folder / f"{name}.csv", folder / name, folder / f"run-{name}"
    write_rows(file, rows)
    measured(f"{name}: ingest", "ingest", file, "--out", corpus)
    recipe = folder / f"{name}.toml"
    recipe.write_text(experiment(folder, corpus, 2, population).to_toml(), encoding="utf-8")
    measured(f"{name}: two rounds", "train", recipe, "--run", run, "--workers", 1)
    measured(f"{name}: report", "report", run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--repeat", type=int, default=3, help="of commands on long runs")
    parser.add_argument("--runs-only", action="store_true", help="no corpora of many or of much")
    asked = parser.parse_args()
    share, repeat = asked.share, asked.repeat
    rounds, users, words = (max(int(share * n), 200) for n in (ROUNDS, USERS, WORDS_OF_ONE))
    text = " ".join(WORDS[:10])
    with tempfile.TemporaryDirectory(prefix="tacit-bench-") as name:
        folder = Path(name)
        os.environ["TACIT_STATE"] = str(folder / "state")
        os.environ["TACIT_CACHE"] = str(folder / "cache")
        often, run = often_measured(folder, rounds), charged(folder, rounds)
        print(f"{rounds:,} rounds; {users:,} users; one user with {words:,} words\n")
        print("| command | seconds of the processor | seconds | peak memory, MB |")
        print("|---|---:|---:|---:|")
        measured("nothing", "recipes", repeat=repeat)
        measured("measured often: report", "report", often, repeat=repeat)
        for command in ("report", "ledger", "verify", "compare"):
            measured(f"long run: {command}", command, run, repeat=repeat)
        if not asked.runs_only:
            corpus_rows(folder, "many users", ((n, text) for n in range(users)), users)
            few = ((n, text) for n in range(200))
            one = ((200, text) for _ in range(words // 10))
            rows = (row for rows in (few, one) for row in rows)
            corpus_rows(folder, "one talkative user", rows, 1000)
        pages = [(path / "report.html").stat().st_size for path in (often, run)]
        print(f"\nThe pages of the runs have {pages[0]:,} and {pages[1]:,} bytes.")


if __name__ == "__main__":
    main()
