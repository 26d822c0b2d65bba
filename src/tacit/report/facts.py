"""All that a report says about a language model's run: report.json, from which the page is made.

Guarantee: without `internal` nothing is read from the run's private folder (design rule 5); that a
key is still there is all that is noticed of it.  There is no clock, no host and no path in it: the
same run gives the same report.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tacit.privacy.events import PostProcessing
from tacit.privacy.guarantee import Projection, finite
from tacit.report import inputs
from tacit.report.audit import NOT_AUDITED, audit_facts, membership_facts
from tacit.report.common_facts import (
    KIND,
    NEVER_CLAIMED,
    claim_facts,
    file_facts,
    ledger_facts,
    versions,
)
from tacit.report.epsilon import Tell, over_releases
from tacit.report.projection import projected_facts
from tacit.report.warnings import found_in
from tacit.runs.export import without_folders
from tacit.runs.run import LanguageRun

LANGUAGE_MODEL = "language model"
FILES = ("experiment.toml", "ledger.jsonl", "metrics.jsonl", "tokenizer.json", "canaries.json")
NOT_CLAIMED = (
    "Anything about a group: the guarantee is for one user at a time, and for a group of k users"
    " epsilon is up to k times as large.",
    "That the model says nothing about anybody: what is true of many users it may learn, whether or"
    " not a certain one of them takes part.",
    *NEVER_CLAIMED,
    "That nothing was memorized because an attack failed: an audit shows what comes out, and"
    " cannot show that nothing else would.",
)


def gather(
    run: LanguageRun,
    *,
    internal: bool = False,
    projection: Projection | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """The facts, in the order of the page."""
    ending = inputs.ending(run.directory)  # first: all else that reads it takes it for whole
    audit = inputs.audit(run.directory)
    metrics = inputs.metrics(run.directory)
    guarantee = run.guarantee()
    projected = projected_facts(guarantee, run.ledger, projection) if projection else None
    private = inputs.private_audit(run.directory) if internal else None
    warnings = found_in(run, guarantee, audit, projected=projected is not None)
    facts = {
        "kind": KIND,
        "of": LANGUAGE_MODEL,
        "internal": internal,
        "run": _about(run, ending),
        "claim": claim_facts(guarantee, run.ledger),
        "projected": projected,
        "other_runs": guarantee.others or None,
        "phases": _phases(run),
        "warnings": [asdict(warning) for warning in warnings],
        "epsilon": over_releases(guarantee, run.ledger, tell=tell),
        "metrics": [row.model_dump(mode="json") for row in metrics],
        "audit": audit_facts(audit, private) if audit else None,
        "not_audited": None if audit else NOT_AUDITED,
        "not_claimed": list(NOT_CLAIMED),
        "ledger": ledger_facts(run.ledger),
        "versions": versions(),
        "experiment": without_folders(run.experiment).to_toml(),
        "files": file_facts(run.directory, (*FILES, inputs.AUDIT_FILE)),
    }
    if internal:
        facts["membership"] = membership_facts(private)
    return facts


def _about(run: LanguageRun, ending: str | None) -> dict[str, Any]:
    about, words = run.experiment.about, run.tokenizer
    return {
        "directory": run.path.resolve().name,
        "name": run.experiment.name,
        "paper": about.paper or None,
        "section": about.section or None,
        "says": about.says or None,
        "rounds_done": run.round,
        "rounds_planned": run.experiment.rounds,
        "complete": ending is not None,
        "ending": ending,
        "simulation": run.is_simulation,
        "model": run.experiment.model.name,
        "parameters": sum(values.numel() for values in run.model().parameters()),
        "tokenizer": f"{words.kind}, {words.vocab_size:,} tokens, {words.provenance}",
        "tokenizer_switches": _switches(run),
    }


def _switches(run: LanguageRun) -> list[dict[str, Any]]:
    """What the ledger says about vocabularies: learnt when, and from what.

    The first one of a run is no switch, and is told only if it was learnt from people's text.
    """
    found = [entry for entry in run.ledger.entries if entry.kind in ("tokenizer", "words")]
    is_public = not any(cost.what == "tokenizer" for cost in run.ledger.header.prior_costs)
    if is_public and found and isinstance(found[0].event, PostProcessing):
        del found[0]
    return [
        {"round": entry.round, "what": str(getattr(entry.event, "reason", entry.event))}
        for entry in found
    ]


def _phases(run: LanguageRun) -> list[dict[str, Any]]:
    """The paper's letters, phase by phase: q, C, S, z and sigma."""
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
        for rounds, plan in zip(planned, run.plans(), strict=True)
    ]
