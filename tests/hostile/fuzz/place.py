"""Where a fuzzer works: a world, a folder for the case at hand, and one for failing cases."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.hostile.fuzz import child, privilege, world
from tests.hostile.fuzz.child import Ended
from tests.hostile.fuzz.verdicts import Failure, judged, listing

PRELOADED = (
    *("tacit.cli.main", "tacit.train", "tacit.tasks.nlu.trainer", "tacit.audit.language"),
    *("tacit.audit.nlu", "tacit.tokenizers.learn", "tacit.runs.bundle", "tacit.verification"),
    *("tacit.report.page", "tacit.runs.personalization", "tacit_papers.thakkar2020.training"),
    *("tacit_papers.dupuy2021.comparison", "matplotlib.pyplot", "pyarrow.parquet"),
)


def preload() -> None:
    """Import all that commands import, and compute nothing: a child is forked at once."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


@dataclass
class Place:
    """A scratch folder on a fast disk.  With its own `cache`, children write nowhere else."""

    folder: Path
    cache: Path | None
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1 << 60)))

    @property
    def drops(self) -> bool:
        """Whether children that are root become nobody."""
        return self.cache is not None

    @property
    def world(self) -> Path:
        return self.folder / "world"

    @contextmanager
    def case(self, names: set[str], damage: Callable[[Path], object]) -> Iterator[Path]:
        """A folder with some things of the world, damaged; it is gone afterwards."""
        folder = self.folder / f"case-{next(self.numbers)}"
        try:
            world.copy(self.world, names, folder, drops=self.drops)
            damage(folder)
            yield folder
        finally:
            remove(folder)
            for name in (".out", ".err"):
                folder.with_name(f"{folder.name}.printed").with_suffix(name).unlink(missing_ok=True)

    def run(self, words: list[str], folder: Path, limit: float = child.LIMIT) -> Ended:
        environment = child.environment_of(folder, self.cache)
        return child.tacit(words, folder, limit=limit, environment=environment, drops=self.drops)

    def judge(
        self, words: list[str], folder: Path, work: float | None = None
    ) -> tuple[Ended, Failure | None]:
        """Run a command in a case's folder, and say what is wrong with how it ended.

        `work` is given for what may take long: the seconds after which it is told to end.
        """
        before = listing(folder)
        ended = self.run(words, folder, work or child.LIMIT)
        return ended, judged(words, ended, before, folder, is_work=work is not None)


def remove(folder: Path) -> None:
    """Remove a folder, whatever its modes are."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path in [folder, *folder.rglob("*")]:
            with contextlib.suppress(OSError):
                path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def made(*, whole: bool, scratch: Path | None = None) -> Iterator[Place]:
    """A place with its world, which is gone afterwards.

    A `whole` one has things of every kind and a cache of its own; the usual tests have the few
    things that they need, and the user's cache.
    """
    memory = Path("/dev/shm")
    parent = scratch or (memory if os.access(memory, os.W_OK) else None)
    folder = Path(tempfile.mkdtemp(prefix="tacit-fuzz-", dir=parent))
    try:
        folder.chmod(0o755)
        if whole:
            privilege.give(folder)
        place = Place(folder, folder / "cache" if whole else None)
        world.build(place.world, place.cache, whole=whole)
        yield place
    finally:
        remove(folder)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
