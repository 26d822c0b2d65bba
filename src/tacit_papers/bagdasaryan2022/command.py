"""`tacit papers tokenizers`: several tokenizers, and the models with them, on the same words.

The command opens what is named, has it measured on test users' texts, and prints the table of
Bagdasaryan et al. 2022 with notes that say what each figure means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tacit.cli.options import AsJson, check_counts, number, whole_number
from tacit.cli.output import emit, say
from tacit.privacy.projection import Projection
from tacit.runs.progress import bar

if TYPE_CHECKING:
    from tacit.runs.run import LanguageRun
    from tacit_papers.bagdasaryan2022.comparison import Contender
    from tacit_papers.bagdasaryan2022.rows import TokenizerRow

EXAMPLES = """
Examples:

`tacit papers tokenizers runs/public runs/free runs/oracle --worst public --best oracle`

`tacit papers tokenizers runs/first@60 tokenizers/free --words 10000`

`tacit papers tokenizers runs/public runs/free --curve curves.png --projected cohort=5000,population=1e6`
"""  # noqa: E501

_PROJECTED = "cohort=5000,population=1e6"


def compare(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE...",
            help="A run, RUN@ROUND, or a tokenizer's folder or file.",
            show_default=False,
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(metavar="C", help="Whose test users' texts.  [default: that of the runs]"),
    ] = None,
    words: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="How many words to measure on.")
    ] = 40_000,
    projected: Annotated[
        str | None,
        typer.Option(
            metavar=_PROJECTED,
            help="Epsilon with more users beside the actual one; delta=... and rounds=... may be"
            " added.  [default delta: population^-1.1]",
        ),
    ] = None,
    worst: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --best: which share of their gap is closed."),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="As the first column has it."),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw perplexity per word over rounds: .png, .svg, .pdf"),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """How tokenizers fit test users' words, and how well models with them predict the words.

    Figures per word compare across tokenizers, and figures per token do not.  All are measured on
    the same texts of test users; the KLD compares with all that these say.
    """
    from tacit.cli import plots
    from tacit_papers.bagdasaryan2022 import table
    from tacit_papers.bagdasaryan2022.comparison import (
        corpus_of,
        measure,
        open_contenders,
        runs_of,
    )
    from tacit_papers.bagdasaryan2022.rows import whole_texts

    check_counts(words=words)
    to = None if projected is None else projection(projected)
    if as_json and as_markdown:
        raise ValueError("--json and --markdown each print everything; leave one out")
    if curve is not None:
        plots.check_target(curve)
    contenders = open_contenders(places)
    _check_ends(contenders, worst, best)
    users = corpus_of(contenders, corpus).test
    runs = runs_of(contenders) if curve is not None else {}
    texts = whole_texts(users, words)
    if not texts:
        raise ValueError("the test users have no text to measure on")
    with bar("reading") as show:
        rows = measure(contenders, users, texts, to, show)
    gap = None
    notes = _projection_notes(rows) if to is not None else []
    if worst is not None and best is not None:
        notes.insert(0, table.gap_note(rows, worst, best))
        gap = _gap(rows, worst, best)
    if curve is not None:
        notes += _draw(runs, curve)
    result = {
        "rows": table.as_json(rows),
        "gap_closed": gap,
        "notes": [*table.notes(rows), *notes],
    }

    def render(console: Console) -> None:
        if as_markdown:
            say(table.markdown(rows, notes).rstrip("\n"))
            return
        console.print(table.table(rows))
        console.print(table.sources(rows))
        for note in [*table.notes(rows), *notes]:
            console.print(note)

    emit(result, as_json, render)


def projection(text: str) -> Projection:
    """Read cohort=5000,population=1e6 and, if they differ, delta=... and rounds=..."""
    readers = {
        "cohort": whole_number,
        "population": whole_number,
        "rounds": whole_number,
        "delta": number,
    }
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in readers or name in values or not value:
            raise ValueError(f"--projected must be such as {_PROJECTED}, got {text!r}")
        values[name] = readers[name](value)
    if not {"cohort", "population"} <= values.keys():
        raise ValueError(f"--projected needs both of {_PROJECTED}, got {text!r}")
    return Projection(**values)


def _check_ends(contenders: Sequence[Contender], worst: str | None, best: str | None) -> None:
    """Refuse ends of the gap that are not compared, before anything is measured."""
    if (worst is None) is not (best is None):
        raise ValueError("--worst and --best go together; give both")
    names = [one.name for one in contenders if one.model is not None]
    for option, name in (("--worst", worst), ("--best", best)):
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"{option} must be one of the models ({known}), got {name!r}")
    if worst is not None and worst == best:
        raise ValueError(f"--worst and --best must be two different ones, got {worst!r} twice")


def _gap(rows: Sequence[TokenizerRow], worst: str, best: str) -> dict[str, float] | None:
    """The share of the gap that each row closes; None where a note says why there is none."""
    from tacit_papers.bagdasaryan2022.table import gap_closed

    try:
        shares = gap_closed(rows, worst, best)
    except ValueError:
        return None
    return {name: share for name, share in shares.items() if math.isfinite(share)}


def _projection_notes(rows: Sequence[TokenizerRow]) -> list[str]:
    """A sentence about the models for which no epsilon is projected, if there are any."""
    left_out = [row.name for row in rows if row.has_model and row.projected_epsilon is None]
    if not left_out:
        return []
    return [
        f"Nothing is projected for {', '.join(left_out)}: that needs a guarantee for real"
        " people, from rounds with Poisson sampling, the fixed denominator and a clip norm that"
        " does not adapt, and rounds that are all alike where their number is changed."
    ]


def _draw(runs: Mapping[str, LanguageRun], path: Path) -> list[str]:
    """Draw the curves of runs into a file, and return what has to be said about the picture."""
    from tacit_papers.bagdasaryan2022 import curves

    drawn = {}
    with bar("curves") as show:
        for index, (name, run) in enumerate(runs.items()):
            show("curves", index, len(runs), f"{index} of {len(runs)}")
            metrics = run.metrics()
            has_words = any("perplexity_per_word" in row for row in metrics)
            drawn[name] = curves.curve_of(metrics) if has_words else curves.measure_again(run)
    curves.draw(drawn, path)
    notes = [f"The curves of {', '.join(drawn)} are in {path}, on the texts of each run's metrics."]
    texts = {(r.ledger.header.data, r.experiment.evaluation.max_tokens) for r in runs.values()}
    if len(texts) > 1:
        notes.append("They are of different texts, so that the curves do not compare.")
    return notes
