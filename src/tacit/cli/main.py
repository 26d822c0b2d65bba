"""`tacit`: the tree of commands, and how every foreseeable mistake ends.

The tree is written out here, in the order in which a person meets the commands: first the way
from text to a released model, then what helps beside it.  Each command's module
imports torch and the like only when it runs, so that `tacit --help` stays quick.

Other packages add commands through the entry-point group `tacit.commands`: the name is the
command's, the object a function or a typer app.  `tacit demo` and `tacit papers` come from
`tacit_papers` that way.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # where `python -m` is typed, files may lie that are called like modules

import functools
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tacit import __version__
from tacit.cli import (
    audit,
    compare,
    corpus,
    evaluate,
    export,
    federate,
    ingest,
    ledger,
    model,
    plan,
    predict,
    recipes,
    report,
    tokenizer,
    train,
    verify,
)
from tacit.cli.endings import end_well, not_text
from tacit.cli.output import note
from tacit.models import own_code


class _Root(TyperGroup):
    """Keeps `tacit --help` on one screen: one line stands for typer's options of completion."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if "completion" in (parameter.name or ""):
                parameter.hidden = True  # type: ignore[attr-defined]
        return parameters


app = typer.Typer(
    name="tacit",
    cls=_Root,
    help="Train language models on people's text that do not remember the people.",
    epilog="Completion of commands in your shell: `tacit --install-completion`",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _add(panel: str, name: str, command: Callable[..., None], help: str) -> None:
    """Add one command; `help` is its line in `tacit --help`, its docstring the long help."""
    app.command(name, short_help=help, rich_help_panel=panel)(command)


_WAY = "The way from text to a released model"
_add(_WAY, "ingest", ingest.ingest, "Turn files of people's text into a corpus.")
_add(_WAY, "plan", plan.plan, "Epsilon before any training, or solve for the noise.")
_add(_WAY, "train", train.train, "Train a model; ends with its epsilon.")
_add(_WAY, "evaluate", evaluate.evaluate, "Measure it on unseen people.")
_add(_WAY, "predict", predict.predict, "Ask it about a typed text.")
_add(_WAY, "audit", audit.audit, "Attack it: what does it remember?")
_add(_WAY, "report", report.report, "Claim, curves and audit on one page.")
_add(_WAY, "export", export.export, "Write the bundle that may be shared.")
_add(_WAY, "verify", verify.verify, "Check every claim against the ledger.")

_BESIDE = "Beside it"
_add(_BESIDE, "compare", compare.compare, "Several runs side by side.")
_add(_BESIDE, "ledger", ledger.ledger, "What a run has released, and its cost.")

app.add_typer(corpus.app, name="corpus", rich_help_panel=_BESIDE)
app.add_typer(tokenizer.app, name="tokenizer", rich_help_panel=_BESIDE)
app.add_typer(model.app, name="model", rich_help_panel=_BESIDE)
app.add_typer(recipes.app, name="recipes", rich_help_panel=_BESIDE)
app.add_typer(federate.app, name="federate", rich_help_panel=_BESIDE)
for _plugin in entry_points(group="tacit.commands"):
    try:
        _command = _plugin.load()
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_plugin.name, rich_help_panel=_BESIDE)
        else:
            _add(_BESIDE, _plugin.name, _command, (_command.__doc__ or "").partition("\n")[0])
    except ImportError as _fault:
        note(f"the commands of {_plugin.value} cannot be loaded: {_fault}")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
    trust_code: Annotated[
        list[str],
        typer.Option(metavar="MODULE:NAME", help="Code of yours that may make models."),
    ] = [],  # noqa: B006
) -> None:
    own_code.trust(*trust_code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit, with the codes that `tacit.cli.endings` lists."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(f"warning: {_one_line(message)}")
        sys.exit(end_well(lambda: _run(arguments), lambda: _options(arguments)))


def _run(arguments: Sequence[str]) -> object:
    if "" in arguments and arguments[0] != "predict":  # a path would take it for this folder
        raise ValueError(
            "an argument is empty: name a file or a value (is a variable of the shell not set?)"
        )
    if (odd := not_text(arguments)) is not None:
        raise ValueError(f"{odd} is not UTF-8 text: give the file or folder another name")
    return _tree()(args=list(arguments) or ["--help"], standalone_mode=False)


@functools.cache
def _tree() -> Any:
    """The commands as they are parsed: working them out takes longer than most parsing."""
    return typer.main.get_command(app)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """The options of the command that is called, as they are typed, by the parameters' names."""
    command = _tree()
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    options = {}
    for parameter in command.params:
        own = f"--{(parameter.name or '').replace('_', '-')}"
        if parameter.opts[0].startswith("--"):
            options[parameter.name] = own if own in parameter.opts else parameter.opts[0]
    return options


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    main()
