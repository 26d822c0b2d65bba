"""What a reviewer must know of a run before any figure is read.

Warnings come before any figure on the page, the serious ones first, and `tacit report` prints them.
A warning is "serious" if the model must not be given away as it is, or if the claim itself is in
doubt; otherwise it is a "note" that qualifies the figures.  Those that only one kind of model can
have are in `report.language` and `report.nlu`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tacit.privacy.claims import format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.runs.run import Run

_LARGE_EPSILON = 10.0  # from here on the odds may change by a factor of over 20,000


@dataclass(frozen=True)
class ReportWarning:
    """A name for scripts, and a text for people; `docs/report.md` lists all names."""

    name: str
    severity: Literal["serious", "note"]
    text: str

    @classmethod
    def serious(cls, name: str, text: str) -> ReportWarning:
        """The model must not be given away, or the claim is in doubt."""
        return cls(name, "serious", text)

    @classmethod
    def note(cls, name: str, text: str) -> ReportWarning:
        """What qualifies the figures."""
        return cls(name, "note", text)


def claim_warnings(guarantee: Guarantee) -> Iterator[ReportWarning]:
    """Why a claim holds for nothing, for little, or for nobody.

    It is a function of the ledger, so that `tacit verify` knows which warnings a report must have.
    """
    header, unit = guarantee.header, guarantee.header.unit
    if not math.isfinite(guarantee.value):
        yield ReportWarning.serious(
            "no-guarantee",
            "This run has no privacy guarantee: its epsilon is infinite. Its model may repeat what"
            " anybody wrote or said, and must not be released.",
        )
    elif not guarantee.is_meaningful:
        yield ReportWarning.serious(
            "no-meaningful-guarantee",
            f"An epsilon of {format_epsilon(guarantee.value)} is no meaningful guarantee: nothing"
            f" that could be concluded about a {unit} is ruled out. Treat the model as trained"
            " without privacy.",
        )
    elif guarantee.value > _LARGE_EPSILON:
        yield ReportWarning.note(
            "large-epsilon",
            f"An epsilon of {format_epsilon(guarantee.value)} promises little: it allows the odds"
            f" of anything concluded about a {unit} to change by a factor of up to e to the power"
            " of epsilon.",
        )
    if not guarantee.delta < 1 / header.population:
        yield ReportWarning.serious(
            "large-delta",
            f"Delta is not below 1 in {header.population:,}, the number of training {unit}s: it"
            f" allows that one {unit} of them is given away whole, whatever epsilon is.",
        )
    if header.simulation:
        yield ReportWarning.serious(
            "simulation",
            "This is a simulation, not for release: its noise follows from a seed, and anyone who"
            " knows the seed can subtract the noise.",
        )
    if header.view == "iid":
        yield ReportWarning.serious(
            "mixed-users",
            "The users are synthetic, mixed from people's texts (the IID view): a guarantee for"
            " such a user protects no person.",
        )
    elif header.view == "synthetic":
        yield ReportWarning.note(
            "made-up-text",
            f"The {unit}s were made up by a program: no person's text was used, and no figure here"
            " is about people.",
        )
    if unit == "record" and math.isfinite(guarantee.value):
        yield ReportWarning.note(
            "unit-is-an-utterance",
            "The unit is an utterance and not a person: protection is per utterance, and weakens"
            " with each utterance that a person contributed.",
        )


def run_warnings(
    run: Run, guarantee: Guarantee, provenance: str, audited_leg: int | None
) -> Iterator[ReportWarning]:
    """What else holds for any run: its vocabulary, the other runs, its end, its key, its audit.

    `provenance` is that of the vocabulary, and `audited_leg` the round or epoch after which the
    model was audited, if it was.
    """
    leg = run.experiment.leg_name
    if provenance in {"oracle", "unknown"}:
        origin = (
            "was learnt from the users' own text (an oracle tokenizer)"
            if provenance == "oracle"
            else "is of unknown origin"
        )
        yield ReportWarning.serious(
            "oracle-tokenizer",
            f"The vocabulary {origin}. It is part of the release, so that no guarantee holds.",
        )
    if guarantee.others:
        yield ReportWarning.note("other-runs", guarantee.others)
    if not run.is_complete:
        yield ReportWarning.note(
            "incomplete",
            f"The training is not complete: {run.leg:,} of {run.experiment.legs:,} {leg}s are"
            f" done. Every further {leg} that is released costs more than is stated here.",
        )
    if run.directory.key_file.exists():
        yield ReportWarning.note(
            "key-kept",
            "The run's key still exists. Anyone who has it can subtract the noise; the claim is"
            " against everybody else.",
        )
    if audited_leg not in (None, run.leg):
        yield ReportWarning.note(
            "stale-audit",
            f"What was audited is the model after {leg} {audited_leg:,}, and {run.leg:,} {leg}s are"
            " done by now.",
        )
