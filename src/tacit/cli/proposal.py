"""How a plan that tacit made is shown, before anything is trained or instead of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tacit.cli.output import note, table
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.visible import visible
from tacit.runs.terminal import Terminal

if TYPE_CHECKING:
    from tacit.planner.choice import Choice
    from tacit.planner.proposal import Proposal, Wish


def make(wish: Wish) -> Proposal:
    """The proposal for a wish; standard error says what is being looked at.

    On a terminal that is one line that changes, elsewhere a line for each.
    """
    from tacit.planner.proposal import propose

    console = Terminal(stderr=True)
    if not console.is_terminal:
        return propose(wish, lambda what: note(f"planning: {what}"))
    with console.status("planning") as status:
        return propose(wish, lambda what: status.update(Text(visible(f"planning: {what}"))))


def show(console: Console, proposal: Proposal, *, explain: bool = False) -> None:
    """The plan as a table that a person can judge, what else could be had, and why it is so."""
    console.print(table("the plan", "", rows=_rows(proposal)))
    choices = {"as it is": proposal.choice, **proposal.others()}
    headings = ("with", ">rounds", ">people a round", ">tokens", ">noise", ">expected top-1")
    rows = [(name, *_cells(proposal, choice)) for name, choice in choices.items()]
    console.print(table(*headings, rows=rows))
    if explain:
        why = [
            (key, _value(proposal.experiment.model_dump(), key), reason)
            for key, reason in proposal.reasons.items()
        ]
        console.print(table("setting", "value", "why", rows=why))


def as_row(proposal: Proposal) -> dict[str, Any]:
    """The plan under the names that scripts rely on."""
    choice, facts = proposal.choice, proposal.facts
    return {
        "population": facts.population,
        "epsilon": facts.epsilon,
        "delta": facts.delta,
        "rounds": choice.rounds,
        "cohort": choice.cohort,
        "noise": choice.noises.kind,
        "sampling": choice.noises.sampling,
        "separation": choice.noises.separation,
        "noise_multiplier": choice.noise_multiplier,
        "noise_over_clip_norm": choice.noise,
        "tokens_per_round": choice.reading.tokens,
        "rate_share": choice.rate_share,
        "signal_over_clip_norm": proposal.signal,
        "seconds": proposal.seconds,
        "start": proposal.rehearsal.start.as_row(),
        "expected_accuracy_top1": proposal.expect().accuracy,
        "experiment": proposal.experiment.model_dump(mode="json", exclude_none=True),
    }


def _rows(proposal: Proposal) -> Iterator[tuple[str, str]]:
    wish, facts, choice = proposal.wish, proposal.facts, proposal.choice
    start = proposal.rehearsal.start
    counted = "counted" if wish.population is None else "declared"
    update = proposal.experiment.update
    yield "people", f"{facts.population:,} to train on ({counted}; the number is public)"
    yield (
        "claim",
        f"epsilon {format_epsilon(facts.epsilon)} at most, at delta {format_delta(facts.delta)}",
    )
    yield (
        "start",
        f"{proposal.experiment.model.start}, {facts.parameters:,} parameters: right"
        f" {start.accuracy_top1:.1%} of the time on your test people, perplexity"
        f" {start.perplexity:.0f}, {start.unknown_rate:.1%} of the words unknown",
    )
    yield "rounds", f"{choice.rounds} of about {choice.cohort:,} people each"
    yield "from a person", f"at most {update.tokens_per_round:,} tokens a round"
    yield "taking part", _taking_part(proposal)
    yield (
        "noise",
        f"{choice.noises.kind}, z = {choice.noise_multiplier:.3g}; on the average"
        f" {'as bad as ' if choice.noises.separation else ''}{choice.noise:.2f} x the clip norm,"
        f" where updates on public text share {proposal.signal:.2f} x: signal to noise"
        f" {proposal.signal / choice.noise:.2f}",
    )
    expected = proposal.expect()
    yield "expected", f"right {expected} points of the time (docs/results/own-text.md)"
    if expected.accuracy < start.accuracy_top1 + expected.error:
        yield (
            "worth it?",
            "perhaps not: the start, for which nobody gives anything, is as good within what is"
            " known; below is what more people, more time or a larger epsilon would bring",
        )
    yield "time", f"about {_minutes(proposal.seconds)}, with {wish.workers} processes"


def _taking_part(proposal: Proposal) -> str:
    """What the claim assumes about who takes part."""
    noise, rounds = proposal.choice.noises, proposal.choice.rounds
    if noise.separation is None:
        return "by Poisson sampling: who takes part is random, and kept secret"
    times = math.ceil(rounds / noise.separation)
    often = f"in turns, at most {times} times, {noise.separation} rounds apart"
    if noise.sampling == "cyclic-poisson":
        return f"{often}, by Poisson sampling: random, and kept secret"
    return f"{often}; no sampling is assumed"


def _cells(proposal: Proposal, choice: Choice) -> tuple[str, ...]:
    expected = str(proposal.expect(choice))
    read = f"{choice.reading.tokens:,}"
    return f"{choice.rounds}", f"{choice.cohort:,}", read, f"{choice.noise:.2f}", expected


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def _value(tables: Any, key: str) -> str:
    """A value of nested tables by its dotted key; of a table, its own values."""
    for part in key.split("."):
        tables = tables[part]
    if isinstance(tables, dict):
        return ", ".join(f"{name} {value}" for name, value in tables.items())
    return "solved for" if tables is None else f"{tables}"


def announce(proposal: Proposal) -> None:
    """Show the plan on standard error, where progress goes, before it is trained."""
    show(Terminal(file=sys.stderr), proposal)
