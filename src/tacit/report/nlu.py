"""What is special about the report on an intent and slot model: steps, utterances and its attack.

The factors alpha_k of eDP-SGD are left out where they come from people's records without noise, and
`private/attack.json`, which a membership attack computed from people's utterances, is opened for an
internal report only (design rule 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tacit.audit import results
from tacit.audit.nlu import kept_result
from tacit.privacy.events import Gaussian, PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.report import metrics
from tacit.report.audit import membership_facts
from tacit.report.claim import Tell
from tacit.report.figures import Facts, roc_chart, shares_chart
from tacit.report.warnings import ReportWarning
from tacit.runs.file_names import without_folder
from tacit.runs.run import NluRun
from tacit.tasks.nlu.experiment import PRIVATE
from tacit.tasks.nlu.metrics import NLUMetrics, by_intent
from tacit.tasks.nlu.plan import epoch_steps
from tacit.tasks.nlu.predictions import predict
from tacit.tasks.nlu.scaling import read as read_scaling

_ERRORS = {"semantic_error_rate": "SER"}
_SUCCESSES = {"intent_accuracy": "intent accuracy", "slot_f1": "slot F1"}


@dataclass(frozen=True, kw_only=True)
class _EpochMetrics(NLUMetrics):
    """A line of metrics.jsonl, on valid."""

    epoch: int


@dataclass(frozen=True)
class _RunResult:
    """result.json: the metrics on test."""

    test: NLUMetrics


class NluReport:
    """The parts of a report that only an intent and slot model has; compare `LanguageReport`."""

    template = "nlu.html"

    def __init__(self, run: NluRun, *, internal: bool) -> None:
        self._run, self._internal = run, internal
        self._result = results.read(_RunResult, run.directory.result_file)
        self._attacks = kept_result(run) if internal else None
        self._stored = run.stored()
        self.audited_leg = self._attacks.leg if self._attacks else None
        self.provenance = self._stored.encoder.provenance

    def about(self) -> dict[str, Any]:
        """The data and the model."""
        experiment, stored = self._run.experiment, self._stored
        return {
            "data": without_folder(experiment.data.source),
            "split": experiment.data.split,
            "reference": experiment.data.reference,
            "pretrained": without_folder(experiment.model.pretrained) or None,
            "parameters": sum(values.numel() for values in stored.model.parameters()),
            "vocabulary": without_folder(stored.encoder.provenance),
            "intents": len(stored.labels.intents),
            "tags": len(stored.labels.tags),
        }

    def sections(self, tell: Tell | None) -> dict[str, Any]:
        """What was released, the metrics, and the attack in an internal report."""
        rows = metrics.read(_EpochMetrics, self._run.directory)
        drawn = [attrgetter(name) for name in (*_ERRORS, *_SUCCESSES, "exact_match")]
        shown = metrics.thinned(rows, drawn)
        return {
            "metrics": [row.as_row() for row in shown],
            "measured": len(rows),
            "released": self._released(),
            "test": self._test(tell),
            **({"membership": membership_facts(self._attacks)} if self._internal else {}),
        }

    def warnings(self, guarantee: Guarantee) -> Iterator[ReportWarning]:
        """That what the paper states for its algorithm as printed is no guarantee."""
        if self._run.experiment.training.method == "edp-sgd-paper":
            yield ReportWarning.note(
                "as-printed",
                "This is the paper's algorithm as printed. The epsilon that the paper states for"
                " it is no guarantee; tacit papers nlu shows it beside the one that holds.",
            )

    @staticmethod
    def charts(facts: Facts) -> dict[str, Facts | None]:
        """The charts of the training and of the attack by name."""
        rows, attack = facts["metrics"], facts.get("membership")
        error_rate, rest = "Semantic error rate on valid", "Intents and slots on valid"
        attacks = attack["attacks"] if attack else ()
        return {
            "errors": shares_chart(error_rate, "SER in %", "epochs", rows, _ERRORS),
            "successes": shares_chart(rest, "in %", "epochs", rows, _SUCCESSES),
            "roc": roc_chart("Membership attacks on utterances", attacks),
        }

    def _released(self) -> dict[str, Any]:
        """What the steps were, under the paper's letters, and the multipliers that were charged.

        The largest alpha_k is null where it would tell about people's records.
        """
        run, training, noise = self._run, self._run.experiment.training, self._run.experiment.noise
        is_poisson, is_edp = training.method in PRIVATE, training.method.startswith("edp-sgd")
        multipliers = [
            entry.event.noise_multiplier
            for entry in run.ledger.entries
            if entry.kind == "round" and isinstance(entry.event, Gaussian | PoissonGaussian)
        ]
        is_scale_public = is_edp and noise.scaling != "first-gradient"
        population = noise.population or 0
        return {
            **training.model_dump(mode="json"),
            **noise.model_dump(mode="json"),
            "clip_norm": noise.clip_norm if training.method != "sgd" else None,
            "micro_batches": (training.micro_batches or training.workers) if is_edp else None,
            "steps_of_epoch": epoch_steps(run.experiment, population) if is_poisson else None,
            "sampling_prob": training.batch_size / population if is_poisson else None,
            "noise_over_sensitivity": [max(multipliers), min(multipliers)] if multipliers else None,
            "scaling": noise.scaling if is_edp else None,
            "largest_scale": read_scaling(run.path).largest if is_scale_public else None,
        }

    def _test(self, tell: Tell | None) -> dict[str, Any] | None:
        """The metrics on test, which a finished run has, and the same by intent.

        Those by intent are measured again, with the last model.  They are left out if the
        utterances are not where they were, or give other figures in all than the run had.
        """
        if self._result is None:
            return None
        whole = self._result.test.as_row()
        unknown = {**whole, "by_intent": None}
        try:
            utterances = self._run.data().test
        except (OSError, ValueError):
            return unknown
        answers = predict(
            self._stored,
            [utterance.tokens for utterance in utterances],
            progress=(lambda done, of: tell("test utterances", done, of)) if tell else None,
        )
        table = by_intent(utterances, answers)
        if sum(table.values(), NLUMetrics()) != self._result.test:
            return unknown
        rows = [{"intent": intent, **reached.as_row()} for intent, reached in table.items()]
        return {**whole, "by_intent": rows}
