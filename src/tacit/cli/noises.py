"""`tacit plan --noise`: every kind of noise beside the one that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli.output import epsilon, table
from tacit.runs.terminal import Terminal

if TYPE_CHECKING:
    from tacit.cli.plots import Panel
    from tacit.mechanisms.noise_comparison import Compared
    from tacit.mechanisms.planning import Question

_CURVE = (1 / 4, 1 / 2.8, 1 / 2, 1 / 1.4, 1.0, 1.4, 2.0, 2.8, 4.0)  # times the noise


def compare_all(asked: Question) -> list[Compared]:
    """What is asked for and every other kind of noise, each by its tightest sound accountant.

    Standard error says which is looked at.
    """
    from tacit.mechanisms.noise_comparison import compare
    from tacit.mechanisms.planning import answers

    with Terminal(stderr=True).status("comparing") as status:
        [answer], _ = answers(asked)
        return compare(asked, answer, tell=lambda what: status.update(f"comparing: {what}"))


def show(console: Console, compared: Sequence[Compared], *, is_at_epsilon: bool) -> None:
    """A line for each kind, at one epsilon or at one error, and what the columns mean."""
    first = compared[0]
    headings = ("noise", "sampling", ">times", ">z", ">epsilon", ">error", ">vectors")
    rows = [
        (
            _name(one),
            _who(one),
            _times(one),
            f"{one.answer.plan.noise_multiplier:.4g}",
            epsilon(one.answer.epsilon),
            f"{one.error / first.error:.3g}",
            f"{one.vectors:,}",
        )
        for one in compared
    ]
    same = "at the same epsilon" if is_at_epsilon else "with the same error"
    console.print(table(*headings, rows=rows, title=f"all kinds of noise, {same}"))
    console.print(
        "sampling: what is assumed, and how rarely anybody has a turn.  times: that a user takes"
        " part at most.  z: noise of a round, over what one user adds to it.  epsilon: by the"
        " tightest sound accountant.  error: of the sum of all rounds so far, root mean square,"
        " beside the first line.  vectors: of the model's size, in memory."
    )


def as_row(one: Compared) -> dict[str, Any]:
    """A kind of noise under the names that scripts rely on."""
    plan = one.answer.plan
    return {
        "noise": one.noise,
        "sampler": plan.sampler.kind,
        "separation": getattr(plan.sampler, "separation", None),
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": one.answer.epsilon if math.isfinite(one.answer.epsilon) else None,
        "running_sum_error": one.error,
        "vectors": one.vectors,
    }


def trade_offs(compared: Sequence[Compared]) -> Panel:
    """Epsilon against the error of the running sum, for every kind: further down left is better."""
    from tacit.cli.plots import Panel
    from tacit.mechanisms.noise_comparison import running_sum_error
    from tacit.mechanisms.planning import answers
    from tacit.runs.progress import tracked

    curves: dict[str, list[tuple[float, float]]] = {}
    steps = [(one, factor) for one in compared for factor in _CURVE]
    for one, factor in tracked(steps, "epsilon over error"):
        question = one.answer.question
        z = factor * (one.answer.plan.noise_multiplier or 1.0)
        [found], _ = answers(replace(question, noise_multiplier=z))
        error = running_sum_error(found.plan, found.rounds) / compared[0].error
        curves.setdefault(f"{_name(one)}, {one.answer.plan.sampler.kind}", []).append(
            (error, found.epsilon)
        )
    answer = compared[0].answer
    return Panel(
        "error of the running sum, beside the plan's",
        f"epsilon at delta = {answer.delta:g}",
        curves,
        title=(
            f"{answer.rounds:,} rounds of {answer.plan.expected_cohort:,.6g} of"
            f" {answer.plan.population:,} {answer.plan.unit}s"
        ),
        log_x=True,
        log_y=True,
    )


def _name(one: Compared) -> str:
    """The kind of noise with its size, where it has one."""
    noise = one.answer.plan.noise
    strategy = getattr(noise, "strategy", None)
    if strategy is None:
        return one.noise
    size = {"blt": f" ({one.vectors} buffers)"}.get(one.noise, f" ({one.vectors + 1} bands)")
    return f"{one.noise}{'' if one.noise == 'tree' else size}"


def _who(one: Compared) -> str:
    """What is claimed about who takes part, and how rarely anybody does."""
    sampler = one.answer.plan.sampler
    separation = getattr(sampler, "separation", None)
    if separation is None:
        return sampler.kind
    claimed = "poisson" if sampler.kind == "cyclic-poisson" else "none"
    return f"{claimed}; every {separation:,} rounds" if separation > 1 else claimed


def _times(one: Compared) -> str:
    """How often one user takes part at most."""
    separation = getattr(one.answer.plan.sampler, "separation", None) or 1
    return f"{math.ceil(one.answer.rounds / separation):,}"
