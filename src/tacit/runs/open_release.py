"""Anything that has a ledger and may make a claim: a run of any task, or an exported bundle.

A claim is a function of the ledger and of nothing else (design rule 11), so one constructor serves
all of them.  What differs is what says how long the ledger has to be: a run's last checkpoint, or
the last line of a bundle's own ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.corpus.people_ledger import remark_on_others
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.runs.bundle import Bundle, is_bundle
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run


@dataclass(frozen=True)
class OpenRelease:
    """What is held against what, and what follows."""

    source: Run | Bundle
    ledger: Ledger
    checked_against: str  # what says how long the ledger has to be
    is_complete: bool | None  # None where nobody says

    def guarantee(self) -> Guarantee:
        """One constructor for all of them; of runs on this machine the others are known too."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))


def open_release(path: Path | str) -> OpenRelease:
    """The run or bundle in a folder; one that contradicts its ledger is refused."""
    path = Path(path)
    if is_bundle(path):
        bundle = Bundle.open(path)
        return OpenRelease(bundle, bundle.ledger, "its last line", None)
    if (path / "model.safetensors").is_file():
        raise ValueError(f"{path} has a model, but no ledger: it was not trained privately")
    last = RunDirectory.open(path).checkpoints.read()
    Ledger.read(path / "ledger.jsonl", last.head)  # before anything else can be found wrong
    run = Run.open(path)
    against = f"the checkpoint of {run.experiment.leg_name} {run.leg}"
    return OpenRelease(run, run.ledger, against, run.is_complete)
