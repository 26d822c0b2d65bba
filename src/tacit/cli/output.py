"""What a command hands back: a result on standard output, messages on standard error.

Every command computes one result and passes it to `emit`, which prints either JSON (for scripts,
with `--json`) or the command's own tables and sentences.  Nothing else is ever printed to standard
output, so that `tacit ... --json | jq` always works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tacit.privacy import durable
from tacit.privacy.claims import format_epsilon
from tacit.privacy.visible import one_line, visible
from tacit.runs.figures import FIGURES
from tacit.runs.terminal import Terminal

_LONGEST_NOTE = 1600  # letters


class Interrupted(Exception):
    """Ctrl-C in a command that knows how to go on: exit code 130, and this sentence."""


def emit(result: Any, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print `result` as JSON if `as_json`, else let `render` print it on a console.

    `result` is JSON data, or an object with `as_row()` that returns JSON data.  NaN and infinity
    are refused because they are not JSON: a result says None instead.
    """
    if not as_json:
        render(Terminal())
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


def say(text: str) -> None:
    """A line of the result, or several, with nothing folded to fit a terminal."""
    print(visible(text, lines=True), flush=True)


def note(message: str) -> None:
    """A line to the person at the terminal, on standard error.

    One that quotes a number of 5,000 digits, say, is shown without its middle.
    """
    said = visible(message)
    if len(said) > _LONGEST_NOTE:
        said = f"{said[: _LONGEST_NOTE // 2]} [...] {said[-_LONGEST_NOTE // 4 :]}"
    with suppress(OSError):  # nobody reads it, which is no reason to end
        print(f"tacit: {said}", file=sys.stderr)


def epsilon(value: float | None) -> str:
    """An epsilon as results hold it, where None stands for infinity."""
    return "infinity" if value is None else format_epsilon(value)


def models_table(
    task: str,
    heading: str,
    models: Mapping[str, Mapping[str, Any]],
    more: Mapping[str, Sequence[str]],
    title: str = "",
) -> Table:
    """The figures of several models of a task, a line each, by their names under `heading`.

    Without a frame, which would be too wide for a narrow terminal.
    `more` are the columns that follow, by their headings.
    """
    columns: dict[str, Sequence[str]] = {heading: list(models)}
    for figure in FIGURES[task]:
        if figure.heading:
            cells = [figure.show(measured.get(figure.key)) for measured in models.values()]
            columns[f">{figure.heading}"] = cells
    columns |= more
    return table(*columns, rows=zip(*columns.values(), strict=True), title=title, compact=True)


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a folder to fill.  It becomes `out` at the end, or is removed if anything fails."""
    check_new_directory(out)
    with durable.whole_folder(out) as folder:
        yield folder


def check_new_directory(out: Path) -> None:
    """Refuse an `--out` that exists, whose parent does not, or that no folder is named by."""
    one_line("the name of --out", out.name, durable.LONGEST_NAME)
    if out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: choose a directory that does not")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {str(out)!r} is in a folder that does not exist")
