"""A grid of seconds: the small corpus of the training tests, a few canaries, few samples."""

import math
from pathlib import Path

from tacit_papers.thakkar2020.grid import Grid
from tests.runs.small import experiment

ARMS = [
    {"optimizer": "sgd", "data": ["iid", "non-iid"], "batch": [8]},
    {"optimizer": "fedavg", "data": ["non-iid"], "batch": [10]},
    {"optimizer": "fedavg+clip", "data": ["non-iid"], "batch": [10]},
    {"optimizer": "dp-fedavg", "data": ["non-iid"], "batch": [10]},
]


def base_file(folder: Path) -> Path:
    """The experiment that all arms share, as a recipe."""
    canaries = {
        "sharers": [2.0, 6.0],
        "example_probs": [1.0],
        "per_cell": 2,
        "words": 4,
        "max_share": 0.9,
    }
    file = folder / "base.toml"
    wanted = experiment(folder, rounds=2, audit={"canaries": canaries})
    file.write_text(wanted.to_toml(), encoding="utf-8")
    return file


def small_grid(folder: Path, **changes) -> Grid:
    tables = {
        "name": "small",
        "base": str(base_file(folder)),
        "records": {"learning_rate": 4.0, "epochs": 12.0, "unroll": 10},
        "private": {"clip_norm": 0.3, "noise_multiplier": 1.0},
        "extraction": {"samples": 200, "controls": 5, "ranked_controls": 2, "rank_budget": 50},
        "arms": ARMS,
    }
    return Grid.model_validate(tables | changes)


class Silent:
    """A watcher that nobody reads."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def tell(self, what, done, of):
        pass

    def observe(self, now):
        pass


def alike(one, other) -> bool:
    """Whether two arms found the same, but for last digits, in which two trainings may differ."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6)
    return one == other
