"""A run directory: the unit of everything that a training leaves behind.

    experiment.toml   every value that decided about the run, of whichever task
    ledger.jsonl      every release made from people's text
    metrics.jsonl     metrics on text that is not trained on, by leg
    checkpoints/      the model after some of the legs, and after the last
    result.json       how it ended; only a finished run has one
    private/          the run key until the end, HMACs, internal diagnostics

and the files of its task: tokenizer.json and canaries.json of a language model, scaling.json of
an intent and slot model.  It is made under another name and renamed, so it exists whole or not at
all; and all of it is for its owner only.
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tacit.privacy import documents, durable, trusted
from tacit.privacy.ledger_lines import Header, LedgerError
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.runs import shapes
from tacit.runs.checkpoints import Checkpoints
from tacit.tasks import AnyExperiment, read_experiment


class RunDirectory:
    """Where the files of a run are, and the few rules that hold for them whoever reads or writes.

    Nothing in it depends on the task: `experiment()` finds out which one it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment_file = path / "experiment.toml"
        self.ledger_file = path / "ledger.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.tokenizer_file = path / "tokenizer.json"
        self.canaries_file = path / "canaries.json"
        self.result_file = path / "result.json"
        self.baselines = path / "baselines"
        self.private = path / "private"
        self.key_file = self.private / "key"
        self.diagnostics_file = self.private / "diagnostics.jsonl"
        self.checkpoints = Checkpoints(path / "checkpoints")

    @classmethod
    def create(cls, path: Path | str, fill: Callable[[Self], None]) -> Self:
        """A new run directory, filled before it can be seen; `fill` gets the one being made.

        If `fill` raises, nothing is left behind.
        """
        path = Path(path)
        cls.check_free(path)
        durable.make_folder(path.parent, mode=durable.SHARED_FOLDER)
        with durable.whole_folder(path) as folder:
            made = cls(folder)
            durable.make_folder(made.checkpoints.folder)
            durable.make_folder(made.private)
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
        directory = cls(path)
        if not directory.experiment_file.is_file():
            raise ValueError(f"{path} is not a run directory: it has no experiment.toml")
        for folder in (path, directory.private, directory.checkpoints.folder):
            trusted.refuse_irregular_in(folder)
        return directory

    def experiment(self) -> AnyExperiment:
        """What the run was started with, of whichever task."""
        text = self.experiment_file.read_text(encoding="utf-8")
        return read_experiment(text, str(self.experiment_file))

    @property
    def task(self) -> str:
        """The task of the model here; a folder without an experiment can have a language model."""
        return self.experiment().task if self.experiment_file.is_file() else "language"

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

    def metrics(self) -> list[dict[str, Any]]:
        """Metrics on text that is not trained on, one row per evaluation."""
        return documents.read_lines(self.metrics_file, self._row)

    def last_metrics(self) -> dict[str, Any]:
        """The last row of them, at the same cost however many there are; empty if there is none."""
        return documents.last_line(self.metrics_file, self._row) or {}

    @property
    def _row(self) -> type[dict[str, Any]]:
        """The shape of a row of metrics, which is that of the run's task."""
        return typing.cast(type[dict[str, Any]], shapes.METRICS[self.experiment().leg_name])

    def forget_after(self, leg: int, leg_name: str) -> None:
        """Drop what was measured after a checkpoint: those legs are going to be repeated."""
        for path in (self.metrics_file, self.diagnostics_file):
            durable.keep_lines(path, shapes.LEGS[leg_name], lambda row: row[leg_name] <= leg)

    def result(self) -> dict[str, Any] | None:
        """How the run ended, or None while it has not."""
        try:
            result = documents.read_json(self.result_file, shapes.RESULTS[self.task])
        except FileNotFoundError:
            return None
        if result["accountant"] not in result["epsilon"]:
            raise documents.DamagedFile(self.result_file, "epsilon has none by its accountant")
        return {name: value for name, value in result.items() if name != "sha256"}

    def destroy_key(self) -> None:
        """Take away the way to repeat any noise, before anything else that may fail at the end.

        The file is overwritten with zeros before it is removed, so that a process that dies in
        between leaves no key either.
        """
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


def _taken(path: Path) -> str:
    """Why a run cannot be started here, and what to do instead."""
    if (path / "experiment.toml").is_file():
        return (
            f"{path} holds a run already: add --resume to go on with it, branch from it with"
            f" --from {path}@ROUND --run OTHER, or name another directory"
        )
    return f"{path} exists and is not empty; name a new directory for the run"
