"""`tacit plan`: what training would cost, before anything is trained."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, experiment, number, whole_number
from tacit.privacy.claims import format_epsilon

EXAMPLES = """
Examples:

`tacit plan --population 763430 --cohort 5000 --rounds 5000 --noise-multiplier 1 --delta 1e-9`

`tacit plan --population 1e8 --cohort 20000 --rounds 5000 --target-epsilon 2 --delta 1e-9`

`tacit plan --population 1e8 --cohort 5000 --rounds 5000 --from-experiment
cohort=100,sigma=0.003,clip=15`
"""


def plan(
    population: Annotated[
        int,
        typer.Option(
            parser=whole_number, metavar="K", help="Users in all: a declared, public number."
        ),
    ],
    cohort: Annotated[
        Optional[int],  # noqa: UP045  (typer reads this form together with a parser)
        typer.Option(parser=whole_number, metavar="C", help="Users per round, on average."),
    ] = None,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="T", help="Rounds of training."),
    ] = None,
    noise_multiplier: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            parser=number, metavar="Z", help="z: noise over the sensitivity under add/remove-one."
        ),
    ] = None,
    target_epsilon: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            parser=number,
            metavar="EPSILON",
            help="Solve for the noise, rounds or cohort that is left out.",
        ),
    ] = None,
    delta: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="DELTA", help="Below 1/K.  [default: K^-1.1]"),
    ] = None,
    accountant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="pld, rdp, moments, zcdp, or all.  [default: the tightest sound one]",
        ),
    ] = None,
    sampling: Annotated[
        str, typer.Option(metavar="NAME", help="poisson, truncated (Poisson, capped), or fixed.")
    ] = "poisson",
    estimator: Annotated[
        str, typer.Option(metavar="NAME", help="Denominator of the average: fixed or clipped.")
    ] = "fixed",
    max_cohort: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="Cap of a truncated cohort.  [default: derived]"
        ),
    ] = None,
    unit: Annotated[
        str, typer.Option(metavar="NAME", help="What is protected: user or record.")
    ] = "user",
    from_experiment: Annotated[
        Any,
        typer.Option(
            parser=experiment,
            metavar="cohort=C,sigma=SIGMA,clip=S",
            help="Project from a small experiment: its noise on the average, at another cohort.",
        ),
    ] = None,
    precise: Annotated[
        bool, typer.Option("--precise", help="The finest grid for pld: slower, 0.001% tight.")
    ] = False,
    as_json: AsJson = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw epsilon over rounds: .png, .svg or .pdf."),
    ] = None,
) -> None:
    """What a training would cost, or what it must be so that it costs no more.

    Leave one of --noise-multiplier, --rounds and --cohort out and give --target-epsilon to solve
    for it.  Nothing is trained and no data is read.
    """
    from tacit.cli import figures
    from tacit.mechanisms.planning import Question, answers

    question = Question(
        population=population,
        cohort=cohort,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        delta=delta,
        sampling=sampling,
        estimator=estimator,
        max_cohort=max_cohort,
        unit=unit,
        experiment=from_experiment,
    )
    if plot is not None:
        figures.check_target(plot)
    with Console(stderr=True).status("accounting"):
        found, refused = answers(question, accountant, precise=precise)
    rows = [as_row(answer) for answer in found]
    if as_json:
        json.dump(rows, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(rows, refused, question.asked)
    if plot is not None:
        figures.epsilon_over_rounds(found[0], plot)


def as_row(answer: Any) -> dict[str, Any]:
    """One answer under the names that scripts rely on."""
    plan = answer.plan
    event = plan.event()
    return {
        "accountant": answer.accountant,
        "epsilon": answer.epsilon if math.isfinite(answer.epsilon) else None,
        "delta": answer.delta,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_prob": plan.sampler.sampling_prob,
        "rounds": answer.rounds,
        "unit": plan.unit,
        "adjacency": plan.adjacency.value,
        "claim": answer.claim,
        "projected": answer.projected,
        "population": plan.population,
        "cohort": plan.expected_cohort,
        "sampler": plan.sampler.describe(),
        "accounted_noise_multiplier": event.noise_multiplier,
    }


def _print(rows: list[dict[str, Any]], refused: dict[str, str], asked: str) -> None:
    console = Console(highlight=False)
    first = rows[0]
    console.print(
        f"{first['rounds']:,} rounds of {first['cohort']:,.6g} {first['unit']}s a round out of"
        f" {first['population']:,}, delta {first['delta']:g}"
    )
    if asked != "epsilon":
        solved = f"{first[asked]:,.6g}" if asked == "noise_multiplier" else f"{first[asked]:,.0f}"
        name = asked.replace("_", " ")
        console.print(f"{name}: [bold]{solved}[/bold] (solved for, by {first['accountant']})")
    labelled = any(row["projected"] for row in rows)
    halved = any(row["noise_multiplier"] != row["accounted_noise_multiplier"] for row in rows)
    table = Table()
    table.add_column("accountant")
    table.add_column("epsilon", justify="right", style="bold")
    table.add_column("noise multiplier", justify="right")
    if halved:
        table.add_column("accounted as", justify="right")
    table.add_column("sampling prob.", justify="right")
    if labelled:
        table.add_column("this is")
    for row in rows:
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        cells = [row["accountant"], format_epsilon(epsilon), f"{row['noise_multiplier']:.6g}"]
        if halved:
            cells.append(f"{row['accounted_noise_multiplier']:.6g}")
        cells.append(f"{row['sampling_prob']:.6g}")
        if labelled:
            cells.append("projected" if row["projected"] else "actual")
        table.add_row(*cells)
    console.print(table)
    console.print(first["claim"])
    console.print(_meaning(math.inf if first["epsilon"] is None else first["epsilon"], first))
    for name, reason in refused.items():
        console.print(f"[dim]{name}: not shown, because {reason}.[/dim]")


def _meaning(epsilon: float, row: dict[str, Any]) -> str:
    """What the figure says about a person, in one sentence."""
    if epsilon > 20:
        return (
            "In words: at this epsilon the guarantee says next to nothing about whether one"
            f" {row['unit']} took part."
        )
    factor = format_epsilon(math.exp(epsilon), 3)
    return (
        f"In words: whoever tries to tell from the trained model whether a given {row['unit']} took"
        f" part, knowing everything else, is right about those who did at most {factor} times as"
        f" often as wrong about those who did not, plus {row['delta']:g}."
    )
