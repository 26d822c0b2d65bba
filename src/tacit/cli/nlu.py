"""`tacit nlu`: the attack on models of intents and slots; other commands are for both tasks."""

from __future__ import annotations

import typer

from tacit.cli import nlu_attack

app = typer.Typer(
    help="Attack models of intents and slots.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("attack", epilog=nlu_attack.EXAMPLES)(nlu_attack.attack)
