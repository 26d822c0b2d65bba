"""`tacit papers nlu`: ways of training side by side, with their attacks and their times."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.nlu_train import carried_out
from tacit.cli.options import AsJson, whole_number
from tacit.cli.progress import bar
from tacit.privacy.claims import format_epsilon

if TYPE_CHECKING:
    from tacit.tasks.nlu.experiment import NluExperiment
    from tacit_papers.dupuy2021.comparison import MethodRow
    from tacit_papers.dupuy2021.timing import Timing

EXAMPLES = """
Examples:

`tacit papers nlu dupuy2021-clc --data atis --out runs/atis --shadow runs/snips/sgd`

`tacit papers nlu dupuy2021-clc --data atis --time 20`
"""


def compare(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name from tacit nlu recipes, or a file.")
    ] = "dupuy2021-generated",
    *,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="D", help="A folder, a file, or generated.  [default: the recipe's]"),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Where the runs go, each variant in a folder of its own."),
    ] = None,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="VARIANT", help="Only these variants; repeatable."),
    ] = None,
    shadow: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="RUN", help="A run on another corpus, for the attack; repeatable."),
    ] = None,
    reference: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="RUN", help="A run with data.reference, for RMIA; repeatable."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Such as training.epochs=3; repeatable."),
    ] = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="Repeatable: simulations, not for release."
        ),
    ] = None,
    time: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="STEPS",
            help="Time so many steps of each in turns, instead of training.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every variant of a recipe on one set, attack each, and print the paper's tables.

    Variants that are there already are not trained again; one that was interrupted goes on.
    """
    from tacit.cli.requests import all_settings
    from tacit.tasks.nlu.experiment import RECIPES
    from tacit.tasks.nlu.plan import with_one_noise

    said = all_settings(settings or [], {"data.source": data, "seed": seed})
    found = RECIPES.load(recipe, said)
    experiments = {name: with_one_noise(one, said) for name, one in found.experiments.items()}
    for name in only or []:
        if name not in experiments:
            raise ValueError(f"--only {name}: the recipe has {', '.join(experiments)}")
    if only:
        experiments = {name: experiments[name] for name in experiments if name in only}
    if time is not None:
        from tacit.tasks.nlu.utterances import data_of
        from tacit_papers.dupuy2021.timing import time_methods

        turns = 5 if time >= 5 else 1
        with bar("timing") as show:
            timings = time_methods(
                experiments,
                data_of(next(iter(experiments.values()))),
                turns=turns,
                steps=max(1, time // turns),
                tell=lambda name, turn, of: show("timing", turn, of, name),
            )
        _print_times(timings, markdown=markdown, as_json=as_json)
        return
    if out is None:
        raise ValueError("--out says where the runs go; or --time STEPS only times them")
    from tacit_papers.dupuy2021.comparison import compared

    with bar("scoring") as show:
        tell = lambda what, done, of: show(what, done, of, f"{done:,} utterances")  # noqa: E731
        rows = compared(
            experiments,
            out,
            _train,
            shadows=shadow or [],
            references=reference or [],
            tell=tell,
        )
    if as_json:
        json.dump({"rows": [row.as_row() for row in rows]}, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    _print_rows(rows, markdown=markdown)


def _train(experiment: NluExperiment | None, path: Path, begun: bool, name: str) -> None:
    carried_out(experiment, path, resume=begun, title=name)


HEADINGS = (
    "variant",
    "SER %",
    "intents %",
    "slot F1",
    "MIA-AUC",
    "RMIA-AUC",
    "dSER %",
    "dMIA %",
    "epsilon",
    "if public",
    "as published",
)


def cells(rows: Sequence[MethodRow]) -> list[tuple[str, ...]]:
    """What is shown of each row; changes are relative to SGD, as the paper's."""
    from tacit_papers.dupuy2021.comparison import baseline, relative

    base = baseline(rows)

    def change(row: MethodRow, name: str) -> str:
        if base is None or row is base:
            return ""
        found = relative(getattr(row, name), getattr(base, name))
        return "-" if found is None else f"{found:+.1f}"

    shown: list[tuple[str, ...]] = []
    for row in rows:
        shown.append(
            (
                row.name,
                f"{100 * row.semantic_error_rate:.2f}",
                f"{100 * row.intent_accuracy:.2f}",
                f"{100 * row.slot_f1:.2f}",
                _area(row.auc, row.auc_interval),
                _area(row.rmia_auc, row.rmia_interval),
                change(row, "semantic_error_rate"),
                change(row, "auc"),
                "infinity" if row.epsilon is None else format_epsilon(row.epsilon),
                "" if row.conditional_epsilon is None else format_epsilon(row.conditional_epsilon),
                "" if row.published_epsilon is None else format_epsilon(row.published_epsilon),
            )
        )
    return shown


def _area(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return "-"
    return f"{100 * value:.1f} ({100 * interval[0]:.1f}-{100 * interval[1]:.1f})"


def _print_rows(rows: Sequence[MethodRow], *, markdown: bool) -> None:
    shown = cells(rows)
    _print_table(HEADINGS, shown, markdown=markdown)
    if not markdown:
        deltas = sorted({row.delta for row in rows})
        print(
            f"Epsilon at delta {', '.join(f'{delta:g}' for delta in deltas)}.  'if public' and 'as"
            " published' are no guarantees (docs/privacy/edp-sgd.md), and AUCs are internal."
        )


def _print_times(timings: Sequence[Timing], *, markdown: bool, as_json: bool) -> None:
    if as_json:
        json.dump([each.as_row() for each in timings], sys.stdout, indent=2)
        print()
        return
    shown = [
        (
            each.name,
            f"{each.step_seconds:.3f}",
            f"{each.epoch_seconds:.1f}",
            f"x {each.factor:.2f}",
            f"{each.steps}",
        )
        for each in timings
    ]
    headings = ("method", "seconds a step", "seconds an epoch", "factor of SGD", "steps timed")
    _print_table(headings, shown, markdown=markdown)


def _print_table(
    headings: Sequence[str], rows: Sequence[tuple[str, ...]], *, markdown: bool
) -> None:
    if markdown:
        print("| " + " | ".join(headings) + " |")
        print("|---|" + "---:|" * (len(headings) - 1))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    table = Table()
    for place, name in enumerate(headings):
        table.add_column(name, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
