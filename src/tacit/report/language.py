"""What is special about the report on a language model: rounds of users, words, and its audit.

A round samples users, clips and averages their updates, and adds noise; its plan is told in the
letters of McMahan et al. 2018 (`docs/notation.md`).  Metrics are those on the text of test users,
who are disjoint from the training users and not protected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from tacit.privacy.events import PostProcessing
from tacit.privacy.guarantee import Guarantee, finite
from tacit.report import metrics
from tacit.report.audit import AuditSection, audit_charts
from tacit.report.claim import Tell
from tacit.report.figures import Facts, fitted_chart, shares_chart
from tacit.report.noise import noise_charts, noise_facts
from tacit.report.warnings import ReportWarning
from tacit.runs.comparison import published_baselines, released_claim
from tacit.runs.figures import BASELINES, better_baselines, describe_loss
from tacit.runs.run import LanguageRun

_COMPARED = (
    "accuracy_top1",
    "accuracy_top1_unk_competes",
    "accuracy_top3",
    "accuracy_top5",
    "perplexity",
)
_ACCURACIES = {"accuracy_top1": "top-1", "accuracy_top3": "top-3", "accuracy_top5": "top-5"}


@dataclass(frozen=True)
class _RoundMetrics:
    """A line of metrics.jsonl: what was measured after a round on the text of test users."""

    round: int
    targets: int | None = None
    accuracy_top1: float | None = None
    accuracy_top3: float | None = None
    accuracy_top5: float | None = None
    accuracy_top1_unk_competes: float | None = None  # None: an older run did not measure it
    perplexity: float | None = None
    word_accuracy: float | None = None
    perplexity_per_word: float | None = None
    switched: bool = False  # measured right after the tokenizer was switched
    unknown_rate: float | None = None
    epsilon: float | None = None


class LanguageReport:
    """The parts of a report that only a language model has.

    `report.facts` asks every task for the same: a template, how far the
    model was audited and where its vocabulary is from, what to say about the run, further sections,
    warnings, and charts.
    """

    template = "language.html"

    def __init__(self, run: LanguageRun, *, internal: bool) -> None:
        self._run, self._internal = run, internal
        self._audit = AuditSection.read(run.directory, internal=internal)
        self.audited_leg = self._audit.public.round if self._audit.public else None
        self.provenance = run.tokenizer.provenance
        self._baselines = published_baselines(run)
        self._last = run.directory.last_metrics()

    def about(self) -> dict[str, Any]:
        """The model and its tokenizer."""
        run, words = self._run, self._run.tokenizer
        return {
            "parameters": run.parameters,
            "tokenizer": f"{words.kind}, {words.vocab_size:,} tokens, {words.provenance}",
            "tokenizer_switches": _switches(run),
        }

    def sections(self, tell: Tell | None) -> dict[str, Any]:
        """The metrics, the plan of each phase and the audit, which an internal report has in full.

        Perplexity is per token, or per word where the tokenizer was switched: only that compares.
        """
        claim = released_claim(self._run)
        rows = metrics.read(_RoundMetrics, self._run.directory)
        drawn = [attrgetter(name) for name in (*_COMPARED, "perplexity_per_word")]
        shown = metrics.thinned(rows, drawn)
        return {
            "metrics": [asdict(row) for row in shown],
            "measured": len(rows),
            "perplexity_per": "word" if any(row.switched for row in rows) else "token",
            "baselines": [
                {"name": BASELINES[name], **{key: row.get(key) for key in _COMPARED}}
                for name, row in self._baselines.items()
            ],
            "private_baselines_claim": claim,
            "phases": _phases(self._run),
            "audit": self._audit.facts(),
            **({"membership": self._audit.membership()} if self._internal else {}),
        }

    def warnings(self, guarantee: Guarantee) -> Iterator[ReportWarning]:
        """What was planted in the training, what the model loses to, and what the audit doubts."""
        planted = self._run.experiment.audit
        if guarantee.header.audit:
            what = [
                *(["canaries were planted among the training texts"] if planted.canaries else []),
                *(["made-up users took part"] if planted.canary_clients else []),
            ]
            yield ReportWarning.note(
                "audit-run",
                f"This is an audit run: {' and '.join(what)}, so that the model is for finding out"
                " what it gives away and not for use.",
            )
        better = better_baselines(self._last, self._baselines)
        if better:
            text = describe_loss("The model", self._last, better)
            yield ReportWarning.note("loses-to-baseline", text)
        yield from self._audit.warnings()

    @staticmethod
    def charts(facts: Facts) -> dict[str, Facts | None]:
        """The charts of the training and of the audit by name.

        Accuracy over epsilon leaves out what was measured before anything was spent, and all of a
        run without privacy, whose epsilon is null.
        """
        rows = facts["metrics"]
        costly = [row for row in rows if row["epsilon"]]
        unit = facts["perplexity_per"]
        column = "perplexity_per_word" if unit == "word" else "perplexity"
        perplexities = [(row["round"], row[column]) for row in rows if row[column] is not None]
        return {
            "accuracy": shares_chart(
                "Accuracy over the training", "accuracy in %", "rounds", rows, _ACCURACIES
            ),
            "perplexity": fitted_chart(
                f"Perplexity per {unit} over the training",
                f"perplexity per {unit}",
                "rounds",
                {"perplexity": perplexities},
                is_log=True,
            ),
            "accuracy_over_epsilon": shares_chart(
                "Accuracy over epsilon", "accuracy in %", "epsilon so far", costly, _ACCURACIES
            ),
            **noise_charts(facts["phases"]),
            **audit_charts(facts),
        }


def _switches(run: LanguageRun) -> list[dict[str, Any]]:
    """What the ledger says about vocabularies: learnt when, and from what.

    The first one of a run is no switch, and is told only if it was learnt from people's text.
    """
    entries = [entry for entry in run.ledger.entries if entry.kind in ("tokenizer", "words")]
    is_public = not any(cost.what == "tokenizer" for cost in run.ledger.header.prior_costs)
    if is_public and entries and isinstance(entries[0].event, PostProcessing):
        del entries[0]
    return [
        {"round": entry.round, "what": str(getattr(entry.event, "reason", entry.event))}
        for entry in entries
    ]


def _phases(run: LanguageRun) -> list[dict[str, Any]]:
    """The paper's letters, phase by phase: q, C, S, z and sigma.

    A clip norm is null where nothing is clipped, and noise where there is none.  Only noise that is
    correlated over the rounds has a picture.
    """
    planned = [phase.rounds for phase in run.experiment.phases] or [run.experiment.rounds]
    return [
        {
            "rounds": rounds,
            "sampler": plan.sampler.describe(),
            "sampling_prob": plan.sampler.sampling_prob,
            "cohort": plan.expected_cohort,
            "clip_norm": finite(plan.initial_clip_state().total_norm),
            "clip_norm_changes": plan.adaptive is not None or plan.schedule.kind != "constant",
            "noise_multiplier": plan.noise_multiplier,
            "noise_over_sensitivity": plan.event_multiplier if plan.is_private else None,
            "noise_stddev": plan.noise_stddev() if plan.is_private else None,
            "estimator": plan.estimator.kind,
        }
        | ({"correlated": noise_facts(drawn)} if (drawn := plan.noise_picture(rounds)) else {})
        for rounds, plan in zip(planned, run.plans_to_read(), strict=True)
    ]
