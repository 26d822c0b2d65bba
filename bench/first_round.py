"""From a CSV of people's posts to the first round: how long ingest, plan, tokens and a round take.

The CSV is made up, in the shape of a real corpus: by default 700,000 posts by 19,000 people, 137
million words.  Words follow the frequencies of English; posts and people differ in length as people
do (log-normal).  Each step runs as `tacit` does, in a process of its own, and is timed.

    python bench/first_round.py                        # 770 MB, in a temporary folder
    python bench/first_round.py --users 1900 --posts 70000
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tacit.tokenizers.public import PublicSource

WORDS_PER_POST = 196


def write_posts(path: Path, users: int, posts: int, words_per_post: float, seed: int) -> int:
    """Write the CSV in an order in which a user's posts are far apart; returns its words."""
    random = np.random.default_rng(seed)
    weights = PublicSource("wordfreq:en").word_weights()
    vocabulary = np.array(list(weights), object)
    total = np.cumsum(np.fromiter(weights.values(), float))
    share = random.lognormal(0, 1.2, users)
    authors = random.choice(users, posts, p=share / share.sum())
    authors[:users] = random.permutation(users)  # everybody has written something
    random.shuffle(authors)
    lengths = random.lognormal(0, 1.0, posts)
    lengths = np.maximum(1, lengths * words_per_post / lengths.mean()).astype(int)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["author", "id", "body"])
        for start in range(0, posts, 2000):
            some = lengths[start : start + 2000]
            drawn = np.searchsorted(total, random.random(some.sum()) * total[-1])
            words = vocabulary[np.minimum(drawn, len(vocabulary) - 1)].tolist()
            ends = np.cumsum(some).tolist()
            for number, (end, length) in enumerate(zip(ends, some.tolist(), strict=True), start):
                text = " ".join(words[end - length : end])
                rows.writerow([f"person {authors[number]}", number, text])
    return int(lengths.sum())


def timed(what: str, *command: str | Path) -> float:
    """The seconds that a command takes, also of processors; its output is shown if it fails."""
    began, before = time.perf_counter(), os.times()
    program = [sys.executable, "-m", "tacit.cli.main", *map(str, command)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - began, os.times()
    busy = sum(after[2:4]) - sum(before[2:4])  # of children
    if done.returncode:
        raise SystemExit(f"{what} failed: {done.stdout}{done.stderr}")
    print(f"{what:32} {seconds:7.1f} s, {busy:7.1f} s of processors", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=19_000)
    parser.add_argument("--posts", type=int, default=700_000)
    parser.add_argument("--words-per-post", type=float, default=WORDS_PER_POST)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="a folder for the CSV, which may be there already"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["TACIT_STATE"] = str(folder / "state")
        posts = (asked.keep or folder) / "posts.csv"
        if not posts.is_file():
            posts.parent.mkdir(parents=True, exist_ok=True)
            shape = (asked.users, asked.posts, asked.words_per_post)
            print(f"{write_posts(posts, *shape, asked.seed):,} words")
        print(f"{posts.stat().st_size / 1e6:,.0f} MB")
        corpus = folder / "corpus"
        total = timed("ingest", "ingest", posts, "--out", corpus)
        plan = folder / "plan.toml"
        wish = ["--epsilon", "8", "--minutes", "30", "--out", plan]
        total += timed("plan for 30 minutes", "plan", "--corpus", corpus, *wish)
        first = ["train", plan, "--set", "rounds=1", "--quiet"]
        total += timed("tokenize, measure, one round", *first, "--run", folder / "first")
        timed("the same, tokenized already", *first, "--run", folder / "second")
        print(f"{'from the CSV to the first round':32} {total:7.1f} s")


if __name__ == "__main__":
    main()
