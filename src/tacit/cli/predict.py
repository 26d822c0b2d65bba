"""`tacit predict`: which words a model would suggest while somebody types."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.cli.options import AsJson, whole_number

if TYPE_CHECKING:
    from tacit.evaluation.suggestions import Suggestion

EXAMPLES = """
Examples:

`tacit predict runs/first "see you "`

`tacit predict runs/first "see yo" --top 5 --json`

`tacit predict runs/first` asks for one line after the other; Ctrl-D ends it.
"""


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory, an exported bundle, or another folder with a model.",
            show_default=False,
        ),
    ],
    text: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[TEXT]", help="What was typed.  Without it: lines from the input."),
    ] = None,
    top: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="How many suggestions.")
    ] = 3,
    round: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="The model after this round.  [default: last]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest words for a typed text, with the model's probability of each.

    After a space, or after a complete word, these are next words.  After the beginning of a word
    they are words that begin so.
    """
    from tacit.evaluation.suggestions import Suggester
    from tacit.runs.stored_model import StoredModel

    if top < 1:
        raise ValueError(f"--top must be at least 1, got {top}")
    found = StoredModel.open(run, round)
    suggester = Suggester(found.model, found.tokenizer)
    if text is not None:
        suggestions = suggester.suggest(text, top)
        if as_json:
            print(json.dumps([suggestion.as_row() for suggestion in suggestions], indent=2))
        else:
            _print(text, suggestions)
        return
    for line in _lines():
        suggestions = suggester.suggest(line, top)
        if as_json:
            print(json.dumps([suggestion.as_row() for suggestion in suggestions]), flush=True)
        else:
            shown = (f"{each.word} {each.probability:.1%}" for each in suggestions)
            print("   ".join(shown) or "nothing to suggest", flush=True)


def _lines() -> Iterator[str]:
    """What is typed, line by line, or what is piped in."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    print("Type the beginning of a message, Enter for suggestions, Ctrl-D to end.", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _print(text: str, suggestions: list[Suggestion]) -> None:
    console = Console(highlight=False)
    if not suggestions:
        console.print("nothing to suggest")
        return
    table = Table(title=Text(f"after “{text}”"), title_justify="left")
    table.add_column("word", style="bold")
    table.add_column("probability", justify="right")
    for suggestion in suggestions:
        table.add_row(Text(suggestion.word), f"{suggestion.probability:.2%}")
    console.print(table)
