"""Options and arguments that mean the same in every command that has them, and how they are read.

An option of one command is declared as the default of its parameter:
`rounds: int = count(5, "N", "Rounds of training.")`.  An option that several commands have is a
type here, so that `seed: Seed = None` gets the same name, help and parsing everywhere.  A default
of `...` means that there is none, or that it stands in the command.

Numbers may be written as people write them: 763_430, 1e8, 1e-9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer


def whole_number(text: str) -> int:
    """Read a whole number such as 763430, 763_430 or 1e8."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a whole number such as 763430 or 1e8") from None
    if not value.is_finite() or value != value.to_integral_value():
        raise typer.BadParameter(f"{text!r} is not a whole number such as 763430 or 1e8")
    if abs(value) > 10**15:
        raise typer.BadParameter(f"{text!r} is above 1e15, the largest count that is accepted")
    return int(value)


def number(text: str) -> float:
    """Read a number such as 1, 0.7 or 1e-9."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number such as 1, 0.7 or 1e-9") from None


def text(default: Any, metavar: str, help: str, *names: str) -> Any:
    """An option that takes words; without `names` it is called after its parameter."""
    return typer.Option(default, *names, metavar=metavar, help=help)


def count(default: Any, metavar: str, help: str, *names: str) -> Any:
    """An option that takes a whole number, written as people write them."""
    return typer.Option(default, *names, parser=whole_number, metavar=metavar, help=help)


def real(default: Any, metavar: str, help: str, *names: str) -> Any:
    """An option that takes a number."""
    return typer.Option(default, *names, parser=number, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """An option without a value, which is False unless it is named."""
    return typer.Option(False, name, help=help)


def argument(default: Any, metavar: str, help: str) -> Any:
    """What a command works on, written without a name."""
    return typer.Argument(default, metavar=metavar, help=help, show_default=False)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

# What a command works on.
RunArgument = Annotated[Path, argument(..., "RUN", "A run directory.")]
ModelArgument = Annotated[
    Path,
    argument(..., "RUN", "A run directory, an exported bundle, or another folder with a model."),
]
Round = Annotated[int | None, count(..., "N", "The model after this round.  [default: last]")]

# How an experiment is made from a recipe.
Settings = Annotated[
    list[str] | None, text(..., "KEY=VALUE", "Such as plan.clip_norm=3; repeatable.", "--set")
]
Unset = Annotated[
    list[str] | None, text(..., "KEY", "Back to its default, as if not set.", "--unset")
]
Delta = Annotated[float | None, real(..., "DELTA", "Below 1/K.  [default: K^-1.1]")]
Seed = Annotated[int | None, count(..., "N", "Repeatable: a simulation, not for release.")]

# How it is run.
Workers = Annotated[int | None, count(..., "N", "Processes.  [default: all cores]")]


def run_and_round(text: str) -> tuple[Path, int | None]:
    """Read RUN or RUN@ROUND; None stands for the last round."""
    path, at, round = text.rpartition("@")
    if at and path and round.isdecimal() and not Path(text).exists():
        return Path(path), int(round)
    return Path(text), None


def typed_options(context: typer.Context) -> list[str]:
    """The options that stand on the command line, by their names such as --rounds."""
    return [
        option.opts[0]
        for option in context.command.params
        if option.name is not None
        and option.opts[0].startswith("--")
        and (source := context.get_parameter_source(option.name)) is not None
        and source.name == "COMMANDLINE"
    ]


_MODELS = {"language": "language models", "nlu": "intent and slot models"}


def refuse_unfit(context: typer.Context, task: str, only: Mapping[str, Sequence[str]]) -> None:
    """Refuse options on the command line that mean nothing for models of `task`.

    `only` has the options of each task that the others do not have.
    """
    owners = {name: owner for owner, names in only.items() for name in names}
    for name in typed_options(context):
        if (owner := owners.get(name, task)) != task:
            raise ValueError(f"{name} is for {_MODELS[owner]}, and this is none; leave it out")


def check_counts(**counts: int | None) -> None:
    """Refuse a count below 1; its option is named as its parameter is."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
