"""What is seen of work while it goes on, on standard error: how far it is, how fast, time left.

On a terminal that is a bar.  Elsewhere it is a line every few seconds, because standard error then
ends in a log.

Logs are kept and shared, and how many users take part in a round is private.  A terminal is for
the operator's eyes only: its bar moves with every user.  A log tells of whole legs alone (rounds of
a language model, epochs of intents and slots), and of time in two digits: how long a single round
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

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tacit.privacy.claims import format_epsilon
from tacit.privacy.visible import visible
from tacit.runs.figures import UNK_COMPETES, percent, perplexity
from tacit.runs.terminal import Terminal

if TYPE_CHECKING:
    from tacit.runs.session import Observer, TrainingProgress
    from tacit.tasks import AnyExperiment
    from tacit.tasks.task import Announce

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
    console = _stderr(quiet=quiet)
    if not _is_terminal(console):
        yield _lines(console, title)
        return
    line_below = Text()
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=console,
    )
    task = bars.add_task(visible(title), total=None, state="")
    current = title

    def show(step: str, done: float, total: float | None, state: str) -> None:
        nonlocal current
        if step != current:  # another step has a clock of its own
            current = step
            bars.reset(task, description=visible(step))
        state, _, line_below.plain = visible(state, lines=True).partition("\n")
        bars.update(task, completed=done, total=total, state=state)

    with Live(Group(bars, line_below), console=console, transient=True):
        yield show


def tracked(items: Sequence[Item], title: str) -> Iterator[Item]:
    """The items, with a bar while they are worked through."""
    with bar(title) as show:
        for done, item in enumerate(items):
            show(title, done, len(items), f"{done:,} of {len(items):,}")
            yield item


def _stderr(*, quiet: bool) -> Terminal:
    return Terminal(stderr=True, quiet=quiet, soft_wrap=True)


def _is_terminal(console: Terminal) -> bool:
    """Many CI systems make a console take a file for a terminal (FORCE_COLOR): ask the file too."""
    return console.is_terminal and console.file.isatty() and not console.quiet


def _lines(console: Terminal, title: str) -> Show:
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


class _LegPace:
    """How fast legs (rounds or epochs) go by, and how long those that are left will take."""

    def __init__(self, leg: str) -> None:
        self._name = leg
        self._began: tuple[float, float] | None = None  # when, and after how many legs
        self._left = 0.0
        self.done = 0.0  # legs since it began
        self.seconds_each = 0.0  # 0 before anything is done

    def note(self, leg: float, legs: int) -> None:
        """Take in that `leg` of `legs` are done; while that is the same, nothing changes."""
        now = time.monotonic()
        start, first = self._began = self._began or (now, leg)
        if leg - first > self.done:
            self.done = leg - first
            self.seconds_each = (now - start) / self.done
        self._left = legs - leg

    @property
    def rate(self) -> str:
        """Such as "12 rounds/min"; empty before anything is done."""
        if self.seconds_each <= 0:
            return ""
        return f"{_two_digits(60 / self.seconds_each):,g} {self._name}s/min"

    def __str__(self) -> str:
        """Such as "12 rounds/min, about 0:03:20 left"; empty before anything is done."""
        return ", ".join(filter(None, (self.rate, _time_left(self.seconds_each * self._left))))


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
        self._console = _stderr(quiet=quiet)
        self._title = f"{title}: " if title else ""
        self._leg = leg
        self._pace = _LegPace(leg)
        self._prepared: dict[str, Show] = {}  # in a log: the lines of each step
        self._next_line = 0.0  # the leg after which a log gets a line, evaluated or not
        self._last_line = -1
        self._stack = ExitStack()
        self._board = board
        self._show: Show | None = None  # moves the bar; without a terminal there is none

    def __enter__(self) -> Display:
        if self._board is not None:
            self._stack.callback(self._board.close)
        if _is_terminal(self._console):
            self._show = self._stack.enter_context(bar(f"{self._title}opening"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, what: str, done: int, of: int) -> None:
        """Preparation: how much of `what` is done."""
        if self._show is not None:
            self._show(f"{self._title}{what}", done, of, "")
        elif what not in self._prepared:
            self._console.print(f"{self._title}{what}")
            self._prepared[what] = _lines(self._console, f"{self._title}{what}")
        else:
            self._prepared[what](f"{self._title}{what}", done, of, "")

    def observe(self, now: TrainingProgress) -> None:
        """Training: which leg it is at, and the last figures."""
        if self._board is not None:
            self._board.observe(now)
        if self._show is None:
            self._log(now)
            return
        done = now.leg + (now.done / now.of if now.of else 0.0)
        self._pace.note(done, now.legs)
        state = f"{self._leg} {now.leg:,} of {now.legs:,}, {self._pace.rate}".rstrip(", ")
        if (row := now.metrics) is not None:
            state += f"\nheld out, after {self._leg} {row[self._leg]:,}: {_figures(row)}"
        self._show(f"{self._title}training", done, now.legs, state)

    def _log(self, now: TrainingProgress) -> None:
        """Print a line after an evaluation, and every few seconds.  It tells of whole legs only."""
        self._pace.note(now.leg, now.legs)
        row = now.metrics
        is_evaluated = row is not None and row[self._leg] == now.leg
        is_due = self._pace.done >= FEWEST_LEGS and now.leg >= self._next_line
        if now.leg == self._last_line or not (is_evaluated or is_due):
            return
        parts = [_figures(row)] if row is not None and is_evaluated else []
        parts += [str(self._pace)] if self._pace.done else []
        line = f"{self._leg} {now.leg:,} of {now.legs:,}: {'; '.join(parts)}"
        self._console.print(f"{self._title}{line}")
        self._last_line = now.leg
        each = _two_digits(self._pace.seconds_each)
        self._next_line = now.leg + (max(1, math.ceil(SECONDS / each)) if each > 0 else 1)


@contextmanager
def watched(
    progress: bool | None,
    experiment: AnyExperiment | None,
    folder: str | Path,
    observer: Observer | None,
    announce: Announce | None,
) -> Iterator[tuple[Observer | None, Announce | None]]:
    """The observer and announcer of a training, after those that show it if `progress` is True.

    With None it is shown to somebody who is looking on, at a terminal or in a notebook, unless the
    caller has an observer or announcer of its own.  `folder` is where a run's experiment is if the
    caller did not give one.
    """
    if progress is None:
        progress = observer is None and announce is None and _somebody_looks_on()
    if not progress:
        yield observer, announce
        return
    with Display(leg=_leg_name(experiment, Path(folder))) as display:
        yield _both(display.observe, observer), _both(display.tell, announce)


def _both(first: Callable[..., None], second: Callable[..., None] | None) -> Callable[..., None]:
    """A function that calls both with the same arguments."""

    def call(*arguments: Any) -> None:
        first(*arguments)
        if second is not None:
            second(*arguments)

    return call


def _somebody_looks_on() -> bool:
    """Whether standard error is a terminal, or what is shown below the cell of a notebook."""
    console = _stderr(quiet=False)
    return console.is_jupyter or _is_terminal(console)


def _leg_name(experiment: AnyExperiment | None, folder: Path) -> str:
    """What the training counts in; the default experiment's if there is none to ask."""
    from tacit.runs.directory import RunDirectory

    directory = RunDirectory(folder)
    if experiment is None and directory.experiment_file.is_file():
        experiment = directory.experiment()
    return "round" if experiment is None else experiment.leg_name


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
            f" {percent(row.get('intent_accuracy'))}"
        )
    spent = "infinity" if row.get("epsilon") is None else format_epsilon(row["epsilon"])
    top1 = percent(row.get("accuracy_top1_smoothed"))
    papers = row.get("accuracy_top1_unk_competes_smoothed")  # rows of older runs have none
    if papers is not None:
        top1 += f" ({percent(papers)} {UNK_COMPETES})"
    return f"top-1 {top1}, perplexity {perplexity(row.get('perplexity'))}, epsilon {spent}"


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _time_left(seconds: float) -> str:
    """Such as "about 0:03:20 left", in two digits; empty if nothing is left to do."""
    if seconds <= 0:
        return ""
    return f"about {timedelta(seconds=math.ceil(_two_digits(seconds)))} left"
