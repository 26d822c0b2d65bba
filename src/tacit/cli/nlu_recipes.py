"""`tacit nlu recipes`: the settings that come with tacit, and what each stands for."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.cli.options import AsJson


def recipes(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME", help="Print this one.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the recipes of tacit nlu, or print one of them."""
    from tacit.tasks.nlu.experiment import RECIPES

    if name is not None and not as_json:
        print(RECIPES.source(name), end="")
        return
    rows = []
    for each in [name] if name is not None else RECIPES.names():
        found = RECIPES.load(each)
        about = next(iter(found.experiments.values())).about
        rows.append({"name": each, **about.model_dump(), "variants": found.variants})
    if as_json:
        json.dump(rows, sys.stdout, indent=2)
        print()
        return
    table = Table()
    for heading in ("recipe", "what it is", "variants"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        variants = row["variants"]
        few = ", ".join(variants) if len(variants) <= 8 else f"{len(variants)} of them"
        table.add_row(str(row["name"]), escape(str(row["says"])), few)
    Console(highlight=False).print(table)
