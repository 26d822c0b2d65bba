"""`tacit nlu`: models of intents and slots, private ones among them, and the attack on them."""

from __future__ import annotations

import typer

from tacit.cli import nlu_attack, nlu_evaluate, nlu_recipes, nlu_train

app = typer.Typer(
    help="Models of intents and slots: train, evaluate, attack.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("train", epilog=nlu_train.EXAMPLES)(nlu_train.train)
app.command("evaluate", epilog=nlu_evaluate.EXAMPLES)(nlu_evaluate.evaluate)
app.command("attack", epilog=nlu_attack.EXAMPLES)(nlu_attack.attack)
app.command("recipes")(nlu_recipes.recipes)
