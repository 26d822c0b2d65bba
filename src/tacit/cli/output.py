"""What a command hands back: a result on standard output, messages on standard error.

Every command computes one result and passes it to `emit`, which prints either JSON (for scripts,
with `--json`) or the command's own tables and sentences.  Nothing else is ever printed to standard
output, so that `tacit ... --json | jq` always works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tacit.privacy import durable
from tacit.privacy.claims import format_epsilon
from tacit.runs.figures import FIGURES, written_figures


class Interrupted(Exception):
    """Ctrl-C in a command that knows how to go on: exit code 130, and this sentence."""


def emit(result: Any, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print `result` as JSON if `as_json`, else let `render` print it on a console.

    `result` is JSON data, or an object with `as_row()` that returns JSON data.  NaN and infinity
    are refused because they are not JSON: a result says None instead.  The console takes text as
    it is: no markup, no highlighting, no emoji codes, since people's words pass through it.
    """
    if not as_json:
        render(Console(highlight=False, markup=False, emoji=False))
        return
    row = result.as_row() if hasattr(result, "as_row") else result
    json.dump(row, sys.stdout, indent=2, allow_nan=False)
    print()


def table(
    *headings: str, rows: Iterable[Sequence[str]] = (), title: str = "", compact: bool = False
) -> Table:
    """A table of text.  A heading that begins with ">" is of a right-aligned column of numbers.

    Text columns fold rather than lose their end in a narrow terminal.  `compact` has no frame.
    """
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False} if compact else {}
    made = Table(title=title or None, show_header=any(headings), **style)
    for heading in headings:
        number = heading.startswith(">")
        made.add_column(
            heading.removeprefix(">"),
            justify="right" if number else "left",
            overflow=None if number else "fold",  # type: ignore[arg-type]
        )
    for row in rows:
        made.add_row(*row)
    return made


def note(message: str) -> None:
    """A line to the person at the terminal, on standard error."""
    print(f"tacit: {message}", file=sys.stderr)


def epsilon(value: float | None) -> str:
    """An epsilon as results hold it, where None stands for infinity."""
    return "infinity" if value is None else format_epsilon(value)


def figures_table(task: str, measured: Mapping[str, Any], heading: str) -> Table:
    """All figures of one model, a line each; `heading` says on which text they were measured."""
    return table(heading, ">", rows=written_figures(task, measured))


def figure_headings(task: str) -> list[str]:
    """The headings of a table with a model per line; `figure_cells` makes its lines."""
    return [f">{figure.heading}" for figure in FIGURES[task] if figure.heading]


def figure_cells(task: str, measured: Mapping[str, Any]) -> list[str]:
    """The figures of one model under `figure_headings`."""
    return [f.show(measured.get(f.key)) for f in FIGURES[task] if f.heading]


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a folder to fill.  It becomes `out` at the end, or is removed if anything fails."""
    check_new_directory(out)
    with durable.whole_folder(out) as folder:
        yield folder


def check_new_directory(out: Path) -> None:
    """Refuse an `--out` that exists, or whose parent does not."""
    if out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: choose a directory that does not")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {str(out)!r} is in a folder that does not exist")


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add lines to a JSON Lines file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
