"""`tacit papers secret-sharer`: which ways of training memorize planted canaries.

The command reads a grid, carries it out in a folder, and writes and prints its table.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from tacit.cli.options import AsJson, Quiet
from tacit.cli.output import Interrupted, emit, say, table
from tacit.runs.progress import Display

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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Plant the same canaries for every arm of a recipe, train, and try to get them out again.

    The same command goes on with what was interrupted.  --arms and --seeds may change between
    calls, and the table is of everything in the folder; any other change is refused.
    """
    import torch

    from tacit.engines.engine import available_cores
    from tacit.privacy import durable
    from tacit_papers.thakkar2020.grid import GRIDS
    from tacit_papers.thakkar2020.plot import draw
    from tacit_papers.thakkar2020.table import (
        HEADERS,
        cells,
        comparisons,
        markdown,
        notes,
        table_rows,
    )
    from tacit_papers.thakkar2020.training import SecretSharer

    changes = list(settings or [])
    if corpus is not None:
        changes.append(f"experiment.corpus.source={json.dumps(corpus)}")
    for name, count in (("--workers", workers), ("--threads", threads)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    grid = GRIDS.load(recipe, changes).only()
    chosen = grid.chosen([name.strip() for name in (arms or "").split(",") if name.strip()])
    if list_arms:
        say("\n".join(arm.name for arm in chosen))
        return
    torch.set_num_threads(threads)  # small products are slower on two, above all on a busy machine
    sharer = SecretSharer(grid, out, chosen, _seeds(seeds), workers or available_cores())
    try:
        results = sharer.run(lambda title: Display(title, quiet=quiet))
    except KeyboardInterrupt:
        command = shlex.join(["tacit", *sys.argv[1:]])
        raise Interrupted(f"interrupted; finished arms are kept, go on with: {command}") from None
    rows, compared = table_rows(results), comparisons(results)
    report: dict[str, Any] = {
        "recipe": recipe,
        "rows": [asdict(row) for row in rows],
        "comparisons": [asdict(pair) for pair in compared],
        "notes": notes(rows),
    }
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    durable.write_whole(out / "secret-sharer.json", text.encode())
    durable.write_whole(out / "secret-sharer.md", markdown(rows, compared).encode())
    draw(out / "secret-sharer.png", rows, results)

    def render(console: Console) -> None:
        headings = [*HEADERS[:3], *(f">{heading}" for heading in HEADERS[3:])]
        console.print(table(*headings, rows=map(cells, rows), compact=True))
        for note in report["notes"]:
            console.print(note)
        for row in rows:
            if any(value is not None for value in row.epsilon):
                console.print(f"{row.arm}: {row.claim}")
                if row.projected:
                    console.print(f"{row.arm}: {row.projected['claim']}")
        console.print(f"Table, picture and runs are in {shlex.quote(str(out))}")

    emit(report, as_json, render)


def _seeds(text: str) -> list[int]:
    """Read 0,1,2: each seed once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--seeds must be different whole numbers such as 0,1, got {text!r}")
    return [int(part) for part in parts]
