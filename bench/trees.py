"""Two versions of the source side by side: how long the same work takes in each.

    git worktree add ../before REVISION
    python bench/trees.py ../before . --repeats 5

Each version trains a language model and an intent and slot model, with two lengths of training
whose difference leaves only rounds or steps: start-up, tokenizing and the last evaluation cancel.
The versions take turns, so that a busy machine slows both, and the figure is the median over the
turns of the newer one's time over the older one's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LANGUAGE = """name = "timed"
rounds = {legs}
seed = 1
[corpus]
source = "synthetic:users=400,words=400"
[model]
name = "lstm"
[update]
batch_size = 8
unroll = 20
learning_rate = 1.0
[plan]
cohort = 40
clip_norm = 1.0
noise_multiplier = 1.0
[evaluation]
every = 1000
max_tokens = 200
"""
INTENTS = """{task}name = "timed"
seed = 1
[data]
source = "generated:utterances=1500"
unseen_intents = "keep"
[training]
method = "edp-sgd"
epochs = {legs}
batch_size = 64
workers = 2
[noise]
noise_multiplier = 1.0
[evaluation]
every = 1000
"""
# What is trained, by which command, how long at the least and at the most.
WORK = {
    "a round of a language model": (LANGUAGE, ("train",), ("train",), 5, 15),
    "an epoch of eDP-SGD steps": (INTENTS, ("nlu", "train"), ("train",), 2, 6),
}


def seconds(tree: Path, recipe: str, legs: int) -> float:
    """How long a whole training takes in a tree, in a process of its own."""
    is_new = (tree / "src" / "tacit" / "tasks").is_dir()
    template, old, new, *_ = WORK[recipe]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timed.toml"
        file.write_text(template.format(legs=legs, task='task = "nlu"\n' if is_new else ""))
        command = [sys.executable, "-m", "tacit.cli.main", *(new if is_new else old), str(file)]
        environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "TACIT_STATE": f"{folder}/state",
        }
        began = time.perf_counter()
        subprocess.run(
            [*command, "--run", f"{folder}/run"],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?", default=Path("."))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.old is None:
        print("nothing to compare with: name the folder of another version")
        return
    for what, (*_, short, long) in WORK.items():
        times: dict[Path, list[float]] = {arguments.old: [], arguments.new: []}
        for _ in range(arguments.repeats):
            for tree, samples in times.items():
                source = tree.resolve()
                spent = seconds(source, what, long) - seconds(source, what, short)
                samples.append(spent / (long - short))
        ratios = [new / old for old, new in zip(*times.values(), strict=True)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        old, new = (statistics.median(values) for values in times.values())
        print(
            f"{what}: {old:.3f} s before, {new:.3f} s now,"
            f" ratio {statistics.median(ratios):.2f} ({shown})",
            flush=True,
        )


if __name__ == "__main__":
    main()
