"""What is seen of a training while it runs."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tacit.runs.progress import Display, _figures, _LegPace, bar
from tacit.runs.run import Run
from tacit.runs.session import TrainingProgress
from tacit.runs.start import create
from tacit.train import step, train
from tests.runs.small import experiment


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar_with_the_last_figures(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    err = Terminal()
    row = {"round": 20, "accuracy_top1_smoothed": 0.125, "perplexity": 80.25, "epsilon": None}
    with contextlib.redirect_stderr(err), Display() as display:
        display.tell("tokenizing", 5, 10)
        for users in (0, 5, 10):
            display.observe(TrainingProgress(20, 100, users, 10 * bool(users), row))
    shown = err.getvalue()
    assert "tokenizing" in shown or "training" in shown
    assert "round 20 of 100" in shown
    assert "rounds/min" in shown
    assert "top-1 12.50%, perplexity 80.2, epsilon infinity" in shown


def test_both_accuracies_are_told_where_both_were_measured():
    assert _figures(ROW).startswith("top-1 12.50%, perplexity")
    both = ROW | {"accuracy_top1_unk_competes_smoothed": 0.09}
    assert _figures(both).startswith("top-1 12.50% (9.00% if UNK competes), perplexity 80.2,")


ROW = {"accuracy_top1_smoothed": 0.125, "perplexity": 80.25, "epsilon": 1.5}


def logged(monkeypatch, cohorts, *, users_per_second=10.0, every=2):
    """The log of a training whose rounds take as long as their cohorts are large."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    err, row, rounds = io.StringIO(), {"round": 0} | ROW, len(cohorts)
    with contextlib.redirect_stderr(err), Display() as display:
        for round, cohort in enumerate(cohorts):
            display.observe(TrainingProgress(round, rounds, 0, 0, row))
            for users in range(1, cohort + 1):
                now += 1 / users_per_second
                display.observe(TrainingProgress(round, rounds, users, cohort, row))
            if (round + 1) % every == 0:
                row = {"round": round + 1} | ROW
        display.observe(TrainingProgress(rounds, rounds, 0, 0, row))
    return err.getvalue().splitlines()


@pytest.mark.parametrize("forced", [False, True], ids=["a file", "a file with FORCE_COLOR"])
def test_a_log_tells_rounds_and_nothing_of_their_users(monkeypatch, forced):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    lines = logged(monkeypatch, [90, 110, 100, 105, 95, 100])
    # Before the first round, after every other one, and as a round takes ten seconds here, after
    # each: but not before a rate is the mean of three rounds.
    assert [line.split()[1] for line in lines] == ["0", "2", "3", "4", "5", "6"]
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


def test_what_is_told_within_a_round_does_not_move_the_time_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = _LegPace("round")
    assert str(pace) == ""
    for seconds, round in ((0, 0), (3, 0), (10, 1)):
        now = float(seconds)
        pace.note(round, 7)
    told = str(pace)
    assert told == "6 rounds/min, about 0:01:00 left"
    now = 17.0
    pace.note(1, 7)
    assert str(pace) == told


def test_the_rate_is_told_in_two_digits(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = _LegPace("round")
    pace.note(0, 1000)
    now = 1.2345
    pace.note(1, 1000)
    assert str(pace) == "49 rounds/min, about 0:20:00 left"


def test_a_log_has_a_line_every_few_seconds_between_evaluations(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = logged(monkeypatch, [20] * 40, every=1000)  # two seconds a round
    rounds = [int(line.split()[1]) for line in lines]
    assert rounds == [0, 3, 8, 13, 18, 23, 28, 33, 38]
    assert lines[1] == "round 3 of 40: 30 rounds/min, about 0:01:14 left"


def test_any_work_tells_a_log_how_far_it_is(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    err = io.StringIO()
    with contextlib.redirect_stderr(err), bar("measuring") as show:
        for done in range(50):
            show("measuring", done, 50, f"{done} texts")
            now += 1.0
    assert err.getvalue().splitlines() == [
        "measuring: 20%, 10 texts, about 0:00:40 left",
        "measuring: 40%, 20 texts, about 0:00:30 left",
        "measuring: 60%, 30 texts, about 0:00:20 left",
        "measuring: 80%, 40 texts, about 0:00:10 left",
    ]


def test_a_log_tells_how_long_preparing_takes(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    err = io.StringIO()
    with contextlib.redirect_stderr(err), Display() as display:
        for done in range(25):
            display.tell("tokenizing", done, 100)
            now += 1.0
    assert err.getvalue().splitlines() == [
        "tokenizing",
        "tokenizing: 10%, about 0:01:30 left",
        "tokenizing: 20%, about 0:01:20 left",
    ]


def trained(source, run, err, **options):
    with contextlib.redirect_stderr(err):
        return train(experiment(source, rounds=2), run, **options)


def test_python_shows_progress_where_somebody_looks_on(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    silent, asked, terminal, told = io.StringIO(), io.StringIO(), Terminal(), []
    trained(folder, tmp_path / "silent", silent)
    assert silent.getvalue() == ""
    trained(folder, tmp_path / "asked", asked, progress=True, observer=told.append)
    assert "round 2 of 2: top-1 " in asked.getvalue()
    assert told[-1].leg == 2  # an observer of one's own is told as well
    trained(folder, tmp_path / "terminal", terminal)
    assert "training" in terminal.getvalue()


def test_python_shows_nothing_on_a_terminal_if_told_so_or_watched_otherwise(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("TERM", "xterm")
    for name, options in {
        "off": {"progress": False},
        "observed": {"observer": lambda now: None},
        "announced": {"announce": lambda what, done, of: None},
    }.items():
        terminal = Terminal()
        trained(folder, tmp_path / name, terminal, **options)
        assert terminal.getvalue() == "", name


def test_a_resumed_run_is_counted_in_its_own_legs(folder, tmp_path):
    run, err = tmp_path / "run", io.StringIO()
    session = create(experiment(folder, rounds=2), run)
    step(session)
    session.close()
    with contextlib.redirect_stderr(err):
        train(None, run, resume=True, progress=True)
    assert "round 2 of 2" in err.getvalue()
    with pytest.raises(ValueError, match="there is no run"):
        train(None, tmp_path / "nothing", resume=True, progress=True)


def test_a_run_is_one_short_line(folder, tmp_path):
    run = tmp_path / "run"
    session = create(experiment(folder, rounds=2), run)
    step(session)
    session.close()
    assert repr(Run.open(run)).startswith(f"<LanguageRun {run}: round 1 of 2, not finished")
    finished = train(None, run, resume=True)
    pattern = rf"<LanguageRun {re.escape(str(run))}: round 2 of 2, finished; top-1 accuracy"
    assert re.fullmatch(pattern + r" [\d.]+%, perplexity [\d.,]+>", repr(finished))
    assert str(finished) == repr(finished)
