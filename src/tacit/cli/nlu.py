"""`tacit nlu`: models of intents and slots, private ones among them."""

from __future__ import annotations

import typer

from tacit.cli import nlu_evaluate, nlu_recipes, nlu_train

app = typer.Typer(
    help="Models of intents and slots: train, evaluate.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("train", epilog=nlu_train.EXAMPLES)(nlu_train.train)
app.command("evaluate", epilog=nlu_evaluate.EXAMPLES)(nlu_evaluate.evaluate)
app.command("recipes")(nlu_recipes.recipes)
