"""`tacit`: the entry point, and how every foreseeable mistake ends (one sentence, exit code 2)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

from tacit import __version__
from tacit.cli import (
    audit,
    compare,
    corpus,
    demo,
    evaluate,
    export,
    ingest,
    ledger,
    nlu,
    personalize,
    plan,
    predict,
    pretrain,
    recipes,
    report,
    suggest_clip,
    tokenizer,
    train,
    verify,
)
from tacit.cli.output import Interrupted

app = typer.Typer(
    name="tacit",
    help="Train language models on people's text without letting the models remember the people.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("demo")(demo.demo)
app.command("ingest")(ingest.ingest)
app.add_typer(corpus.app, name="corpus")
app.command("pretrain", epilog=pretrain.EXAMPLES)(pretrain.pretrain)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.add_typer(recipes.app, name="recipes")
app.add_typer(tokenizer.app, name="tokenizer")
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.add_typer(nlu.app, name="nlu")
app.command("ledger", epilog=ledger.EXAMPLES)(ledger.ledger)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("personalize", epilog=personalize.EXAMPLES)(personalize.personalize)
app.command("suggest-clip", epilog=suggest_clip.EXAMPLES)(suggest_clip.suggest_clip)
for _command in entry_points(group="tacit.commands"):  # of packages on top of this one
    app.add_typer(_command.load(), name=_command.name)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.  Exit codes: 0 done, 2 a mistake in the input, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=list(arguments) or ["--help"], standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Interrupted as stop:
        print(f"tacit: {stop}", file=sys.stderr)
        sys.exit(130)
    except (typer.TyperException, ValueError, OSError) as mistake:
        if os.environ.get("TACIT_DEBUG"):
            raise
        print(f"tacit: {_sentence(mistake)}", file=sys.stderr)
        code = 2
    if code == 130:
        print("tacit: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(mistake: Exception) -> str:
    message = getattr(mistake, "format_message", None)
    text = message() if callable(message) else str(mistake)
    return " ".join(str(text).split()) or type(mistake).__name__


if __name__ == "__main__":
    main()
