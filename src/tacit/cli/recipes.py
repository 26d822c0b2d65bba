"""`tacit recipes`: the published settings that come with tacit, and what each stands for.

Recipes of both tasks are in one list.  Packages add theirs through the entry-point group
`tacit.recipes`, as `tacit_papers` does.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from tacit.cli.options import AsJson, argument, flag
from tacit.cli.output import emit, table

if TYPE_CHECKING:
    from tacit.config.recipes import Recipe

app = typer.Typer(
    help="The published settings that come with tacit.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("list")
def _list_recipes(as_json: AsJson = False) -> None:
    """All recipes, and what each stands for."""
    from tacit.tasks import recipes

    rows = [_facts(recipes.load(name), task) for name, task in recipes.names().items()]

    def render(console: Console) -> None:
        shown = table("recipe", "task", ">variants", ">for users", "what it stands for")
        shown.columns[0].no_wrap = True
        for row in rows:
            variants = str(len(row["variants"]) or "-")
            users = f"{row['users']:,}" if row["users"] else "-"
            shown.add_row(row["name"], row["task"], variants, users, row["says"])
        console.print(shown)
        console.print(
            "tacit recipes show NAME prints all values of one;"
            " tacit train NAME --corpus C --run DIR trains with it"
        )

    emit(rows, as_json, render)


@app.command("show")
def _show(
    name: str = argument(..., "NAME", "A recipe, or a .toml file."),
    source: bool = flag("--source", "The file as written, without what it extends."),
    as_json: AsJson = False,
) -> None:
    """The paper, section and figure that a recipe stands for, and every value of it as TOML.

    What is printed is a recipe itself: save it, change it, and give it to tacit train.
    """
    from tacit.tasks import recipes

    recipe = recipes.load(name)
    facts = _facts(recipe, recipes.task_of_recipe(name))
    experiments = [
        {"variant": variant or None, "experiment": experiment.model_dump(mode="json")}
        for variant, experiment in recipe.experiments.items()
    ]
    text = {"source": recipes.source(name)} if source else {"experiments": experiments}

    def render(console: Console) -> None:
        lines = [f"{facts['name']}: {facts['says'] or 'no description'}"]
        lines += [f"paper: {facts['paper']}"] if facts["paper"] else []
        lines += [f"where: {facts['section']}"] if facts["section"] else []
        lines += [f"variants: {', '.join(recipe.variants)}"] if recipe.variants else []
        for line in lines:
            comment = textwrap.fill(line, 100, initial_indent="# ", subsequent_indent="#   ")
            console.print(comment, soft_wrap=True)
        toml = recipes.source(name) if source else recipe.to_toml()
        console.print(f"\n{toml.rstrip()}", soft_wrap=True)

    emit(facts | text, as_json, render)


def _facts(recipe: Recipe[Any], task: str) -> dict[str, Any]:
    about = next(iter(recipe.experiments.values())).about
    return {"name": recipe.name, "task": task, **about.model_dump(), "variants": recipe.variants}
