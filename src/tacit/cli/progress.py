"""What is seen of work while it goes on, on standard error: how far it is, how fast, time left.

On a terminal that is a bar.  Elsewhere it is a line every few seconds, because standard error then
ends in a log.

Logs are kept and shared, and how many users take part in a round is private.  A terminal is for
the operator's eyes only and shows users per second.  A log tells of whole rounds alone, and of time
in two digits: how long a single round took would tell how many took part in it.  Which rounds get a
line follows from the figures in the lines before, so that the choice of rounds tells nothing more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tacit.cli.output import epsilon, percent, perplexity

if TYPE_CHECKING:
    from tacit.runs.session import Progress as TrainingProgress

Item = TypeVar("Item")

Show = Callable[[str, float, float | None, str], None]
"""Called with what is being done, how much is done, of how much, and anything else to say.

What follows a line break in the last argument stands in a line of its own, below the bar.
"""

SECONDS = 10.0  # between two lines of a log
FEWEST_ROUNDS = 3  # that a rate in a log is averaged over, where nothing else asks for a line


@contextmanager
def bar(title: str, *, quiet: bool = False) -> Iterator[Show]:
    """Yield a function that moves a bar, or prints a line now and then where there is no terminal.

    Nothing is left on a terminal when the work is done, and nothing is shown at all if `quiet`.
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if quiet or not _is_terminal(console):
        yield _lines(console, title) if not quiet else lambda *_: None
        return
    text, line_below = "{task.description}", Text()
    bars = Progress(
        TextColumn(text),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=console,
    )
    task = bars.add_task(title, total=None, state="")
    current = title

    def show(step: str, done: float, total: float | None, state: str) -> None:
        nonlocal current
        if step != current:  # another step has a clock of its own
            current = step
            bars.reset(task, description=step)
        state, _, line_below.plain = state.partition("\n")
        bars.update(task, completed=done, total=total, state=state)

    with Live(Group(bars, line_below), console=console, transient=True):
        yield show


def tracked(items: Sequence[Item], title: str) -> Iterator[Item]:
    """The items, with a bar while they are worked through."""
    with bar(title) as show:
        for done, item in enumerate(items):
            show(title, done, len(items), f"{done:,} of {len(items):,}")
            yield item


def _is_terminal(console: Console) -> bool:
    """Many CI systems make a console take a file for a terminal (FORCE_COLOR): ask the file too."""
    return console.is_terminal and console.file.isatty()


def _lines(console: Console, title: str) -> Show:
    """A function that prints a line if the last one is a few seconds old."""
    step, began = title, time.monotonic()
    printed = began

    def show(now_doing: str, done: float, total: float | None, state: str) -> None:
        nonlocal step, began, printed
        now = time.monotonic()
        if now_doing != step:
            step, began = now_doing, now
        if now - printed < SECONDS:
            return
        printed = now
        parts = [f"{done / total:.0%}"] if total else []
        parts += [state.partition("\n")[0]] if state else []
        if total and done > 0:
            parts.append(_time_left((now - began) / done * (total - done)))
        console.print(f"{step}: {', '.join(filter(None, parts)) or 'at work'}")

    return show


class UserRate:
    """Users per second while users are computed, without noise, checkpoints and evaluation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: float | None = None
        self._counted = 0  # users of the present cohort that are in the sum already
        self._users = 0
        self._busy = 0.0  # seconds

    def note(self, now: TrainingProgress) -> None:
        moment = self._clock()
        if self._before is not None and now.done:
            self._busy += moment - self._before
        more = now.done - self._counted
        self._users += more if more > 0 else now.done
        self._counted, self._before = now.done, moment

    def __str__(self) -> str:
        """Such as "35.2 users/s"; empty before anything is known."""
        if self._busy <= 0:
            return ""
        rate = self._users / self._busy
        return f"{rate:,.3g} users/s" if rate < 1000 else f"{rate:,.0f} users/s"


class RoundPace:
    """How fast rounds go by, for logs: whole rounds are all that it looks at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, int] | None = None  # when, and after how many rounds
        self._seconds = 0.0
        self._left = 0
        self.done = 0  # rounds since it began

    def note(self, round: int, rounds: int) -> None:
        """Take in that `round` of `rounds` are done; between two rounds nothing changes."""
        if self._began is None:
            self._began = self._clock(), round
        elif round - self._began[1] != self.done:
            self._seconds = self._clock() - self._began[0]
            self.done = round - self._began[1]
        self._left = rounds - round

    @property
    def seconds_per_round(self) -> float:
        """In two digits; 0 before the first round is done."""
        return _two_digits(self._seconds / self.done) if self.done > 0 else 0.0

    def __str__(self) -> str:
        """Such as "12 rounds/min, about 0:03:20 left"; empty before the first round is done."""
        if self.done <= 0 or self._seconds <= 0:
            return ""
        each = self._seconds / self.done
        rate = f"{_two_digits(60 / each):,g} rounds/min"
        return ", ".join(filter(None, (rate, _time_left(each * self._left))))


class Display:
    """The progress of one training: what it prepares, its rounds, and its held-out figures."""

    def __init__(self, title: str = "", *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._title = f"{title}: " if title else ""
        self._quiet = quiet
        self._users, self._pace = UserRate(), RoundPace()
        self._prepared: set[str] = set()
        self._next_line = 0  # the round after which a log gets a line, evaluated or not
        self._last_line = -1
        self._stack = ExitStack()
        self._show: Show | None = None  # moves the bar; without a terminal there is none

    def __enter__(self) -> Display:
        if not self._quiet and _is_terminal(self._console):
            self._show = self._stack.enter_context(bar(f"{self._title}opening"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, what: str, done: int, of: int) -> None:
        """Preparation: how much of `what` is done."""
        if self._show is not None:
            self._show(f"{self._title}{what}", done, of, "")
        elif what not in self._prepared:
            self._say(what)
        self._prepared.add(what)

    def observe(self, now: TrainingProgress) -> None:
        """Training: which round it is at, and the last figures."""
        self._pace.note(now.leg, now.legs)
        row = now.metrics
        if self._show is not None:
            self._users.note(now)
            share = now.done / now.of if now.of else 0.0
            state = f"round {now.leg:,} of {now.legs:,}, {self._users}".rstrip(", ")
            if row is not None:
                state += f"\nheld out, after round {row['round']:,}: {_figures(row)}"
            self._show(f"{self._title}training", now.leg + share, now.legs, state)
        elif now.leg != self._last_line:
            evaluated = row is not None and row["round"] == now.leg
            if evaluated or self._is_due(now.leg):
                self._line(now, row if evaluated else None)

    def _is_due(self, round: int) -> bool:
        return self._pace.done >= FEWEST_ROUNDS and round >= self._next_line

    def _line(self, now: TrainingProgress, row: dict[str, Any] | None) -> None:
        parts = filter(None, (_figures(row) if row is not None else "", str(self._pace)))
        self._say(f"round {now.leg:,} of {now.legs:,}: {'; '.join(parts)}")
        self._last_line = now.leg
        each = self._pace.seconds_per_round
        self._next_line = now.leg + (max(1, math.ceil(SECONDS / each)) if each > 0 else 1)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(f"{self._title}{line}")


class TensorBoard:
    """Writes the held-out metrics of a training into DIR/tensorboard, and nothing private."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard needs the package tensorboard: pip install 'tacit-dp[tensorboard]'"
            ) from None
        self._make: Any = SummaryWriter
        self._folder = run / "tensorboard"
        self._writer: Any = None  # made with the first row, when the run directory exists
        self._last = -1

    def observe(self, now: TrainingProgress) -> None:
        """Only held-out metrics are in a row; cohorts and users are never written."""
        row = now.metrics
        if row is None or row["round"] <= self._last:
            return
        if self._writer is None:  # after a resume, what was measured past the checkpoint goes
            self._writer = self._make(str(self._folder), purge_step=row["round"])
        self._last = row["round"]
        for name, value in row.items():
            if name != "round" and value is not None:
                self._writer.add_scalar(f"held_out/{name}", value, row["round"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _figures(row: dict[str, Any]) -> str:
    """A row of metrics.jsonl: smoothed accuracy, perplexity, and epsilon so far."""
    return (
        f"top-1 {percent(row['accuracy_top1_smoothed'])},"
        f" perplexity {perplexity(row['perplexity'])}, epsilon {epsilon(row['epsilon'])}"
    )


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _time_left(seconds: float) -> str:
    if seconds <= 0:
        return ""
    return f"about {timedelta(seconds=math.ceil(_two_digits(seconds)))} left"
