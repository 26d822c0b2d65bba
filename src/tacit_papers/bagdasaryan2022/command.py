"""`tacit papers tokenizers`: several tokenizers, and the models with them, on the same words."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console

from tacit.cli.options import AsJson, check_counts, number, whole_number
from tacit.cli.progress import bar
from tacit_papers.bagdasaryan2022.comparison import Place, corpus_of, opened, runs_of

if TYPE_CHECKING:
    from tacit.corpus.source import UserSource
    from tacit.privacy.projection import Projection
    from tacit.runs.run import Run
    from tacit_papers.bagdasaryan2022.rows import TokenizerRow

EXAMPLES = """
Examples:

`tacit papers tokenizers runs/public runs/free runs/oracle --worst public --best oracle`

`tacit papers tokenizers runs/first@60 tokenizers/free --words 10000`

`tacit papers tokenizers runs/public runs/free --curve curves.png --projected cohort=5000,population=1e6`
"""  # noqa: E501

PROJECTED_EXAMPLE = "cohort=5000,population=1e6"


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
        Optional[str],  # noqa: UP045
        typer.Option(metavar="C", help="Whose test users' texts.  [default: that of the runs]"),
    ] = None,
    words: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Measure on so many words.")
    ] = 40_000,
    projected: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar=PROJECTED_EXAMPLE,
            help="Epsilon with more users beside the actual one; delta=... and rounds=... may be"
            " added.  [default delta: population^-1.1]",
        ),
    ] = None,
    worst: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="With --best: which share of their gap is closed."),
    ] = None,
    best: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="As the first column has it."),
    ] = None,
    curve: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw perplexity per word over rounds: .png, .svg, .pdf"),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """How tokenizers fit test users' words, and how well models with them predict the words.

    Figures per word compare across tokenizers, and figures per token do not.  All are measured on
    the same texts of test users; the KLD compares with all that these say.
    """
    from tacit.evaluation.held_out import whole_texts
    from tacit_papers.bagdasaryan2022 import table as tokenizer_table

    check_counts(words=words)
    to = None if projected is None else projection(projected)
    if as_json and as_markdown:
        raise ValueError("--json and --markdown each print everything; leave one out")
    if curve is not None:
        from tacit.cli import figures

        figures.check_target(curve)
    found = opened(places)
    _check_ends(found, worst, best)
    users = corpus_of(found, corpus).test
    runs = runs_of(found) if curve is not None else {}
    texts = whole_texts(users, words)
    if not texts:
        raise ValueError("the test users have no text to measure on")
    rows = _measured(found, users, texts, to)
    notes = _more_notes(rows, worst, best, asked=to is not None)
    if curve is not None:
        notes += _drawn(runs, curve)
    if as_json:
        report = {
            "rows": tokenizer_table.as_json(rows),
            "gap_closed": _gap(rows, worst, best),
            "notes": [*tokenizer_table.notes(rows), *notes],
        }
        json.dump(report, sys.stdout, indent=2, allow_nan=False)
        print()
    elif as_markdown:
        print(tokenizer_table.markdown(rows, notes), end="")
    else:
        console = Console(highlight=False, markup=False)
        console.print(tokenizer_table.table(rows))
        console.print(tokenizer_table.sources(rows))
        for note in [*tokenizer_table.notes(rows), *notes]:
            console.print(note)


def projection(text: str) -> Projection:
    """cohort=5000,population=1e6 and, if they differ, delta=... and rounds=..."""
    from tacit.privacy.projection import Projection

    readers: dict[str, Callable[[str], Any]] = {
        "cohort": whole_number,
        "population": whole_number,
        "rounds": whole_number,
        "delta": number,
    }
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in readers or name in values or not value:
            raise ValueError(f"--projected must be such as {PROJECTED_EXAMPLE}, got {text!r}")
        values[name] = readers[name](value)
    if not {"cohort", "population"} <= values.keys():
        raise ValueError(f"--projected needs both of {PROJECTED_EXAMPLE}, got {text!r}")
    if not 1 <= values["cohort"] <= values["population"] or values["population"] < 2:
        raise ValueError(
            "--projected needs a cohort of at least 1 and a population that is not smaller, got"
            f" {text!r}"
        )
    if "delta" in values and not 0 < values["delta"] < 1:
        raise ValueError(f"--projected needs a delta between 0 and 1, got {values['delta']}")
    check_counts(projected_rounds=values.get("rounds"))
    return Projection(**values)


def _check_ends(found: Sequence[Place], worst: str | None, best: str | None) -> None:
    """Before anything is measured: are both ends of the gap there?"""
    if (worst is None) is not (best is None):
        raise ValueError("--worst and --best go together; give both")
    names = [place.name for place in found if place.model is not None]
    for option, name in (("--worst", worst), ("--best", best)):
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"{option} must be one of the models ({known}), got {name!r}")
    if worst is not None and worst == best:
        raise ValueError(f"--worst and --best must be two different ones, got {worst!r} twice")


def _measured(
    found: Sequence[Place], users: UserSource, texts: Sequence[str], to: Projection | None
) -> list[TokenizerRow]:
    """A row for each place, and a bar meanwhile."""
    from tacit_papers.bagdasaryan2022.rows import row_of, row_of_tokenizer, words_of

    rows = []
    with bar("reading") as show:

        def telling(step: str, unit: str) -> Callable[[int, int], None]:
            return lambda done, of: show(step, done, of, f"{done:,} of {of:,} {unit}")

        reference = words_of(users, telling("words of test users", "users"))
        for place in found:
            if place.model is not None:
                tell = telling(f"measuring {place.name}", "texts")
                row = row_of(
                    place.model,
                    texts,
                    name=place.name,
                    reference=reference,
                    projection=to,
                    progress=tell,
                )
            else:
                assert place.tokenizer is not None
                row = row_of_tokenizer(place.tokenizer, texts, name=place.name, reference=reference)
            rows.append(row)
    return rows


def _gap(
    rows: Sequence[TokenizerRow], worst: str | None, best: str | None
) -> dict[str, float] | None:
    from tacit_papers.bagdasaryan2022.table import gap_closed

    if worst is None or best is None:
        return None
    try:
        shares = gap_closed(rows, worst, best)
    except ValueError:  # the note says why
        return None
    return {name: share for name, share in shares.items() if math.isfinite(share)}


def _more_notes(
    rows: Sequence[TokenizerRow], worst: str | None, best: str | None, *, asked: bool
) -> list[str]:
    """What depends on the options."""
    from tacit_papers.bagdasaryan2022.table import gap_note

    notes = []
    if worst is not None and best is not None:
        notes.append(gap_note(rows, worst, best))
    left_out = [row.name for row in rows if row.has_model and row.projected_epsilon is None]
    if asked and left_out:
        notes.append(
            f"Nothing is projected for {', '.join(left_out)}: that needs a guarantee for real"
            " people, from rounds with Poisson sampling, the fixed denominator and a clip norm that"
            " does not adapt, and rounds that are all alike where their number is changed."
        )
    return notes


def _drawn(runs: Mapping[str, Run], path: Path) -> list[str]:
    """The picture, and what has to be said about it."""
    from tacit_papers.bagdasaryan2022.curves import curve_of, draw, remeasured

    curves = {}
    with bar("curves") as show:
        for place, (name, run) in enumerate(runs.items()):
            show("curves", place, len(runs), f"{place} of {len(runs)}")
            metrics = run.metrics()
            has_words = any("perplexity_per_word" in row for row in metrics)
            curves[name] = curve_of(metrics) if has_words else remeasured(run)
    draw(curves, path)
    notes = [
        f"The curves of {', '.join(curves)} are in {path}, on the texts of each run's metrics."
    ]
    chosen = {(r.ledger.header.data, r.experiment.evaluation.max_tokens) for r in runs.values()}
    if len(chosen) > 1:
        notes.append("They are of different texts, so that the curves do not compare.")
    return notes
