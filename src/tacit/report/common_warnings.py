"""Warnings that any run can have, whatever its model.

A warning is "serious" if the model must not be given away as it is, or if the claim itself is in
doubt; otherwise it is a "note" that qualifies the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tacit.privacy.claims import format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.runs.directory import RunDirectory

LARGE_EPSILON = 10.0  # from here on the odds may change by a factor of over 20,000


@dataclass(frozen=True)
class Warning:
    """A name for scripts, and a text for people."""

    name: str
    severity: Literal["serious", "note"]
    text: str


def in_order(found: Iterable[Warning]) -> list[Warning]:
    """The serious ones first."""
    return sorted(found, key=lambda warning: warning.severity != "serious")


def of_the_claim(guarantee: Guarantee, *, gives_away: str, provenance: str) -> Iterator[Warning]:
    """Why a claim holds for nothing, or for little; `provenance` is the vocabulary's."""
    epsilon, header = guarantee.value, guarantee.header
    if not math.isfinite(epsilon):
        yield Warning(
            "no-guarantee",
            "serious",
            "This run has no privacy guarantee: its epsilon is infinite. Its model may"
            f" {gives_away} and must not be released.",
        )
    elif epsilon > LARGE_EPSILON:
        yield Warning(
            "large-epsilon",
            "note",
            f"An epsilon of {format_epsilon(epsilon)} promises little: it allows the odds of"
            f" whatever is concluded about a {header.unit} to change by a factor of up to e to the"
            " power of epsilon.",
        )
    if header.simulation:
        yield Warning(
            "simulation",
            "serious",
            "This is a simulation, not for release: its noise follows from a seed, and whoever"
            " knows the seed can subtract the noise.",
        )
    if provenance in {"oracle", "unknown"}:
        whose = (
            "was learnt from the users' own text (an oracle tokenizer)"
            if provenance == "oracle"
            else "is of unknown origin"
        )
        yield Warning(
            "oracle-tokenizer",
            "serious",
            f"The vocabulary {whose}. It is part of the release, so that no guarantee holds.",
        )


def of_other_runs(guarantee: Guarantee) -> Iterator[Warning]:
    """That the same people's text was used before, or since."""
    if guarantee.others:
        yield Warning("other-runs", "note", guarantee.others)


def of_the_state(
    directory: RunDirectory, done: int, planned: int, *, is_complete: bool, counted: str
) -> Iterator[Warning]:
    """That it is not over, or that its noise could still be taken away."""
    if not is_complete:
        yield Warning(
            "incomplete",
            "note",
            f"The training is not complete: {done:,} of {planned:,} {counted}s are done. Every"
            f" further {counted} that is released costs more than is stated here.",
        )
    if directory.key_file.exists():
        yield Warning(
            "key-kept",
            "note",
            "The run's key still exists. Whoever has it can subtract the noise; the claim is"
            " against everybody else.",
        )
