"""`tacit predict`: what a model makes of a text that somebody types.

A language model suggests words; an intent and slot model says what is asked for.  With a text it
answers once.  Without, it answers each line of its input, so that it can be tried at a prompt or
driven by another program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from tacit.cli.options import (
    AsJson,
    ModelArgument,
    Round,
    argument,
    check_counts,
    count,
    refuse_unfit,
)
from tacit.cli.output import emit, say, table
from tacit.privacy.visible import visible
from tacit.runs.figures import percent


@dataclass(frozen=True)
class _Answer:
    """What a model makes of a text: as JSON, in one line, and as a table."""

    row: Any
    line: str
    shown: Table | str


def predict(
    context: typer.Context,
    run: ModelArgument,
    text: str | None = argument(None, "[TEXT]", "What was typed. Without it: lines of the input."),
    top: int = count(3, "N", "How many words to suggest."),
    round: Round = None,
    as_json: AsJson = False,
) -> None:
    """Suggest words for a typed text, or say what it asks for: the intent and the slots.

    After a space, or after a complete word, suggestions are next words.  After the beginning of a
    word they are words that begin so.  An intent and slot model reads tokens between spaces.

    Examples:

    `tacit predict runs/first "see you "`

    `tacit predict runs/first "see yo" --top 5 --json`

    `tacit predict runs/intents "wake me up at seven"`

    `tacit predict runs/first` asks for one line after the other; Ctrl-D ends it.
    """
    from tacit.runs.directory import RunDirectory

    check_counts(top=top)
    task = RunDirectory(run).task
    refuse_unfit(context, task, {"language": ("--top",)})
    answer = _understanding(run, round) if task == "nlu" else _suggestions(run, round, top)
    if text is not None:
        said = answer(text)
        emit(said.row, as_json, lambda console: console.print(said.shown))
        return
    for line in _lines():  # one line of output for each
        said = answer(line)
        say(json.dumps(said.row) if as_json else visible(said.line))


def _suggestions(run: Path, round: int | None, top: int) -> Callable[[str], _Answer]:
    """The words that a language model suggests, with its probability of each."""
    from tacit.evaluation.suggestions import Suggester
    from tacit.runs.stored_model import StoredModel

    stored = StoredModel.open(run, round)
    suggester = Suggester(stored.model, stored.tokenizer)

    def answer(text: str) -> _Answer:
        words = suggester.suggest(text, top)
        if not words:
            return _Answer([], "nothing to suggest", "nothing to suggest")
        line = "   ".join(f"{each.word} {each.probability:.1%}" for each in words)
        cells = [(each.word, percent(each.probability)) for each in words]
        shown = table("word", ">probability", title=f"after “{text}”", rows=cells)
        return _Answer([asdict(each) for each in words], line, shown)

    return answer


def _understanding(run: Path, epoch: int | None) -> Callable[[str], _Answer]:
    """The intent and the slots that the model of a run or a bundle reads in an utterance."""
    from tacit.runs.stored_model import open_nlu_model
    from tacit.tasks.nlu.predictions import understand

    stored = open_nlu_model(run, epoch)

    def answer(text: str) -> _Answer:
        said = understand(stored, text)
        slots = [{"type": type, "words": words} for type, words in said.slots]
        line = "   ".join([said.intent, *(f"{type}: {words}" for type, words in said.slots)])
        shown = table("intent", said.intent, title=f"“{text}”", rows=said.slots)
        return _Answer({"intent": said.intent, "slots": slots}, line, shown)

    return answer


def _lines() -> Iterator[str]:
    """What is typed, line by line, or what is piped in."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    print("Type the beginning of a message, Enter for an answer, Ctrl-D to end.", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
