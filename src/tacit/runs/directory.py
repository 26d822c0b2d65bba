"""A run directory: the unit of everything that a training leaves behind.

    experiment.toml   every value that decided about the run
    ledger.jsonl      every release made from people's text
    metrics.jsonl     held-out metrics by round
    tokenizer.json
    canaries.json     what was planted, in an audit run
    checkpoints/
    result.json       how it ended; only a finished run has one
    private/          mode 0700: the run key until the end, HMACs, internal diagnostics

It is made beside its place and renamed, so it exists whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from tacit.config.experiment import Experiment
from tacit.privacy import durable
from tacit.privacy.events import canonical_json
from tacit.privacy.ledger_lines import Header, LedgerError
from tacit.privacy.randomness import RunKey
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.releases import Releases


class RunDirectory:
    """Where the files of a run are."""

    experiment_name: ClassVar[str] = "experiment.toml"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment_file = path / self.experiment_name
        self.ledger_file = path / "ledger.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.tokenizer_file = path / "tokenizer.json"
        self.canaries_file = path / "canaries.json"
        self.result_file = path / "result.json"
        self.private = path / "private"
        self.key_file = self.private / "key"
        self.diagnostics_file = self.private / "diagnostics.jsonl"
        self.checkpoints = Checkpoints(path / "checkpoints")

    @classmethod
    def create(cls, path: Path | str, fill: Callable[[Self], None]) -> Self:
        """A new run directory, filled before it can be seen; `fill` gets the one being made."""
        path = Path(path)
        cls.check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.whole_folder(path) as folder:
            made = cls(folder)
            made.checkpoints.folder.mkdir()
            made.private.mkdir(mode=0o700)
            fill(made)
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a place where something is already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(_taken(path))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """A run directory that exists."""
        path = Path(path)
        if not path.is_dir():
            raise ValueError(f"there is no run at {path}; tacit train --run {path} starts one")
        found = cls(path)
        if not found.experiment_file.is_file():
            raise ValueError(_not_a_run(found))
        return found

    def experiment(self) -> Experiment:
        """What the run was started with."""
        text = self.experiment_file.read_text(encoding="utf-8")
        return Experiment.from_toml(text, str(self.experiment_file))

    def refuse_edited(self, header: Header) -> None:
        """The experiment's file must be the one whose digest is in the ledger."""
        data = self.experiment_file.read_bytes()
        if hashlib.sha256(data).hexdigest() != header.experiment:
            raise LedgerError(
                f"{self.experiment_file} was changed since the run began: the ledger has another"
                " digest of it; put it back as it was"
            )

    def key(self) -> RunKey:
        """The run's key, while there is one."""
        if not self.key_file.exists():
            raise ValueError(f"{self.path} has no run key any more, so it cannot go on")
        return RunKey.load(self.key_file)

    def releases(self) -> Releases:
        return Releases(self.private / "releases.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """Held-out metrics, one row per evaluated round."""
        return durable.read_lines(self.metrics_file)

    def forget_after(self, round: int) -> None:
        """Drop what was measured after a checkpoint: those rounds are going to be repeated."""
        for path in (self.metrics_file, self.diagnostics_file):
            durable.keep_lines(path, lambda row: row["round"] <= round)

    def result(self) -> dict[str, Any] | None:
        """How the run ended, or None while it has not."""
        if not self.result_file.exists():
            return None
        result: dict[str, Any] = json.loads(self.result_file.read_text(encoding="utf-8"))
        result.pop("sha256", None)
        return result

    def destroy_key(self) -> None:
        """Take away the way to repeat any noise, before anything else that may fail at the end."""
        RunKey.destroy(self.key_file)

    @property
    def key_is_gone(self) -> bool:
        """Whether the key was destroyed, or was being destroyed when the process was killed."""
        return not self.key_file.exists() or not any(self.key_file.read_bytes())

    def finish(self, result: dict[str, Any]) -> None:
        """Write how it ended, with a digest of it: nothing in the ledger comes after the end."""
        sealed = result | {"sha256": digest_of_result(result)}
        text = json.dumps(sealed, indent=2, allow_nan=False) + "\n"
        durable.write_whole(self.result_file, text.encode())


def digest_of_result(result: Mapping[str, Any]) -> str:
    """SHA-256 of all that result.json says besides this."""
    said = {name: value for name, value in result.items() if name != "sha256"}
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


# What else may lie in a directory, and which commands are for it.
OTHER_RUNS = {
    "experiment.toml": "a language model: tacit train, evaluate, report and so on are for it",
    "nlu.toml": "an intent and slot model: tacit nlu and tacit report are for it",
}


def _not_a_run(directory: RunDirectory) -> str:
    for name, what in OTHER_RUNS.items():
        if (directory.path / name).is_file():
            return f"{directory.path} holds the run of {what}"
    return f"{directory.path} is not a run directory: it has no {directory.experiment_name}"


def _taken(path: Path) -> str:
    if (path / "experiment.toml").is_file():
        return (
            f"{path} holds a run already: add --resume to go on with it, branch from it with"
            f" --from {path}@ROUND --run OTHER, or name another directory"
        )
    return f"{path} exists and is not empty; name a new directory for the run"
