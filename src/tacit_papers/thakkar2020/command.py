"""`tacit papers secret-sharer`: which ways of training memorize planted canaries."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson
from tacit.cli.output import Interrupted
from tacit.cli.progress import Display

EXAMPLES = """
Examples:

`tacit papers secret-sharer secret-sharer-small --out sharer`

`tacit papers secret-sharer thakkar2020-table1-small --out table1 --seeds 0,1 --arms 'fedavg-*'`
"""


def secret_sharer(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A secret-sharer recipe, or a .toml file."),
    ] = "secret-sharer-small",
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where all of it goes.")],
    arms: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="A,B", help="Only these, such as 'sgd-*,dp-fedavg-*'."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N,N", help="Other canaries, starts, cohorts and noise each.")
    ] = "0",
    corpus: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="C", help="A corpus directory.  [default: that of the recipe]"),
    ] = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Processes for federated arms.  [default: all cores]"),
    ] = None,
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads for arms on records and for looking.")
    ] = 1,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a value, such as experiment.rounds=100."
        ),
    ] = None,
    list_arms: Annotated[
        bool, typer.Option("--list", help="Print the names of the arms, and train nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Plant the same canaries for every arm of a recipe, train, and try to get them out again.

    The same command goes on with what was interrupted.
    """
    import torch

    from tacit.engines.processes import available_cores
    from tacit_papers.thakkar2020.grid import GRIDS
    from tacit_papers.thakkar2020.training import SecretSharer

    given = list(settings or [])
    if corpus is not None:
        given.append(f"experiment.corpus.source={json.dumps(corpus)}")
    for name, count in (("--workers", workers), ("--threads", threads)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    found_grid = GRIDS.load(recipe, given).only()
    names = [name.strip() for name in (arms or "").split(",") if name.strip()]
    chosen = found_grid.chosen(names)
    if list_arms:
        print("\n".join(arm.name for arm in chosen))
        return
    torch.set_num_threads(threads)  # small products are slower on two, above all on a busy machine
    sharer = SecretSharer(found_grid, out, chosen, _seeds(seeds), workers or available_cores())
    try:
        found = sharer.run(lambda title: Display(title, quiet=quiet))
    except KeyboardInterrupt:
        command = shlex.join(["tacit", *sys.argv[1:]])
        raise Interrupted(f"interrupted; finished arms are kept, go on with: {command}") from None
    report = _written(out, recipe, found)
    if as_json:
        json.dump(report, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(out, report)


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--seeds must be different whole numbers such as 0,1, got {text!r}")
    return [int(part) for part in parts]


def _written(out: Path, recipe: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The table as JSON, as Markdown and as a picture."""
    from tacit.privacy import durable
    from tacit_papers.thakkar2020 import plot as sharer_plot
    from tacit_papers.thakkar2020 import table as sharer_table

    rows = sharer_table.table_rows(found)
    compared = sharer_table.comparisons(found)
    report = {
        "recipe": recipe,
        "rows": rows,
        "comparisons": compared,
        "notes": sharer_table.notes(rows),
    }
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    durable.write_whole(out / "secret-sharer.json", text.encode())
    durable.write_whole(out / "secret-sharer.md", sharer_table.markdown(rows, compared).encode())
    sharer_plot.draw(out / "secret-sharer.png", rows, found)
    return report


def _print(out: Path, report: Mapping[str, Any]) -> None:
    from tacit_papers.thakkar2020.table import HEADERS, cells

    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(HEADERS):
        table.add_column(header, justify="left" if number < 3 else "right", overflow="fold")
    for row in report["rows"]:
        table.add_row(*cells(row))
    console.print(table)
    for note in report["notes"]:
        console.print(note, markup=False)
    for row in report["rows"]:
        if any(value is not None for value in row["epsilon"]):
            console.print(f"{row['arm']}: {row['claim']}", markup=False)
            if row["projected"]:
                console.print(f"{row['arm']}: {row['projected']['claim']}", markup=False)
    console.print(f"Table, picture and runs are in {shlex.quote(str(out))}", markup=False)
