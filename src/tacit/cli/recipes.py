"""`tacit recipes`: the published settings that come with tacit, and what each stands for."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tacit.config.experiment import Experiment
    from tacit.config.recipes import Recipe

app = typer.Typer(
    help="The published settings that come with tacit.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """All recipes, and what each stands for."""
    from tacit.config import recipes

    rows = [_facts(recipes.load(name)) for name in recipes.names()]
    if as_json:
        _dump(rows)
        return
    table = Table()
    table.add_column("recipe", no_wrap=True)
    table.add_column("variants", justify="right")
    table.add_column("what it stands for")
    for row in rows:
        table.add_row(row["name"], str(len(row["variants"]) or "-"), escape(row["says"]))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "tacit recipes show NAME prints all values of one;"
        " tacit train NAME --corpus C --run DIR trains with it",
        markup=False,
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe, or a .toml file.")],
    source: Annotated[
        bool, typer.Option("--source", help="The file as written, without what it extends.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The paper, section and figure that a recipe stands for, and every value of it as TOML.

    What is printed is a recipe itself: save it, change it, and give it to tacit train.
    """
    from tacit.config import recipes

    recipe = recipes.load(name)
    if as_json:
        experiments = [
            {"variant": variant or None, "experiment": experiment.model_dump(mode="json")}
            for variant, experiment in recipe.experiments.items()
        ]
        text = {"source": recipes.source(name)} if source else {"experiments": experiments}
        _dump(_facts(recipe) | text)
        return
    for line in _heading(_facts(recipe)):
        print(textwrap.fill(line, 100, initial_indent="# ", subsequent_indent="#   "))
    print()
    print((recipes.source(name) if source else resolved_toml(recipe)).rstrip())


def resolved_toml(recipe: Recipe[Experiment]) -> str:
    """What all variants share, and then of each variant what is its own."""
    import tomli_w

    tables = {
        variant: experiment.model_dump(mode="json", exclude_none=True)
        for variant, experiment in recipe.experiments.items()
    }
    if not recipe.variants:
        return tomli_w.dumps(tables[""])
    for table in tables.values():
        del table["name"]  # made from the recipe's and the variant's
    every = list(tables.values())
    shared = _shared(every)
    own = {variant: _without(table, shared) for variant, table in tables.items()}
    return tomli_w.dumps({**shared, "variants": own})


def _shared(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that all tables have."""
    first, *others = tables
    shared: dict[str, Any] = {}
    for key, value in first.items():
        found = [table.get(key) for table in others]
        if all(other == value for other in found):
            shared[key] = value
        elif isinstance(value, Mapping) and all(isinstance(other, Mapping) for other in found):
            shared[key] = _shared([value, *found])  # type: ignore[list-item]
    return shared


def _without(table: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What a table has beyond the shared values."""
    own: dict[str, Any] = {}
    for key, value in table.items():
        if key not in shared:
            own[key] = value
        elif value != shared[key]:  # then both are tables
            own[key] = _without(value, shared[key])
    return own


def _facts(recipe: Recipe[Experiment]) -> dict[str, Any]:
    about = next(iter(recipe.experiments.values())).about
    return {"name": recipe.name, **about.model_dump(), "variants": recipe.variants}


def _heading(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"{facts['name']}: {facts['says'] or 'no description'}"]
    if facts["paper"]:
        lines.append(f"paper: {facts['paper']}")
    if facts["section"]:
        lines.append(f"where: {facts['section']}")
    if facts["variants"]:
        lines.append(f"variants: {', '.join(facts['variants'])}")
    return lines


def _dump(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()
