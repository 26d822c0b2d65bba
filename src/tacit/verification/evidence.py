"""What there is to hold against the ledger: the files of a run or a bundle, each read once.

A `Check` is made of functions from `Evidence` to sentences: one for each difference, with the file
and what differs.  A sentence that is a `Remark` is no difference: it says what was not checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tacit.audit.results import read_object
from tacit.config.experiment import Experiment
from tacit.corpus.people_costs import KnownRun
from tacit.corpus.people_ledger import PeopleLedger
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.base import LanguageModel, layer_sizes, train_only
from tacit.models.registry import build
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Entry
from tacit.runs.bundle import EXPORTED, Bundle, is_bundle
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.tasks.language.plans import round_plans
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import epoch_steps
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer


class Remark(str):
    """Something that could not be checked, and why: no difference."""

    __slots__ = ()


@dataclass(frozen=True)
class Check:
    """Functions that are about one thing, and what that is in words."""

    name: str
    what: str
    functions: tuple[Callable[[Evidence], Iterator[str]], ...]


class Evidence:
    """A verified ledger, and beside it everything that makes a statement about it.

    Properties raise what reading their file raises, with the file's name.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path = path
        self.ledger = ledger
        self.header = ledger.header
        self.is_bundle = is_bundle(path)
        self.directory = RunDirectory(path)
        parent = ledger.header.parent
        self.inherited = ledger.entries[: parent.head.entries if parent else 0]
        # The entries that this run has made itself, without the one that an export adds.
        own = ledger.entries[len(self.inherited) :]
        self.own = [entry for entry in own if entry.kind != EXPORTED]
        # The rounds, steps or epochs that this run has charged itself.
        self.charged = [entry for entry in self.own if entry.kind == "round"]

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the ledger guarantees; every accountant is asked a single time."""
        return Guarantee.of(self.ledger)

    def known_run(self, run_id: str) -> KnownRun | None:
        """A run as the people's ledger of this installation knows it; None if it does not."""
        known = PeopleLedger.find(self.header.people) if self.header.people else None
        return known.runs().get(run_id) if known else None

    @cached_property
    def bundle(self) -> Bundle:
        """The folder as a bundle."""
        return Bundle(self.path, self.ledger)

    @cached_property
    def experiment(self) -> Experiment | NluExperiment:
        """The resolved experiment."""
        file = self.directory.experiment_file
        if not file.is_file():
            raise ValueError(f"{file} is missing")
        try:
            return self.directory.experiment()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is damaged: {error}") from None

    @cached_property
    def epoch_charges(self) -> int | None:
        """How many charges an epoch of an intent and slot model has; None where they are rounds.

        With noise every step is charged, without noise an epoch is a single charge.
        """
        experiment = self.experiment
        if isinstance(experiment, Experiment):
            return None
        if experiment.training.method not in PRIVATE or not experiment.noise.noise_multiplier:
            return 1
        assert experiment.noise.population is not None
        return epoch_steps(experiment, experiment.noise.population)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that can be read, in order, without their optimizer's state."""
        return self._read_checkpoints[0]

    @property
    def damaged_checkpoints(self) -> list[str]:
        """What is wrong with those that cannot."""
        return self._read_checkpoints[1]

    @cached_property
    def _read_checkpoints(self) -> tuple[list[Checkpoint], list[str]]:
        """The checkpoints that can be read, and what is wrong with the others."""
        whole, damaged = [], []
        for leg in self.directory.checkpoints.legs():
            try:  # the optimizer's state, twice as large as a model, claims nothing
                whole.append(dataclasses.replace(self.directory.checkpoints.read(leg), arrays={}))
            except ValueError as error:
                damaged.append(str(error))
        return whole, damaged

    @property
    def last(self) -> Checkpoint:
        """The last checkpoint that can be read."""
        if not self.checkpoints:
            raise ValueError(f"{self.directory.checkpoints.folder} has no checkpoint to go by")
        return self.checkpoints[-1]

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds, its own digest included; None while a run has not ended."""
        return None if self.is_bundle else read_object(self.directory.result_file)

    @cached_property
    def tokenizers(self) -> dict[Path, Tokenizer]:
        """All tokenizers of the run, by their files."""
        folders = sorted((self.path / "tokenizers").glob("[!.]*"))
        files = [self.directory.tokenizer_file, *(folder / FILE_NAME for folder in folders)]
        return {file: Tokenizer.load(file) for file in files}

    @cached_property
    def tokenizer_entries(self) -> list[Entry]:
        """The entries about tokenizers, of this run and of those that it comes from."""
        return [entry for entry in self.ledger.entries if entry.kind == "tokenizer"]

    def tokenizer_at(self, round: int) -> str:
        """The fingerprint of the tokenizer that a round is computed in, by the ledger.

        It is the last one that this run recorded for that round or an earlier one, else the last
        that was inherited; empty if the ledger names none.
        """
        first = len(self.inherited)
        own = [one for one in self.tokenizer_entries if one.index >= first and one.round <= round]
        if own:
            return max(own, key=lambda one: (one.round, one.index)).plan_hash
        before = [one.plan_hash for one in self.tokenizer_entries if one.index < first]
        return before[-1] if before else ""

    # The model, without loading its weights or any code of the user's own.

    @cached_property
    def model_file(self) -> Path:
        """The file of the last model."""
        return self.path / "model.safetensors" if self.is_bundle else self.last.model_file

    @property
    def is_own_model(self) -> bool:
        """Whether the model is made by code of the user's own, which is never run here."""
        return isinstance(self.experiment, Experiment) and bool(self.experiment.model.own_factory)

    def layers(self, vocab_size: int | None = None) -> tuple[int, ...]:
        """The sizes of the model's trained layers, for another vocabulary if it is given."""
        assert isinstance(self.experiment, Experiment)
        return layer_sizes(train_only(self._shape(vocab_size), self.experiment.model.trained))

    @property
    def parameters(self) -> int:
        """How many values the model has, trained and frozen; 0 for a model of the user's own."""
        if self.is_own_model:
            return 0
        return sum(values.numel() for values in self._shape().parameters())

    def _shape(self, vocab_size: int | None = None) -> LanguageModel:
        """The model on torch's meta device from the sizes in its file: no weight is loaded."""
        config = weights.load_config(self.model_file)
        if vocab_size is not None:
            config = dataclasses.replace(config, vocab_size=vocab_size)
        with torch.device("meta"):
            return build(config)

    def plans(self, vocab_size: int | None = None) -> tuple[RoundPlan, ...]:
        """The plan of each phase, as the experiment configures it.

        With a model of the user's own the sizes of layers are not known; events do not depend on
        them.
        """
        assert isinstance(self.experiment, Experiment)
        if not self.is_own_model:
            return round_plans(self.experiment, self.layers(vocab_size))
        norms = self.experiment.plan.layer_clip_norms
        return round_plans(self.experiment, (1,) * len(norms or (1,)))
