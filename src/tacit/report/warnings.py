"""What a reviewer must know of a language model's run before any figure is read."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.privacy.claims import PROJECTED, format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.report.common_warnings import (
    Warning,
    in_order,
    of_other_runs,
    of_the_claim,
    of_the_state,
)
from tacit.report.inputs import Audit
from tacit.runs.run import LanguageRun


def found_in(
    run: LanguageRun, guarantee: Guarantee, audit: Audit | None, *, projected: bool = False
) -> list[Warning]:
    """All warnings of a run, the serious ones first."""
    found = [
        *of_the_claim(
            guarantee,
            gives_away="repeat what anybody wrote",
            provenance=run.tokenizer.provenance,
        ),
        *_of_the_users(guarantee),
        *of_other_runs(guarantee),
        *_of_planted_text(run, guarantee),
        *of_the_state(
            run.directory,
            run.round,
            run.experiment.rounds,
            is_complete=run.is_complete,
            counted="round",
        ),
        *(_of_the_audit(run, audit) if audit else ()),
    ]
    if projected:
        text = f"Figures that are marked as projected are just that: {PROJECTED}."
        found.append(Warning("projected", "note", text))
    return in_order(found)


def _of_the_users(guarantee: Guarantee) -> Iterator[Warning]:
    view = guarantee.header.view
    if view == "synthetic":
        yield Warning(
            "synthetic-users",
            "note",
            "The users are synthetic: nobody's text was used, and no figure here is about people.",
        )
    elif view == "iid":
        yield Warning(
            "synthetic-users",
            "serious",
            "The users are synthetic, mixed from people's texts (the IID view): a guarantee for"
            " such a user protects no person.",
        )


def _of_planted_text(run: LanguageRun, guarantee: Guarantee) -> Iterator[Warning]:
    planted = run.experiment.audit
    if guarantee.header.audit:
        what = [
            *(["canaries were planted among the training texts"] if planted.canaries else []),
            *(["made-up users took part"] if planted.canary_clients else []),
        ]
        yield Warning(
            "audit-run",
            "note",
            f"This is an audit run: {' and '.join(what)}, so that the model is for finding out what"
            " it gives away and not for use.",
        )


def _of_the_audit(run: LanguageRun, audit: Audit) -> Iterator[Warning]:
    shown, accounted = audit.empirical_epsilon, audit.accounted_epsilon
    if shown is not None and accounted is not None and shown.lower_bound > accounted:
        yield Warning(
            "claim-refuted",
            "serious",
            f"The audit refutes the claim: with {100 * shown.confidence:g}% confidence epsilon is"
            f" at least {shown.lower_bound:.4g}, above the accounted {format_epsilon(accounted)}."
            " The training does not do what is accounted for.",
        )
    for doubt in shown.warnings if shown is not None else ():
        yield Warning("empirical-epsilon", "note", doubt)
    if audit.controls is not None and (audit.controls.memorized_rs or audit.controls.memorized_bs):
        yield Warning(
            "controls-memorized",
            "note",
            "Some controls count as memorized although they were never planted, so that some of"
            " the canaries may count for the same reason.",
        )
    out = sum(row.memorized_rs or row.memorized_bs for row in audit.rows)
    if out:
        yield Warning(
            "memorized",
            "note",
            f"{out} of the {audit.canaries} planted canaries can be drawn out of the model.",
        )
    phrases = sum(row.memorized_rs or row.memorized_bs for row in audit.phrases or ())
    if phrases:
        yield Warning(
            "phrases-memorized",
            "serious",
            f"{phrases} of the {len(audit.phrases or ())} phrases that must not come out can be"
            " drawn out of the model.",
        )
    if audit.round != run.round:
        yield Warning(
            "audit-of-another-round",
            "note",
            f"The audit is of the model after round {audit.round:,}, and {run.round:,} rounds are"
            " done by now.",
        )
