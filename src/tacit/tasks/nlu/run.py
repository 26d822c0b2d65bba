"""A run of an intent and slot model to read: its model, its metrics, and what it may claim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.corpus.people_ledger import remark_on_others
from tacit.mechanisms.edp_sgd import PaperEdpSgd
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.tasks.nlu import model_files
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.directory import NluDirectory
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.metrics import NLUMetrics
from tacit.tasks.nlu.model_files import StoredModel
from tacit.tasks.nlu.opening import data_of
from tacit.tasks.nlu.predictions import evaluate
from tacit.tasks.nlu.printed import as_printed


@dataclass(frozen=True)
class NluRun:
    """A run directory, finished or not; `open` checks that its parts belong together."""

    directory: NluDirectory
    experiment: NluExperiment
    ledger: Ledger
    epoch: int  # epochs done

    @classmethod
    def open(cls, path: str | Path) -> NluRun:
        """The run at `path`; a damaged or shortened part is refused."""
        directory = NluDirectory.open(path)
        last = directory.checkpoints.read()
        ledger = Ledger.read(directory.ledger_file, last.head)
        directory.refuse_edited(ledger.header)
        return cls(directory, directory.experiment(), ledger, last.round)

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def is_complete(self) -> bool:
        return self.directory.result() is not None

    @property
    def is_simulation(self) -> bool:
        return self.ledger.header.simulation

    def stored(self) -> StoredModel:
        """The last model, with its encoder and labels."""
        return model_files.load(self.directory.checkpoints.read().model_file)

    def data(self) -> NLUData:
        """The utterances it was trained on, if they are still where they were."""
        return data_of(self.experiment)

    def metrics(self) -> list[dict[str, Any]]:
        """On valid, by epoch."""
        return self.directory.metrics()

    def test_metrics(self) -> NLUMetrics:
        """On the utterances of test."""
        stored = self.stored()
        return evaluate(stored.model, stored.encoder, stored.labels, self.data().test)

    def guarantee(self) -> Guarantee:
        """What may be claimed for the model: a function of the ledger."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))

    def as_printed(self) -> list[dict[str, object]] | None:
        """The three figures of `edp-sgd-paper`; None for every other method."""
        training, noise = self.experiment.training, self.experiment.noise
        if training.method != "edp-sgd-paper":
            return None
        algorithm = PaperEdpSgd(
            training.workers,
            noise.clip_norm,
            noise.noise_multiplier or 0.0,
            self.directory.scaling(),
            noise.noise_decay(),
        )
        return as_printed(algorithm.figures(self.epoch, self.ledger.header.delta))

    def summary(self, ending: str = "") -> dict[str, Any]:
        """The figures that `tacit nlu train --json` prints and result.json keeps."""
        found = self.guarantee()
        return {
            "run": str(self.path),
            "ending": ending,
            **found.as_row(),
            "epochs": self.epoch,
            "method": self.experiment.training.method,
            "model": self.experiment.model.name,
            "data": self.experiment.data.source,
            "test": self.test_metrics().as_row(),
            "as_printed": self.as_printed(),
            "simulation": self.is_simulation,
        }
