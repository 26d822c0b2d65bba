"""A run to read: its experiment, its models, its metrics, and what it may claim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.corpus.source import UserCorpus
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import RunDirectory
from tacit.tasks.language import run_tokenizers
from tacit.tasks.language.people import remark_on_others
from tacit.tasks.language.plans import layers_of, round_plans
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Run:
    """A run directory, finished or not.  `Run.open` checks that its parts belong together."""

    directory: RunDirectory
    experiment: Experiment
    tokenizer: Tokenizer
    ledger: Ledger
    round: int  # rounds done

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run at `path`; a damaged or shortened part is refused."""
        directory = RunDirectory.open(path)
        last = directory.checkpoints.read()
        tokenizer = run_tokenizers.by_fingerprint(directory, last.tokenizer)
        ledger = Ledger.read(directory.ledger_file, last.head)
        directory.refuse_edited(ledger.header)
        return cls(directory, directory.experiment(), tokenizer, ledger, last.round)

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def first_round(self) -> int:
        """Where it began: 0, or the round at which it left the run that it is a branch of."""
        return self.ledger.header.first_round

    @property
    def is_complete(self) -> bool:
        return self.directory.result() is not None

    @property
    def is_simulation(self) -> bool:
        return self.ledger.header.simulation

    def model(self, round: int | None = None) -> LanguageModel:
        """The model after a round, by default the last one."""
        found = self.directory.checkpoints.read(round)
        size = self.tokenizer_at(found.round).vocab_size
        return weights.load(found.model_file, vocab_size=size, own_factory=self._own)

    def tokenizer_at(self, round: int) -> Tokenizer:
        """The tokenizer of the model after a round, which is not the last one's after a switch."""
        fingerprint = self.directory.checkpoints.read(round).tokenizer
        if fingerprint == self.tokenizer.fingerprint:
            return self.tokenizer
        return run_tokenizers.by_fingerprint(self.directory, fingerprint)

    def metrics(self) -> list[dict[str, Any]]:
        """Held-out metrics by round."""
        return self.directory.metrics()

    def plans(self) -> tuple[RoundPlan, ...]:
        """The plan of each phase."""
        return round_plans(self.experiment, layers_of(self.model()))

    def corpus(self) -> UserCorpus:
        """The corpus it was trained on, if that is still where it was."""
        return load_corpus(self.experiment.corpus.source)

    def guarantee(self) -> Guarantee:
        """What may be claimed for the model: a function of the ledger."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))

    def summary(self, ending: str = "") -> dict[str, Any]:
        """The figures that `train --json` prints and result.json keeps."""
        measured = dict(self.metrics()[-1]) if self.metrics() else {}
        measured["tokens"] = measured.pop("targets", None)
        for name in ("round", "epsilon"):
            measured.pop(name, None)
        guarantee = self.guarantee()
        claimed = guarantee.as_row() | {"charged_rounds": guarantee.rounds}
        facts = {"rounds": self.round, "intact": True, "simulation": self.is_simulation}
        return {"run": str(self.path), "ending": ending, **claimed, **measured, **facts}

    @property
    def _own(self) -> str | None:
        name = self.experiment.model.name
        return name if ":" in name else None
