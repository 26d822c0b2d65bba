"""What is seen of a training while it runs."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tacit.cli.live import Display, Pace, RoundPace
from tacit.runs.session import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_pace_counts_users_while_they_are_computed():
    now = 0.0
    pace = Pace(lambda: now)
    for seconds, round, users in (
        (0, 0, 0),
        (1, 0, 5),
        (2, 0, 10),
        (6, 1, 0),
        (7, 1, 8),
        (8, 2, 0),
    ):
        now = float(seconds)
        pace.note(Progress(round, 10, users, 10 if users else 0, None))
    assert pace.users_per_second == pytest.approx(18 / 3)  # not while it evaluates
    assert pace.seconds_left == pytest.approx(8 / 2 * 8)


def test_on_a_terminal_there_is_a_bar_with_the_last_figures(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    err = Terminal()
    row = {"round": 20, "accuracy_top1_smoothed": 0.125, "perplexity": 80.25, "epsilon": None}
    with contextlib.redirect_stderr(err), Display() as display:
        display.tell("tokenizing", 5, 10)
        for users in (0, 5, 10):
            display.observe(Progress(20, 100, users, 10 * bool(users), row))
    shown = err.getvalue()
    assert "tokenizing" in shown or "training" in shown
    assert "round 20 of 100" in shown
    assert "top-1 12.50%, perplexity 80.2, epsilon infinity" in shown


ROW = {"accuracy_top1_smoothed": 0.125, "perplexity": 80.25, "epsilon": 1.5}


def logged(monkeypatch, cohorts, *, users_per_second=10.0, every=2):
    """The log of a training whose rounds take as long as their cohorts are large."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    err, row, rounds = io.StringIO(), {"round": 0} | ROW, len(cohorts)
    with contextlib.redirect_stderr(err), Display() as display:
        display._pace, display._rounds = Pace(lambda: now), RoundPace(lambda: now)
        for round, cohort in enumerate(cohorts):
            display.observe(Progress(round, rounds, 0, 0, row))
            for users in range(1, cohort + 1):
                now += 1 / users_per_second
                display.observe(Progress(round, rounds, users, cohort, row))
            if (round + 1) % every == 0:
                row = {"round": round + 1} | ROW
        display.observe(Progress(rounds, rounds, 0, 0, row))
    return err.getvalue().splitlines()


@pytest.mark.parametrize("forced", [False, True], ids=["a file", "a file with FORCE_COLOR"])
def test_a_log_tells_rounds_and_nothing_of_their_users(monkeypatch, forced):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    lines = logged(monkeypatch, [90, 110, 100, 105, 95, 100])
    assert len(lines) == 4  # before the first round, and after every other one
    assert "users" not in "".join(lines)
    assert "100" not in re.sub(r"perplexity \S+", "", "".join(lines))
    assert lines[1].endswith("; 6 rounds/min, about 0:00:40 left")
    assert lines[-1].endswith("; 6 rounds/min")


def test_cohorts_that_differ_by_a_few_give_the_same_log(monkeypatch):
    """One more or less is what must not be seen."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    one = logged(monkeypatch, [100, 100, 100, 100])
    assert one == logged(monkeypatch, [101, 100, 99, 101])
    assert one != logged(monkeypatch, [200, 200, 200, 200])  # which takes twice as long


def test_what_is_told_within_a_round_does_not_move_the_time_left():
    now = 0.0
    pace = RoundPace(lambda: now)
    assert str(pace) == ""
    for seconds, round in ((0, 0), (3, 0), (10, 1)):
        now = float(seconds)
        pace.note(round, 7)
    told = str(pace)
    assert told == "6 rounds/min, about 0:01:00 left"
    now = 17.0
    pace.note(1, 7)
    assert str(pace) == told


def test_the_rate_is_told_in_two_digits():
    now = 0.0
    pace = RoundPace(lambda: now)
    pace.note(0, 1000)
    now = 1.2345
    pace.note(1, 1000)
    assert str(pace) == "49 rounds/min, about 0:20:00 left"
