"""What is seen of a training while it runs, on standard error.

How many users take part in a round is private.  A terminal is for the operator's eyes only, and
shows users per second.  Elsewhere standard error ends in logs that are kept and shared, so those
lines speak of whole rounds alone, and of time in two digits: how long a single round took would
tell how many took part in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from tacit.cli.output import percent, perplexity
from tacit.privacy.claims import format_epsilon

if TYPE_CHECKING:
    from tacit.runs.session import Progress


class Pace:
    """How fast it goes and how long it takes, from what an observer is told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, int] | None = None  # when, and after how many rounds
        self._before = 0.0
        self._counted = 0  # users of the present cohort that are in the sum already
        self._users = 0
        self._busy = 0.0  # seconds spent on users, without noise, checkpoints and evaluation
        self._done = self._left = 0.0  # rounds

    def note(self, now: Progress) -> None:
        moment = self._clock()
        if self._began is None:
            self._began = moment, now.round
        elif now.users:
            self._busy += moment - self._before
        more = now.users - self._counted
        self._users += more if more > 0 else now.users
        self._counted = now.users
        self._before = moment
        share = now.users / now.cohort if now.cohort else 0.0
        self._done = now.round + share - self._began[1]
        self._left = now.rounds - now.round - share

    @property
    def users_per_second(self) -> float | None:
        return self._users / self._busy if self._busy > 0 else None

    @property
    def seconds_left(self) -> float | None:
        if self._began is None or self._done <= 0:
            return None
        return (self._before - self._began[0]) / self._done * self._left


class RoundPace:
    """How fast rounds go by: for logs, so whole rounds are all that it ever looks at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, int] | None = None  # when, and after how many rounds
        self._seconds = 0.0
        self._done = self._left = 0

    def note(self, round: int, rounds: int) -> None:
        """So many rounds are done; what is told between two rounds changes nothing."""
        if self._began is None:
            self._began = self._clock(), round
        elif round - self._began[1] != self._done:
            self._seconds = self._clock() - self._began[0]
            self._done = round - self._began[1]
        self._left = rounds - round

    def __str__(self) -> str:
        """Such as "12 rounds/min, about 0:03:20 left"; empty before the first round is done."""
        if self._done <= 0 or self._seconds <= 0:
            return ""
        each = self._seconds / self._done
        parts = [f"{_two_digits(60 / each):,g} rounds/min"]
        if self._left > 0:
            left = timedelta(seconds=math.ceil(_two_digits(each * self._left)))
            parts.append(f"about {left} left")
        return ", ".join(parts)


class Display:
    """A bar and the last figures on a terminal; elsewhere one line for each evaluation."""

    def __init__(self, title: str = "", *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._title = f"{title}: " if title else ""
        self._pace, self._rounds = Pace(), RoundPace()
        self._shown: set[str] = set()
        self._last_line = -1  # the round of the last line that was printed
        self._figures = Text()
        self._live: Live | None = None
        # A console can be told to take a file for a terminal (FORCE_COLOR), as many CI systems do.
        if not quiet and self._console.is_terminal and self._console.file.isatty():
            columns = ("{task.description}", "{task.percentage:>3.0f}%", "{task.fields[state]}")
            first, *rest = (TextColumn(text) for text in columns)
            self._bars = Bars(first, BarColumn(20), *rest, console=self._console)
            self._task = self._bars.add_task(f"{self._title}opening", total=None, state="")
            self._live = Live(
                Group(self._bars, self._figures), console=self._console, transient=True
            )

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, what: str, done: int, of: int) -> None:
        """Preparation: how much of what is done."""
        if self._live is not None:
            self._move(what, done, of, "")
        elif what not in self._shown:
            self._say(what)
        self._shown.add(what)

    def observe(self, now: Progress) -> None:
        """Training: where it is."""
        self._rounds.note(now.round, now.rounds)
        row = now.metrics
        if self._live is not None:
            self._pace.note(now)
            state = f"round {now.round:,} of {now.rounds:,}, {self._speed()}".rstrip(", ")
            share = now.users / now.cohort if now.cohort else 0.0
            self._move("training", now.round + share, now.rounds, state)
            if row is not None:
                self._figures.plain = f"held out, after round {row['round']:,}: {figures(row)}"
        elif row is not None and row["round"] == now.round != self._last_line:
            self._last_line = now.round
            pace = str(self._rounds)
            self._say(
                f"round {now.round:,} of {now.rounds:,}: {figures(row)}{'; ' if pace else ''}{pace}"
            )

    def _speed(self) -> str:
        parts = []
        if (rate := self._pace.users_per_second) is not None:
            parts.append(f"{rate:,.3g} users/s" if rate < 1000 else f"{rate:,.0f} users/s")
        if (left := self._pace.seconds_left) is not None and left > 0:
            parts.append(f"{timedelta(seconds=math.ceil(left))} left")
        return ", ".join(parts)

    def _move(self, what: str, done: float, of: int, state: str) -> None:
        self._bars.update(
            self._task, description=f"{self._title}{what}", completed=done, total=of, state=state
        )

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(f"{self._title}{line}", markup=False)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def figures(row: dict[str, Any]) -> str:
    """A row of metrics.jsonl: smoothed accuracy, perplexity, and epsilon so far."""
    epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
    return (
        f"top-1 {percent(row['accuracy_top1_smoothed'])}, perplexity"
        f" {perplexity(row['perplexity'])}, epsilon {format_epsilon(epsilon)}"
    )
