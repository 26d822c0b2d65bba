"""`tacit nlu train`: utterances in, a model of intents and slots and its epsilon out."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import (
    AsJson,
    KeepKey,
    Quiet,
    Resume,
    Seed,
    TargetEpsilon,
    number,
    whole_number,
)
from tacit.cli.output import Interrupted, percent
from tacit.cli.progress import bar
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.runs.session import Progress
    from tacit.tasks.nlu.experiment import NluExperiment

DEFAULT = "generated"
EXAMPLES = """
Examples:

`tacit nlu train --run runs/nlu`

`tacit nlu train dupuy2021-clc --variant exponential --data utterances.jsonl --run runs/private`

`tacit nlu train --resume --run runs/private`
"""


def train(
    recipe: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="RECIPE",
            help="A name from tacit nlu recipes, or a .toml file; not needed with --resume."
            f"  [default: {DEFAULT}]",
            show_default=False,
        ),
    ] = None,
    *,
    run: Annotated[Path, typer.Option(metavar="DIR", help="The run directory.")],
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="D", help="A folder, a file, or generated.  [default: the recipe's]"),
    ] = None,
    variant: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="A variant of the recipe."),
    ] = None,
    resume: Resume = False,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="sgd, dp-sgd, edp-sgd or edp-sgd-paper."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Such as noise.clip_norm=3; repeatable."),
    ] = None,
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="T", help="Epochs of training."),
    ] = None,
    target_epsilon: TargetEpsilon = None,
    budget_epsilon: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="EPSILON", help="Stop before an epoch exceeds it."),
    ] = None,
    delta: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="DELTA", help="Below 1/K.  [default: K^-1.1]"),
    ] = None,
    seed: Seed = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Processes, each with a micro-batch: a part of what eDP-SGD is.",
        ),
    ] = None,
    keep_key: KeepKey = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model of intents and slots, and say what that cost the people behind the utterances.

    A run that was stopped at any moment goes on with --resume and ends with the same weights.
    """
    from tacit.cli.requests import all_settings

    options: dict[str, int | float | str | bool | None] = {
        "data.source": data,
        "training.method": method,
        "training.epochs": epochs,
        "training.workers": workers,
        "privacy.target_epsilon": target_epsilon,
        "privacy.budget_epsilon": budget_epsilon,
        "privacy.delta": delta,
        "seed": seed,
    }
    said = all_settings(settings or [], options)
    if resume and (recipe is None) and (said or variant):
        raise ValueError("--resume goes on with the run as it is: leave the settings out")
    experiment = None if resume and recipe is None else wanted(recipe, said, variant)
    result = carried_out(experiment, run, resume=resume, keep_key=keep_key, quiet=quiet)
    if as_json:
        json.dump(result, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(result, run)


def wanted(recipe: str | None, settings: Sequence[str], variant: str | None) -> NluExperiment:
    """The one experiment that is asked for."""
    from tacit.tasks.nlu.experiment import RECIPES
    from tacit.tasks.nlu.plan import with_one_noise

    found = RECIPES.load(recipe or DEFAULT, settings, variant)
    return with_one_noise(found.only(variant), settings)


def carried_out(
    experiment: NluExperiment | None,
    run: Path,
    *,
    resume: bool = False,
    keep_key: bool = False,
    quiet: bool = False,
    title: str = "",
) -> dict[str, Any]:
    """One training, with its progress; what result.json holds in the end."""
    from tacit.runs.directory import RunDirectory
    from tacit.train import train as run_training

    try:
        with bar(title or "training") as show:

            def observe(now: Progress) -> None:
                if not quiet:
                    share = now.done / now.of if now.of else 0.0
                    show(title or "training", now.leg + share, now.legs, _state(now))

            done = run_training(experiment, run, resume=resume, observer=observe, keep_key=keep_key)
    except KeyboardInterrupt:
        there = RunDirectory(run).checkpoints.legs()
        if not there:
            raise Interrupted(
                "interrupted before the first epoch; nothing was released and nothing is left"
            ) from None
        command = shlex.join(["tacit", "nlu", "train", "--resume", "--run", str(run)])
        raise Interrupted(
            f"interrupted after epoch {there[-1]}; nothing is lost: {command}"
        ) from None
    return done.directory.result() or {}


def _state(now: Progress) -> str:
    at = f"epoch {min(now.leg + 1, now.legs)} of {now.legs}"
    if now.metrics is None or now.metrics.get("semantic_error_rate") is None:
        return at
    return f"{at}, SER on valid {percent(now.metrics['semantic_error_rate'])}"


def metrics_table(metrics: Mapping[str, Any], heading: str) -> Table:
    """SER, intents and slots, a figure per line."""
    table = Table()
    table.add_column(heading)
    table.add_column("", justify="right")
    table.add_row("utterances", f"{metrics['utterances']:,}")
    for label, name in (
        ("semantic error rate", "semantic_error_rate"),
        ("intent accuracy", "intent_accuracy"),
        ("slot F1", "slot_f1"),
        ("slot precision", "slot_precision"),
        ("slot recall", "slot_recall"),
        ("all of it right", "exact_match"),
    ):
        table.add_row(label, percent(metrics[name]))
    return table


def _print(result: dict[str, Any], run: Path) -> None:
    console = Console(highlight=False)
    table = metrics_table(result["test"], "on test")
    table.add_section()
    for name, epsilon in result["epsilon"].items():
        shown = "infinity" if epsilon is None else format_epsilon(epsilon)
        table.add_row(f"epsilon at delta {format_delta(result['delta'])}, by {name}", shown)
    console.print(table)
    if result["ending"] != "complete":
        console.print(f"Stopped early: {result['ending']}.", markup=False)
    for sentence in (result["claim"], result["other_runs"]):
        if sentence:
            console.print(sentence, markup=False)
    for figure in result["as_printed"] or []:
        console.print(f"- epsilon {figure['shown']}: {figure['meaning']}", markup=False)
    if result["key_kept"]:
        console.print("The run key was kept: delete it before release.", markup=False)
    path = shlex.quote(str(run))
    console.print(f"The run is in {path}", markup=False)
    console.print(f"next:  tacit nlu attack {path}", markup=False, soft_wrap=True)
