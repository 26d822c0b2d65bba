"""Progress bars on standard error, with rate and time left, for what takes over two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")

Show = Callable[[str, float, float | None, str], None]
"""(what is being done, how much is done, of how much, the rate and whatever else to say)"""


@contextmanager
def bar(title: str) -> Iterator[Show]:
    """A bar that the function it yields moves; silent where there is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=None, state="")
        current = title

        def show(step: str, done: float, total: float | None, state: str) -> None:
            nonlocal current
            if step != current:  # another step has a clock of its own
                current = step
                progress.reset(task, description=step)
            progress.update(task, completed=done, total=total, state=state)

        yield show


def tracked(items: Sequence[Item], title: str) -> Iterator[Item]:
    """The items, with a bar while they are worked through."""
    with bar(title) as show:
        for done, item in enumerate(items):
            show(title, done, len(items), f"{done} of {len(items)}")
            yield item
