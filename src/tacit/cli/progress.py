"""What is seen of work while it goes on, on standard error: how far it is, how fast, time left.

On a terminal that is a bar.  Elsewhere it is a line every few seconds, because standard error then
ends in a log.

Logs are kept and shared, and how many users take part in a round is private.  A terminal is for
the operator's eyes only and shows users per second.  A log tells of whole legs alone (rounds of a
language model, epochs of intents and slots), and of time in two digits: how long a single round
took would tell how many took part in it.  Which rounds get a line follows from the figures in the
lines before, so that the choice of rounds tells nothing more.
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

from tacit.cli.output import epsilon
from tacit.runs.figures import percent, perplexity

if TYPE_CHECKING:
    from tacit.runs.session import Progress as TrainingProgress

Item = TypeVar("Item")

Show = Callable[[str, float, float | None, str], None]
"""Called with what is being done, how much is done, of how much, and anything else to say.

What follows a line break in the last argument stands in a line of its own, below the bar.
"""

SECONDS = 10.0  # between two lines of a log
FEWEST_LEGS = 3  # that a rate in a log is averaged over, where nothing else asks for a line


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


class _Rate:
    """Users, or steps, per second, without the time for noise, checkpoints and evaluation."""

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unit = unit
        self._before: float | None = None
        self._counted = 0  # of the present leg
        self._total = 0
        self._busy = 0.0  # seconds

    def note(self, now: TrainingProgress) -> None:
        moment = self._clock()
        if self._before is not None and now.done:
            self._busy += moment - self._before
        more = now.done - self._counted
        self._total += more if more > 0 else now.done
        self._counted, self._before = now.done, moment

    def __str__(self) -> str:
        """Such as "35.2 users/s"; empty before anything is known."""
        if self._busy <= 0:
            return ""
        rate = self._total / self._busy
        return f"{rate:,.3g} {self._unit}/s" if rate < 1000 else f"{rate:,.0f} {self._unit}/s"


class _LegPace:
    """How fast legs go by, for logs: whole legs, such as rounds, are all that it looks at."""

    def __init__(self, leg: str = "round", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = leg
        self._began: tuple[float, int] | None = None  # when, and after how many legs
        self._seconds = 0.0
        self._left = 0
        self.done = 0  # legs since it began

    def note(self, leg: int, legs: int) -> None:
        """Take in that `leg` of `legs` are done; between two legs nothing changes."""
        if self._began is None:
            self._began = self._clock(), leg
        elif leg - self._began[1] != self.done:
            self._seconds = self._clock() - self._began[0]
            self.done = leg - self._began[1]
        self._left = legs - leg

    @property
    def seconds_each(self) -> float:
        """In two digits; 0 before the first leg is done."""
        return _two_digits(self._seconds / self.done) if self.done > 0 else 0.0

    def __str__(self) -> str:
        """Such as "12 rounds/min, about 0:03:20 left"; empty before the first leg is done."""
        if self.done <= 0 or self._seconds <= 0:
            return ""
        each = self._seconds / self.done
        rate = f"{_two_digits(60 / each):,g} {self._name}s/min"
        return ", ".join(filter(None, (rate, _time_left(each * self._left))))


class Display:
    """The progress of one training: what it prepares, its legs, and its held-out figures.

    `leg` is what the training counts in: "round", or "epoch" of intents and slots.  A `board` gets
    the same progress, and is closed at the end.
    """

    def __init__(
        self,
        title: str = "",
        *,
        leg: str = "round",
        quiet: bool = False,
        board: TensorBoard | None = None,
    ) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._title = f"{title}: " if title else ""
        self._quiet = quiet
        self._leg = leg
        self._rate, self._pace = _Rate("users" if leg == "round" else "steps"), _LegPace(leg)
        self._prepared: set[str] = set()
        self._next_line = 0  # the leg after which a log gets a line, evaluated or not
        self._last_line = -1
        self._stack = ExitStack()
        self._board = board
        if board is not None:
            self._stack.callback(board.close)
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
        """Training: which leg it is at, and the last figures."""
        self._pace.note(now.leg, now.legs)
        if self._board is not None:
            self._board.observe(now)
        row = now.metrics
        if self._show is not None:
            self._rate.note(now)
            share = now.done / now.of if now.of else 0.0
            state = f"{self._leg} {now.leg:,} of {now.legs:,}, {self._rate}".rstrip(", ")
            if row is not None:
                state += f"\nheld out, after {self._leg} {row[self._leg]:,}: {_figures(row)}"
            self._show(f"{self._title}training", now.leg + share, now.legs, state)
        elif now.leg != self._last_line:
            evaluated = row is not None and row[self._leg] == now.leg
            if evaluated or self._is_due(now.leg):
                self._line(now, row if evaluated else None)

    def _is_due(self, leg: int) -> bool:
        return self._pace.done >= FEWEST_LEGS and leg >= self._next_line

    def _line(self, now: TrainingProgress, row: dict[str, Any] | None) -> None:
        parts = filter(None, (_figures(row) if row is not None else "", str(self._pace)))
        self._say(f"{self._leg} {now.leg:,} of {now.legs:,}: {'; '.join(parts)}")
        self._last_line = now.leg
        each = self._pace.seconds_each
        self._next_line = now.leg + (max(1, math.ceil(SECONDS / each)) if each > 0 else 1)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(f"{self._title}{line}")


class TensorBoard:
    """Writes the held-out metrics of a training into DIR/tensorboard, and nothing private."""

    def __init__(self, run: Path, leg: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard needs the package tensorboard: pip install 'tacit-dp[tensorboard]'"
            ) from None
        self._make: Any = SummaryWriter
        self._folder, self._leg = run / "tensorboard", leg
        self._writer: Any = None  # made with the first row, when the run directory exists
        self._last = -1

    def observe(self, now: TrainingProgress) -> None:
        """Only held-out metrics are in a row; cohorts and users are never written."""
        row = now.metrics
        if row is None or row[self._leg] <= self._last:
            return
        self._last = row[self._leg]
        if self._writer is None:  # after a resume, what was measured past the checkpoint goes
            self._writer = self._make(str(self._folder), purge_step=self._last)
        for name, value in row.items():
            if name != self._leg and value is not None:
                self._writer.add_scalar(f"held_out/{name}", value, self._last)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _figures(row: dict[str, Any]) -> str:
    """A row of metrics.jsonl in few words: what was measured on held-out text, epsilon so far."""
    if "semantic_error_rate" in row:
        return (
            f"semantic error rate {percent(row['semantic_error_rate'])}, intent accuracy"
            f" {percent(row['intent_accuracy'])}"
        )
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
