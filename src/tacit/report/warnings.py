"""What a reviewer must know before any figure is read, in plain words.

A warning is "serious" if the model must not be given away as it is, or if the claim itself is in
doubt; otherwise it is a "note" that qualifies the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tacit.guarantee import Guarantee
from tacit.privacy.claims import PROJECTED, format_epsilon
from tacit.report.inputs import Audit
from tacit.run import Run

LARGE_EPSILON = 10.0  # from here on the odds may change by a factor of over 20,000


@dataclass(frozen=True)
class Warning:
    """A name for scripts, and a text for people."""

    name: str
    severity: Literal["serious", "note"]
    text: str


def found_in(
    run: Run, guarantee: Guarantee, audit: Audit | None, *, projected: bool = False
) -> list[Warning]:
    """All warnings of a run, the serious ones first."""
    epsilon = guarantee.epsilon[guarantee.accountant]
    found = [
        *_of_the_claim(run, epsilon),
        *_of_the_users(run),
        *_of_the_state(run, guarantee),
        *(_of_the_audit(run, audit) if audit else ()),
    ]
    if projected:
        text = f"Figures that are marked as projected are just that: {PROJECTED}."
        found.append(Warning("projected", "note", text))
    return sorted(found, key=lambda warning: warning.severity != "serious")


def has_synthetic_users(run: Run) -> bool:
    """Whether its users stand for nobody, so that no claim about people may be made."""
    return any(warning.name == "synthetic-users" for warning in _of_the_users(run))


def _of_the_claim(run: Run, epsilon: float) -> Iterator[Warning]:
    if not math.isfinite(epsilon):
        yield Warning(
            "no-guarantee",
            "serious",
            "This run has no privacy guarantee: its epsilon is infinite. Its model may repeat"
            " what anybody wrote and must not be released.",
        )
    elif epsilon > LARGE_EPSILON:
        yield Warning(
            "large-epsilon",
            "note",
            f"An epsilon of {format_epsilon(epsilon)} promises little: it allows the odds of"
            " whatever is concluded about a user to change by a factor of up to e to the power of"
            " epsilon.",
        )
    if run.is_simulation:
        yield Warning(
            "simulation",
            "serious",
            "This is a simulation, not for release: its noise follows from a seed, and whoever"
            " knows the seed can subtract the noise.",
        )
    if run.tokenizer.provenance in {"oracle", "unknown"}:
        whose = (
            "was learnt from the users' own text (an oracle tokenizer)"
            if run.tokenizer.provenance == "oracle"
            else "is of unknown origin"
        )
        yield Warning(
            "oracle-tokenizer",
            "serious",
            f"The vocabulary {whose}. It is part of the release, so that no guarantee holds.",
        )


def _of_the_users(run: Run) -> Iterator[Warning]:
    corpus = run.experiment.corpus
    if corpus.source.partition(":")[0] == "synthetic":
        yield Warning(
            "synthetic-users",
            "note",
            "The users are synthetic: nobody's text was used, and no figure here is about people.",
        )
    elif corpus.view == "iid":
        yield Warning(
            "synthetic-users",
            "serious",
            "The users are synthetic, mixed from people's texts (the IID view): a guarantee for"
            " such a user protects no person.",
        )


def _of_the_state(run: Run, guarantee: Guarantee) -> Iterator[Warning]:
    if guarantee.others:
        yield Warning("other-runs", "note", guarantee.others)
    planted = run.experiment.audit
    if planted.is_on:
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
    if not run.is_complete:
        yield Warning(
            "incomplete",
            "note",
            f"The training is not complete: {run.round:,} of {run.experiment.rounds:,} rounds are"
            " done. Every further round that is released costs more than is stated here.",
        )
    if run.directory.key_file.exists():
        yield Warning(
            "key-kept",
            "note",
            "The run's key still exists. Whoever has it can subtract the noise; the claim is"
            " against everybody else.",
        )


def _of_the_audit(run: Run, audit: Audit) -> Iterator[Warning]:
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
