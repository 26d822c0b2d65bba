"""The register of a corpus: every run that was made on it (design rule 7).

Two models from the same people's text tell more about them than either alone.  So a corpus
directory lists its runs, and a claim says how many there are and what they cost together.  What
they cost is in their ledgers; a copy of each is put beside the corpus whenever a run stops, so
that deleting a run does not delete what it has told.
"""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy.events import Composition, NonPrivate
from tacit.privacy.ledger import Ledger
from tacit.runs import files

FILE_NAME = "runs.jsonl"
COPIES = "ledgers"


@dataclass(frozen=True)
class Spent:
    """What the private runs of a corpus released together, and what cannot be counted."""

    composition: Composition
    private: int  # runs in the composition
    without_noise: int  # runs without privacy: their models must not be released
    simulations: int  # seeded runs: their noise is known, so they must not be released either
    missing: int  # runs whose ledger is gone, so that nobody knows what they cost


class Register:
    """The list of runs beside a corpus; without a folder (a synthetic corpus) it stays empty."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / FILE_NAME if folder is not None else None

    def add(self, run_id: str, directory: Path, *, simulation: bool) -> None:
        """Before the first round; a run that is there already is not added twice."""
        if self.path is None or run_id in {row["run_id"] for row in files.read_lines(self.path)}:
            return
        row = {"run_id": run_id, "directory": str(directory.resolve()), "simulation": simulation}
        with self.path.with_name(f".{FILE_NAME}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            files.append_line(self.path, row, mode=0o600)

    def keep(self, ledger: Ledger) -> None:
        """Keep what a run has charged so far, in the place of an earlier copy."""
        if self.path is not None and self.path.exists():
            folder = self.path.with_name(COPIES)
            folder.mkdir(mode=0o700, exist_ok=True)
            copy = folder / f"{ledger.header.run_id}.jsonl"
            files.replace(copy, ledger.path.read_bytes(), mode=0o600)

    def others(self, run_id: str) -> int:
        """How many runs besides this one are on record."""
        return sum(row["run_id"] != run_id for row in self._rows())

    def spent(self) -> Spent:
        """All releases of all runs; what a branch inherited is counted once."""
        composition = Composition.of([])
        private = without_noise = simulations = missing = 0
        known = {row["run_id"] for row in self._rows()}
        for row in self._rows():
            if row.get("simulation"):
                simulations += 1
                continue
            ledger = self._ledger(str(row["run_id"]), Path(str(row["directory"])))
            if ledger is None:
                missing += 1
                continue
            parent = ledger.header.parent
            inherited = parent.head.entries if parent and parent.run_id in known else 0
            own = [entry.event for entry in ledger.entries[inherited:]]
            if any(isinstance(event, NonPrivate) for event in own):
                without_noise += 1
                continue
            private += 1
            for event in own:
                composition = composition.then(event)
        return Spent(composition, private, without_noise, simulations, missing)

    def _ledger(self, run_id: str, directory: Path) -> Ledger | None:
        """The run's own ledger; if that is gone, damaged or another's, the copy."""
        assert self.path is not None
        for path in (directory / "ledger.jsonl", self.path.with_name(COPIES) / f"{run_id}.jsonl"):
            try:
                ledger = Ledger.read(path)
            except (ValueError, OSError):
                continue
            if ledger.header.run_id == run_id:
                return ledger
        return None

    def _rows(self) -> list[dict[str, object]]:
        return files.read_lines(self.path) if self.path is not None else []
