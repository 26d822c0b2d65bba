"""`tacit papers nlu`: ways of training side by side, with their attacks and their times.

The command trains each variant of a recipe as `tacit train` would, so that every row of the table
is a run of its own with its ledger and its guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tacit.cli.options import AsJson, whole_number
from tacit.cli.output import emit, say, table
from tacit.privacy.claims import format_epsilon
from tacit.runs.progress import bar
from tacit_papers.markdown import markdown_table

if TYPE_CHECKING:
    from tacit.tasks.nlu.experiment import NluExperiment
    from tacit_papers.dupuy2021.comparison import MethodRow

EXAMPLES = """
Examples:

`tacit papers nlu dupuy2021-clc --data atis --out runs/atis --shadow runs/snips/sgd`

`tacit papers nlu dupuy2021-clc --data atis --time 20`
"""


def compare(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name from tacit recipes list, or a file.")
    ] = "dupuy2021-generated",
    *,
    data: Annotated[
        str | None,
        typer.Option(metavar="D", help="A folder, a file, or generated.  [default: the recipe's]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the runs go, each variant in a folder of its own."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIANT", help="Only these variants; repeatable."),
    ] = None,
    shadow: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run on another corpus, for the attack; repeatable."),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run with data.reference, for RMIA; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as training.epochs=3; repeatable."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help="Repeatable: simulations, not for release."
        ),
    ] = None,
    time: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="STEPS",
            help="Time this many steps of each in turns, instead of training.",
        ),
    ] = None,
    opacus: Annotated[
        bool, typer.Option("--with-opacus", help="With --time: DP-SGD by Opacus as well.")
    ] = False,
    any_baseline: Annotated[
        bool, typer.Option("--any-baseline", help="Go on if plain SGD has learned nothing.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every variant of a recipe on one set, attack each, and print the paper's tables.

    Variants that are there already are not trained again; one that was interrupted goes on.  The
    others are compared with plain SGD: if that has learned nothing, nothing is compared.
    """
    from tacit.cli.requests import all_settings, with_one_noise
    from tacit.tasks.nlu.experiment import RECIPES

    changes = all_settings(settings or [], {"data.source": data, "seed": seed})
    variants = RECIPES.load(recipe, changes).experiments
    experiments = {name: with_one_noise(one, changes) for name, one in variants.items()}
    for name in only or []:
        if name not in experiments:
            raise ValueError(f"--only {name}: the recipe has {', '.join(experiments)}")
    if only:
        experiments = {name: experiments[name] for name in experiments if name in only}
    if time is not None:
        _time(experiments, time, with_opacus=opacus, markdown=markdown, as_json=as_json)
        return
    if out is None:
        raise ValueError("--out says where the runs go; or --time STEPS only times them")
    from tacit_papers.dupuy2021.comparison import compare_methods

    with bar("scoring") as show:
        tell = lambda what, done, of: show(what, done, of, f"{done:,} utterances")  # noqa: E731
        rows = compare_methods(
            experiments,
            out,
            _train,
            shadows=shadow or [],
            references=reference or [],
            any_baseline=any_baseline,
            tell=tell,
        )

    warnings = _warnings(out, rows)

    def render(console: Console) -> None:
        _print(console, _HEADINGS, _cells(rows), markdown)
        for warning in warnings:
            say(warning) if markdown else console.print(warning)
        if not markdown:
            deltas = sorted({row.delta for row in rows})
            console.print(
                f"Epsilon at delta {', '.join(f'{delta:g}' for delta in deltas)}.  'if public' and"
                " 'as published' are no guarantees (docs/privacy/edp-sgd.md), and AUCs are"
                " internal."
            )

    emit({"rows": [row.as_row() for row in rows], "warnings": warnings}, as_json, render)


def _warnings(out: Path, rows: Sequence[MethodRow]) -> list[str]:
    """What makes the changes relative to the baseline meaningless, if anything does."""
    from tacit.runs.run import NluRun
    from tacit_papers.dupuy2021.comparison import baseline, why_untrained

    base = baseline(rows)
    why = why_untrained(NluRun.open(out / base.name)) if base is not None else None
    if base is None or why is None:
        return []
    return [f"{base.name} {why}, so that no change relative to it means anything."]


def _train(experiment: NluExperiment | None, path: Path, begun: bool, name: str) -> None:
    """Train one variant as `tacit train` would, or go on with it."""
    from tacit.cli.requests import Request
    from tacit.cli.train import train_one

    train_one(Request(path, experiment, name, resume=begun), engine=None)


# dSER and dMIA: changes in percent of SGD's, as in Table 1.  The last columns are no guarantees:
# epsilon if the first step's scaling were public, and as the paper accounts for it, whose Table 1
# has the logarithm.
_HEADINGS = (
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
    "log10",
)


def _cells(rows: Sequence[MethodRow]) -> list[list[str]]:
    """What is shown of each row, in the order of the headings.

    Changes are relative to the first variant that is trained by plain SGD; without one they are
    left out.
    """
    from tacit_papers.dupuy2021.comparison import baseline, relative

    base = baseline(rows)

    def change(row: MethodRow, name: str) -> str:
        if base is None or row is base:
            return ""
        percent = relative(getattr(row, name), getattr(base, name))
        return "-" if percent is None else f"{percent:+.1f}"

    def epsilon(value: float | None, missing: str) -> str:
        return missing if value is None else format_epsilon(value)

    return [
        [
            row.name,
            f"{100 * row.semantic_error_rate:.2f}",
            f"{100 * row.intent_accuracy:.2f}",
            f"{100 * row.slot_f1:.2f}",
            _area(row.auc, row.auc_interval),
            _area(row.rmia_auc, row.rmia_interval),
            change(row, "semantic_error_rate"),
            change(row, "auc"),
            epsilon(row.epsilon, "infinity"),
            epsilon(row.conditional_epsilon, ""),
            epsilon(row.published_epsilon, ""),
            f"{row.published_log10_epsilon:.1f}" if row.published_log10_epsilon else "",
        ]
        for row in rows
    ]


def _area(value: float | None, interval: tuple[float, float] | None) -> str:
    """An area under the ROC curve in percent, with its interval."""
    if value is None or interval is None:
        return "-"
    return f"{100 * value:.1f} ({100 * interval[0]:.1f}-{100 * interval[1]:.1f})"


def _time(
    experiments: dict[str, NluExperiment],
    steps: int,
    *,
    with_opacus: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Time the variants in turns, and print how long a step of each takes."""
    from tacit.tasks.nlu.utterances import data_of
    from tacit_papers.dupuy2021.timing import time_methods

    turns = 5 if steps >= 5 else 1
    with bar("timing") as show:
        timings = time_methods(
            experiments,
            data_of(next(iter(experiments.values()))),
            turns=turns,
            steps=max(1, steps // turns),
            with_opacus=with_opacus,
            tell=lambda name, turn, of: show("timing", turn, of, name),
        )
    headings = ("method", "seconds a step", "seconds an epoch", "factor of SGD", "steps timed")
    texts = [
        [
            each.name,
            f"{each.step_seconds:.3f}",
            f"{each.epoch_seconds:.1f}",
            f"x {each.factor:.2f}",
            f"{each.steps}",
        ]
        for each in timings
    ]
    emit(
        [each.as_row() for each in timings],
        as_json,
        lambda console: _print(console, headings, texts, markdown),
    )


def _print(
    console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool
) -> None:
    """A table for the terminal or as Markdown; all but the first column are numbers."""
    if markdown:
        say(markdown_table(headings, rows))
    else:
        console.print(
            table(headings[0], *(f">{each}" for each in headings[1:]), rows=rows, compact=True)
        )
