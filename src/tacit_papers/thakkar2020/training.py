"""The secret sharer: the same canaries, many trainings, one table (Thakkar et al. 2020).

    OUT/secret-sharer.toml             the grid with every value, but for the seeds
    OUT/seed-0/ARM/                    a run directory; of an arm on records, model and result.json
    OUT/seed-0/ARM/memorization.json   what the arm's model was found to hold; written last

A seed decides about canaries, sharers, starting weights, cohorts and noise, and all arms of a seed
have these in common, so that they differ in the training alone.  All of it is simulation: a seeded
run is not for release, and neither is one whose text was tampered with.

Interrupted at any point, the same call goes on: finished arms are kept, a federated arm resumes at
its last checkpoint, and an arm on records begins again.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.config.sections import by_dotted_key
from tacit.privacy import durable
from tacit.tasks.language import assembly
from tacit.tasks.language.people import People
from tacit_papers.thakkar2020.arms import Arm
from tacit_papers.thakkar2020.grid import Grid
from tacit_papers.thakkar2020.seed import FOUND_FILE, Bench, Watcher

GRID_FILE = "secret-sharer.toml"


Watch = Callable[[str], AbstractContextManager[Watcher]]  # one for each arm, by its title


@dataclass(frozen=True)
class SecretSharer:
    """A grid, where it goes, and which of it is wanted."""

    grid: Grid
    out: Path
    arms: Sequence[Arm]
    seeds: Sequence[int]
    workers: int = 1

    def run(self, watch: Watch) -> list[dict[str, Any]]:
        """Train and audit whatever is not there yet; all that was found, arm by arm."""
        self._claim_folder()
        for seed in self.seeds:
            bench = Bench(self.grid, self.out / f"seed-{seed}", seed, self.workers)
            for arm in self.arms:
                if bench.found(arm) is None:
                    with watch(f"seed {seed}, {arm.name}") as watcher:
                        bench.run(arm, watcher)
        return self.found()

    def found(self) -> list[dict[str, Any]]:
        """What the folder holds of the grid's arms: also those that this call did not ask for."""
        rows = []
        for arm in self.grid.all_arms():
            for path in sorted(self.out.glob(f"seed-*/{arm.name}/{FOUND_FILE}")):
                rows.append(json.loads(path.read_text(encoding="utf-8")))
        return sorted(rows, key=lambda row: row["seed"])

    def check(self) -> None:
        """Whatever can be refused before anything is trained."""
        common = self.grid.common()
        people = People.of(common)
        users = len(people.users)
        people.planting(common, assembly.tokenizer_of(common, people.users))
        for arm in self.arms:
            arm.changed(common, self.grid)
            if arm.is_federated and arm.batch > users:
                raise ValueError(
                    f"{arm.name}: {arm.batch} users a round are more than the {users:,} training"
                    f" users of {common.corpus.source}"
                )
            if not arm.is_federated:
                arm.record_training(self.grid, 0)

    def _claim_folder(self) -> None:
        """The folder is this grid's: a new one, or one that was begun with the very same grid."""
        text = self.grid.to_toml()
        file = self.out / GRID_FILE
        if file.is_file():
            _refuse_another(file, text)
            return
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(
                f"--out {str(self.out)!r} holds something else already; name a new directory"
            )
        self.check()
        self.out.mkdir(parents=True, exist_ok=True)
        durable.write_whole(file, text.encode())


def _refuse_another(file: Path, wanted: str) -> None:
    ours = dict(by_dotted_key(tomllib.loads(wanted)))
    theirs = dict(by_dotted_key(tomllib.loads(file.read_text(encoding="utf-8"))))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and not key.startswith("about."):
            raise ValueError(
                f"{file.parent} was begun with another grid: {key} is {theirs.get(key)!r} there and"
                f" {ours.get(key)!r} here; go on with it unchanged, or name another directory"
            )
