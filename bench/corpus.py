"""Ingest of a million users, and what a cohort costs to draw out of ten thousand and out of them.

Each user has ten texts of ten words, spread over ten files, so that grouping has work to do.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tacit.corpus.builtin import SyntheticCorpus, SyntheticOptions
from tacit.corpus.store import Corpus

FEW, MANY = 10_000, 1_000_000
COHORT = 100
REPEATS = 101
FILES = 10

INGEST = """
import resource, sys, time
from tacit.corpus.ingest import ingest
start = time.perf_counter()
rows = ingest(sys.argv[1], sys.argv[2]).info()["input"]["rows"]
print(time.perf_counter() - start, rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write(folder: Path, users: int) -> int:
    """Text t of every user goes into file t; returns the bytes written."""
    folder.mkdir()
    files = [(folder / f"{t}.csv").open("w", encoding="utf-8") for t in range(FILES)]
    for file in files:
        file.write("user,text\n")
    for user, texts in SyntheticCorpus(SyntheticOptions(users=users)).records():
        for file, text in zip(files, texts, strict=True):
            file.write(f"{user},{text}\n")
    for file in files:
        file.close()
    return sum(path.stat().st_size for path in folder.iterdir())


def ingested(folder: Path, users: int) -> Path:
    """Ingest in a process of its own and print its rate and peak memory."""
    size = write(folder / f"in-{users}", users)
    out = folder / f"corpus-{users}"
    command = [sys.executable, "-c", INGEST, str(folder / f"in-{users}"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, rows, peak = map(float, done.stdout.split())
    print(
        f"ingest of {users:,} users, {rows:,.0f} rows, {size / 1e6:,.0f} MB: {seconds:.1f} s,"
        f" {rows / seconds:,.0f} rows/s, peak {peak / 2**20:.2f} GiB"
    )
    return out


def draw(path: Path, rng: np.random.Generator) -> int:
    """Open a corpus, draw a Poisson cohort of about 100, read its texts."""
    corpus = Corpus.open(path)
    size = rng.binomial(len(corpus), COHORT / len(corpus))
    cohort = rng.choice(len(corpus), size, replace=False, shuffle=False)
    return sum(len(corpus.texts(int(user))) for user in cohort)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tacit-bench-") as name:
        folder = Path(name)
        few, many = ingested(folder, FEW), ingested(folder, MANY)
        times: dict[Path, list[float]] = {few: [], many: []}
        for repeat in range(REPEATS):  # interleaved, so that a busy machine slows both
            for path, found in times.items():
                start = time.perf_counter()
                draw(path, np.random.default_rng(repeat))
                found.append(time.perf_counter() - start)
        slow, fast = statistics.median(times[many]), statistics.median(times[few])
        print(
            f"open and read a cohort of {COHORT}: {FEW:,} users {fast * 1e3:.2f} ms,"
            f" {MANY:,} users {slow * 1e3:.2f} ms, ratio {slow / fast:.2f}"
        )


if __name__ == "__main__":
    main()
