"""`tacit recipes`: the published settings that come with tacit, and what each stands for.

Recipes of all kinds are in one list.  Packages add theirs through the entry-point group
`tacit.recipes`, as `tacit_papers` does.
"""

from __future__ import annotations

import textwrap
from pathlib import PurePosixPath
from typing import Any

import typer
from rich.console import Console

from tacit.cli.options import AsJson, argument, flag
from tacit.cli.output import emit, table

app = typer.Typer(
    help="The published settings that come with tacit.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("list")
def _list_recipes(as_json: AsJson = False) -> None:
    """All recipes, what each stands for, and which were ever run on record."""
    from tacit.tasks import catalogue

    rows = [catalogue.entry(name).facts() for name in catalogue.names()]

    def render(console: Console) -> None:
        headings = ("recipe", "task", ">runs", "record", "what it stands for")
        shown = table(*headings, compact=True)
        shown.columns[0].no_wrap = True
        for row in rows:
            trainings = str(len(row["variants"]) or "-")
            shown.add_row(row["name"], row["task"], trainings, _page(row["recorded"]), row["says"])
        console.print(shown)
        console.print(
            "record: the page of docs/results that has what was run; never: it was not run on"
            " record.  tacit recipes show NAME prints all values of one, and the command for it."
        )

    emit(rows, as_json, render)


@app.command("show")
def _show(
    name: str = argument(..., "NAME", "A recipe, or a .toml file."),
    source: bool = flag("--source", "The file as written, without what it extends."),
    as_json: AsJson = False,
) -> None:
    """What a recipe stands for, whether it was run on record, and every value of it as TOML.

    What is printed is a recipe itself: save it, change it, and give it to the command it names.
    """
    from tacit.tasks import catalogue

    entry = catalogue.entry(name)
    recipe, facts = entry.recipe, entry.facts()
    experiments = [
        {"variant": variant or None, "experiment": experiment.model_dump(mode="json")}
        for variant, experiment in recipe.experiments.items()
    ]
    text = {"source": catalogue.source(name)} if source else {"experiments": experiments}

    def render(console: Console) -> None:
        lines = [f"{facts['name']}: {facts['says'] or 'no description'}"]
        lines += [f"paper: {facts['paper']}"] if facts["paper"] else []
        lines += [f"where: {facts['section']}"] if facts["section"] else []
        lines += [f"for: about {facts['users']:,} users"] if facts["users"] else []
        lines += [f"trainings: {', '.join(facts['variants'])}"] if facts["variants"] else []
        if not name.endswith(".toml"):  # a file of one's own has no place in the table of records
            record = facts["recorded"]
            said = f"{record['page']} ({record['how']})" if record else "never run"
            lines.append(f"record: {said}")
        lines += [f"run: {facts['command']}"]
        wrapper = textwrap.TextWrapper(
            100, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
        )
        for line in lines:
            console.print(wrapper.fill(line), soft_wrap=True)
        toml = catalogue.source(name) if source else recipe.to_toml()
        console.print(f"\n{toml.rstrip()}", soft_wrap=True)

    emit(facts | text, as_json, render)


def _page(record: dict[str, Any] | None) -> str:
    """The name of a record's page, without its folder and heading."""
    return PurePosixPath(record["page"].partition("#")[0]).stem if record else "never"
