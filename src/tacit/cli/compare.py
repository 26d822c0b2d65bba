"""`tacit compare`: several runs in one table, and their held-out curves in one picture."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson
from tacit.cli.output import percent, perplexity
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.runs.run import LanguageRun

EXAMPLES = """
Examples:

`tacit compare runs/fedavg runs/private --plot curves.png`

`tacit compare runs/clipping`
"""

ONE_TABLE = 120  # columns of a terminal in which everything fits side by side


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run directories, or directories that hold several.",
            show_default=False,
        ),
    ],
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw the held-out curves: .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What several runs reached, what it cost, and how they differ from the first one."""
    from tacit.cli import figures
    from tacit.runs.run import LanguageRun

    if plot is not None:
        figures.check_target(plot)
    found = [LanguageRun.open(path) for path in _expanded(runs)]
    rows = [as_row(run, name) for run, name in zip(found, _names(found), strict=True)]
    for row in rows:
        row["difference"] = _difference(row, rows[0])
    notes = _notes(rows)
    if plot is not None:
        curves = {row["name"]: run.metrics() for row, run in zip(rows, found, strict=True)}
        figures.compared_runs(plot, curves)
    if as_json:
        for row in rows:
            row["epsilon"] = _finite(row["epsilon"])
        json.dump({"runs": rows, "notes": notes}, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(rows, notes)


def as_row(run: LanguageRun, name: str) -> dict[str, Any]:
    """One run under the names that scripts rely on."""
    reached = run.directory.result() or run.summary("not complete")
    plans, found = run.plans(), run.guarantee()
    header = found.header
    clip_norms = [plan.initial_clip_state().total_norm for plan in plans]
    return {
        "name": name,
        "run": str(run.path),
        "complete": run.is_complete,
        "rounds": run.round,
        **{key: reached.get(key) for key in ("accuracy_top1", "accuracy_top3", "accuracy_top5")},
        "perplexity": reached.get("perplexity"),
        "tokens": reached.get("tokens"),
        "epsilon": found.value,
        "delta": found.delta,
        "accountant": found.accountant,
        "adjacency": header.adjacency.value if header.adjacency is not None else None,
        "model": run.experiment.model.name,
        "clip_norms": [_finite(norm) for norm in clip_norms],
        "noise_multipliers": [plan.noise_multiplier for plan in plans],
        "cohorts": [plan.expected_cohort for plan in plans],
        "private": math.isfinite(found.value),
        "simulation": header.simulation,
        "synthetic_users": not header.about_people,
        "corpus": header.data,
        "view": run.experiment.corpus.view,
        "tokenizer": run.tokenizer.fingerprint,
        "test_tokens": run.experiment.evaluation.max_tokens,
        "claim": found.claim,
    }


def _expanded(paths: Sequence[Path]) -> list[Path]:
    """Run directories; one that holds runs stands for all of them."""
    from tacit.cli.requested import runs_in

    found: list[Path] = []
    for path in paths:
        inside = [] if (path / "experiment.toml").is_file() else runs_in(path)
        found += inside or [path]
    twice = next((path for path in found if found.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"the run {twice} is named twice")
    return found


def _names(runs: Sequence[LanguageRun]) -> list[str]:
    """The last part of each path, or the whole of it where that is not enough."""
    short = [run.path.resolve().name for run in runs]
    unique = len(set(short)) == len(short)
    return short if unique else [str(run.path) for run in runs]


def _difference(row: dict[str, Any], first: dict[str, Any]) -> dict[str, float | None]:
    """This run's figures minus the first one's."""

    def minus(key: str) -> float | None:
        ours, theirs = row[key], first[key]
        return None if ours is None or theirs is None else ours - theirs

    return {key: minus(key) for key in ("accuracy_top1", "perplexity")}


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why some of the figures may not be held against each other."""
    notes = []
    for keys, what in (
        (("corpus", "view"), "on different corpora"),
        (("tokenizer",), "with different tokenizers"),
        (("test_tokens",), "measured on different parts of the test users' text"),
    ):
        if _differ(rows, *keys):
            notes.append(f"These runs are {what}: accuracy and perplexity do not compare.")
    if _differ(rows, "tokenizer"):
        notes.append("Figures per word do: tacit papers tokenizers.")
    for key, what in (("delta", "deltas"), ("adjacency", "adjacencies")):
        private = [row for row in rows if row["private"]]
        if _differ(private, key):
            notes.append(f"The epsilons are stated under different {what}: they do not compare.")
    for key, value, what in (
        ("complete", False, "Not complete, so that the figures are those of the last evaluation"),
        ("simulation", True, "Simulations, not for release, since their noise follows from a seed"),
        (
            "synthetic_users",
            True,
            "With synthetic users, so that epsilon says nothing about people",
        ),
    ):
        if marked := [row["name"] for row in rows if row[key] is value]:
            notes.append(f"{what}: {_listed(marked)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    shown = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    return ", ".join(shown)


def _differ(rows: Sequence[dict[str, Any]], *keys: str) -> bool:
    return len({tuple(row[key] for key in keys) for row in rows}) > 1


Column = tuple[str, Callable[[dict[str, Any]], str]]

FIGURES: tuple[Column, ...] = (
    ("rounds", lambda row: f"{row['rounds']:,}"),
    ("top-1", lambda row: percent(row["accuracy_top1"])),
    ("+/-", lambda row: _signed(row["difference"]["accuracy_top1"], 100, 2)),
    ("perplexity", lambda row: perplexity(row["perplexity"])),
    ("+/-", lambda row: _signed(row["difference"]["perplexity"], 1, 1)),
    ("epsilon", lambda row: format_epsilon(row["epsilon"])),
    ("delta", lambda row: format_delta(row["delta"])),
)
SETTINGS: tuple[Column, ...] = (
    ("model", lambda row: row["model"]),
    ("S", lambda row: _then(row["clip_norms"])),
    ("z", lambda row: _then(row["noise_multipliers"])),
    ("cohort", lambda row: _then(row["cohorts"])),
    ("private", lambda row: "yes" if row["private"] else "no"),
    ("mark", lambda row: "simulation" if row["simulation"] else ""),
)


def _print(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    console = Console(highlight=False)
    groups = [FIGURES + SETTINGS] if console.width >= ONE_TABLE else [FIGURES, SETTINGS]
    for columns in groups:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("run", overflow="fold")
        for header, _ in columns:
            table.add_column(header, justify="right")
        for row in rows:
            table.add_row(row["name"], *(cell(row) for _, cell in columns))
        console.print(table)
    console.print(
        f"+/-: to {rows[0]['name']}, in points of accuracy and in perplexity.  Epsilon is"
        " user-level, under the adjacency of each run's claim: tacit ledger RUN prints it.",
        markup=False,
    )
    for note in notes:
        console.print(note, markup=False)


def _signed(value: float | None, scale: float, places: int) -> str:
    if value is None:
        return "-"
    text = f"{scale * value:+,.{places}f}" if abs(value) < 1e6 else f"{scale * value:+.1e}"
    return text if value else ""


def _then(values: Sequence[float | None]) -> str:
    """The value of each phase, once where they are the same."""
    shown = ["none" if value is None else f"{value:,.4g}" for value in values]
    return ", then ".join(dict.fromkeys(shown))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
