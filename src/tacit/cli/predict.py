"""`tacit predict`: which words a model would suggest while somebody types.

With a text it answers once.  Without, it answers each line of its input, so that it can be tried at
a prompt or driven by another program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from tacit.cli.options import (
    AsJson,
    ModelArgument,
    Round,
    argument,
    count,
)
from tacit.cli.output import emit, percent, table

if TYPE_CHECKING:
    from tacit.evaluation.suggestions import Suggestion

EXAMPLES = """
Examples:

`tacit predict runs/first "see you "`

`tacit predict runs/first "see yo" --top 5 --json`

`tacit predict runs/first` asks for one line after the other; Ctrl-D ends it.
"""


def predict(
    run: ModelArgument,
    text: Annotated[
        str | None, argument("[TEXT]", "What was typed. Without it: lines from the input.")
    ] = None,
    top: Annotated[int, count("N", "How many suggestions.")] = 3,
    round: Round = None,
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
    stored = StoredModel.open(run, round)
    suggester = Suggester(stored.model, stored.tokenizer)
    if text is not None:
        suggestions = suggester.suggest(text, top)
        rows = [asdict(each) for each in suggestions]
        emit(rows, as_json, lambda console: _print(console, text, suggestions))
        return
    for line in _lines():  # one line of output for each
        suggestions = suggester.suggest(line, top)
        if as_json:
            print(json.dumps([asdict(each) for each in suggestions]), flush=True)
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


def _print(console: Console, text: str, suggestions: list[Suggestion]) -> None:
    if not suggestions:
        console.print("nothing to suggest")
        return
    rows = [(each.word, percent(each.probability)) for each in suggestions]
    console.print(table("word", ">probability", title=f"after “{text}”", rows=rows))
