"""What a reviewer must know of an intent and slot model's run before any figure is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tacit.privacy.guarantee import Guarantee
from tacit.report.common_warnings import (
    Warning,
    in_order,
    of_other_runs,
    of_the_claim,
    of_the_state,
)
from tacit.report.nlu_inputs import NluAttack
from tacit.runs.run import NluRun


def found_in(
    run: NluRun, guarantee: Guarantee, provenance: str, attack: NluAttack | None
) -> list[Warning]:
    """All warnings of a run, the serious ones first; `provenance` is its vocabulary's."""
    experiment = run.experiment
    return in_order(
        [
            *of_the_claim(
                guarantee,
                gives_away="give away what anybody said",
                provenance=provenance,
            ),
            *_of_the_figures(run, guarantee),
            *_of_the_people(guarantee),
            *of_other_runs(guarantee),
            *of_the_state(
                run.directory,
                run.leg,
                experiment.training.epochs,
                is_complete=run.is_complete,
                counted="epoch",
            ),
            *(_of_the_attack(run, attack) if attack else ()),
        ]
    )


def _of_the_figures(run: NluRun, guarantee: Guarantee) -> Iterator[Warning]:
    is_printed = run.experiment.training.method == "edp-sgd-paper"
    is_private = math.isfinite(guarantee.value)
    unit, population = guarantee.header.unit, guarantee.header.population
    if (is_private or is_printed) and not guarantee.delta < 1 / population:
        yield Warning(
            "large-delta",
            "serious",
            f"Delta is not below 1 in {population:,}, the number of training {unit}s: it allows"
            f" that one {unit} of them is given away whole, whatever epsilon is.",
        )
    if is_printed:
        yield Warning(
            "as-printed",
            "note",
            "This is the paper's algorithm as printed. Of the three figures for it only the first"
            " is a guarantee; the others say what it would be, and what the paper would state.",
        )
    if is_private and unit == "record":
        yield Warning(
            "unit-is-an-utterance",
            "note",
            "The unit is an utterance and not a person: whoever said many is protected for each of"
            " them by itself, and less for all of them together.",
        )


def _of_the_people(guarantee: Guarantee) -> Iterator[Warning]:
    if not guarantee.header.about_people:
        yield Warning(
            "made-up-utterances",
            "note",
            "The utterances were made by a program: nobody's text was used, and no figure here is"
            " about people.",
        )


def _of_the_attack(run: NluRun, attack: NluAttack) -> Iterator[Warning]:
    if attack.epoch != run.leg:
        yield Warning(
            "attack-of-another-epoch",
            "note",
            f"The attack is on the model after epoch {attack.epoch:,}, and {run.leg:,} epochs"
            " are done by now.",
        )
