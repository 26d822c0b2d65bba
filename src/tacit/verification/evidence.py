"""What there is to hold against the ledger: the files of a run or a bundle, each read once."""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tacit.config.experiment import Experiment
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.registry import from_config
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Entry
from tacit.runs.bundle import EXPORTED, Bundle, is_bundle
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.tasks.language.plans import layers_of, round_plans
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

LANGUAGE_RUN, NLU_RUN, BUNDLE = "run", "intent and slot run", "bundle"


def kind_of(path: Path) -> str:
    """What a folder holds; one that is neither run nor bundle is refused."""
    if not path.is_dir():
        raise ValueError(f"there is no run or bundle at {path}")
    if is_bundle(path) and not RunDirectory(path).experiment_file.is_file():
        return BUNDLE
    directory = RunDirectory(path)
    if directory.experiment_file.is_file() and isinstance(directory.experiment(), NluExperiment):
        return NLU_RUN
    if directory.ledger_file.is_file() or directory.experiment_file.is_file():
        return LANGUAGE_RUN
    if (path / "model.safetensors").is_file():
        raise ValueError(f"{path} has a model, but no ledger: it was not trained privately")
    raise ValueError(f"{path} is neither a run nor a bundle: it has no ledger.jsonl")


class Evidence:
    """A verified ledger, and beside it everything that makes a statement about it.

    Properties raise what reading their file raises, with the file's name.
    """

    def __init__(self, path: Path, kind: str, ledger: Ledger) -> None:
        self.path = path
        self.kind = kind
        self.ledger = ledger
        self.directory = RunDirectory(path)

    @property
    def is_bundle(self) -> bool:
        return self.kind == BUNDLE

    @cached_property
    def guarantee(self) -> Guarantee:
        """Computed once: every accountant is asked a single time."""
        return Guarantee.of(self.ledger)

    @cached_property
    def bundle(self) -> Bundle:
        return Bundle(self.path, self.ledger)

    # Of the ledger.

    @cached_property
    def own(self) -> list[Entry]:
        """The entries that this run has made itself, without the one that an export adds."""
        parent = self.ledger.header.parent
        inherited = parent.head.entries if parent else 0
        return [entry for entry in self.ledger.entries[inherited:] if entry.kind != EXPORTED]

    @cached_property
    def charged(self) -> list[Entry]:
        """The rounds, steps or epochs that this run has charged itself."""
        return [entry for entry in self.own if entry.kind == "round"]

    # Of the files.

    @cached_property
    def experiment(self) -> Experiment | NluExperiment:
        """The resolved experiment."""
        if not self.directory.experiment_file.is_file():
            raise ValueError(f"{self.directory.experiment_file} is missing")
        try:
            return self.directory.experiment()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.directory.experiment_file} is damaged: {error}") from None

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Those that can be read, in order."""
        return [one for one in self._all_checkpoints if isinstance(one, Checkpoint)]

    @cached_property
    def damaged_checkpoints(self) -> list[str]:
        """What is wrong with the others."""
        return [one for one in self._all_checkpoints if isinstance(one, str)]

    @cached_property
    def _all_checkpoints(self) -> list[Checkpoint | str]:
        found: list[Checkpoint | str] = []
        for round in self.directory.checkpoints.legs():
            try:
                whole = self.directory.checkpoints.read(round)
                # The optimizer's state, twice as large as a model, claims nothing.
                found.append(dataclasses.replace(whole, arrays={}))
            except ValueError as error:
                found.append(str(error))
        return found

    @property
    def last(self) -> Checkpoint:
        """The last checkpoint that can be read."""
        if not self.checkpoints:
            raise ValueError(f"{self.directory.checkpoints.folder} has no checkpoint to go by")
        return self.checkpoints[-1]

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds, its own digest included; None while a run has not ended."""
        file = self.directory.result_file
        return None if self.is_bundle or not file.exists() else read_object(file)

    @cached_property
    def tokenizers(self) -> dict[Path, Tokenizer]:
        """All tokenizers of the run, by their files."""
        files = [self.directory.tokenizer_file]
        folders = sorted((self.path / "tokenizers").glob("[!.]*"))
        files += [folder / FILE_NAME for folder in folders]
        return {file: Tokenizer.load(file) for file in files}

    # Of the model, without loading its weights or any code of the user's own.

    @cached_property
    def model_file(self) -> Path:
        return self.path / "model.safetensors" if self.is_bundle else self.last.model_file

    @property
    def is_own_model(self) -> bool:
        """Whether the model is made by code of the user's own, which is never run here."""
        return isinstance(self.experiment, Experiment) and ":" in self.experiment.model.name

    def layers(self, vocab_size: int | None = None) -> tuple[int, ...]:
        """The sizes of the model's layers, for another vocabulary if that is given."""
        config = weights.load_config(self.model_file)
        if vocab_size is not None:
            config = dataclasses.replace(config, vocab_size=vocab_size)
        with torch.device("meta"):
            return layers_of(from_config(config))

    def plans(self, vocab_size: int | None = None) -> tuple[RoundPlan, ...]:
        """The plan of each phase, as the experiment configures it."""
        assert isinstance(self.experiment, Experiment)
        if not self.is_own_model:
            return round_plans(self.experiment, self.layers(vocab_size))
        norms = self.experiment.plan.layer_clip_norms
        return round_plans(self.experiment, (1,) * len(norms or (1,)))


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object from its file."""
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} is damaged: it is not a JSON object")
    return found
