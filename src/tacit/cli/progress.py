"""A progress bar on standard error, with rate and time left, for what takes over two seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")


def tracked(items: Sequence[Item], title: str) -> Iterator[Item]:
    """The items, with a bar while they are worked through; silent where there is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=len(items), rate="")
        for item in items:
            yield item
            speed = progress.tasks[0].speed
            progress.update(task, advance=1, rate=f"{speed:.1f}/s" if speed else "")
