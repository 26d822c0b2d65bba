"""What is seen of a training while it runs."""

from __future__ import annotations

import contextlib
import io

import pytest

from tacit.cli.live import Display, Pace
from tacit.session import Progress


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
    err = io.StringIO()
    row = {"round": 20, "accuracy_top1_smoothed": 0.125, "perplexity": 80.25, "epsilon": None}
    with contextlib.redirect_stderr(err), Display() as display:
        display.tell("tokenizing", 5, 10)
        for users in (0, 5, 10):
            display.observe(Progress(20, 100, users, 10 * bool(users), row))
    shown = err.getvalue()
    assert "tokenizing" in shown or "training" in shown
    assert "round 20 of 100" in shown
    assert "top-1 12.50%, perplexity 80.2, epsilon infinity" in shown
