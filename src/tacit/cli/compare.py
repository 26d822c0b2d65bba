"""`tacit compare`: several runs in one table, and their held-out curves in one picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tacit.cli.options import AsJson
from tacit.cli.output import emit, epsilon, percent, perplexity, table
from tacit.privacy.claims import format_delta

if TYPE_CHECKING:
    from tacit.runs.run import Run

EXAMPLES = """
Examples:

`tacit compare runs/fedavg runs/private --plot curves.png`

`tacit compare runs/clipping`
"""

_ONE_TABLE = 120  # columns of a terminal in which everything fits side by side
# What runs of a task reached: the figures that are compared, and others for scripts.
_COMPARED = {
    "language": ("accuracy_top1", "perplexity"),
    "nlu": ("semantic_error_rate", "intent_accuracy", "slot_f1"),
}
_ALSO = {"language": ("accuracy_top3", "accuracy_top5", "tokens"), "nlu": ("utterances",)}


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
        Path | None,
        typer.Option(metavar="FILE", help="Draw the held-out curves: .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What several runs reached, what it cost, and how they differ from the first one."""
    from tacit.cli import figures
    from tacit.runs.run import Run

    if plot is not None:
        figures.check_target(plot)
    opened = [Run.open(path) for path in _run_paths(runs)]
    task = opened[0].experiment.task
    for run in opened:
        if run.experiment.task != task:
            raise ValueError(
                f"{run.path} is of the task {run.experiment.task} and {opened[0].path} of {task}:"
                " runs of one task are compared"
            )
    names = _names(opened)
    rows = [_as_row(run, name) for run, name in zip(opened, names, strict=True)]
    for row in rows:
        row["difference"] = {
            key: None if row[key] is None or rows[0][key] is None else row[key] - rows[0][key]
            for key in _COMPARED[task]
        }
    if plot is not None:
        metrics = (run.metrics() for run in opened)
        figures.compared_runs(plot, dict(zip(names, metrics, strict=True)), task)
    notes = _notes(rows)
    emit(
        {"runs": rows, "notes": notes}, as_json, lambda console: _print(console, rows, notes, task)
    )


def _as_row(run: Run, name: str) -> dict[str, Any]:
    """One run under the names that scripts rely on; an infinite epsilon or clip norm is null."""
    from tacit.privacy.guarantee import finite

    experiment, guarantee = run.experiment, run.guarantee()
    result = run.directory.result() or run.summary("not complete")
    reached = result.get("test", result)  # of an intent and slot model: on test
    header = guarantee.header
    return {
        "name": name,
        "run": str(run.path),
        "complete": run.is_complete,
        f"{experiment.leg_name}s": run.leg,
        **{key: reached.get(key) for key in _COMPARED[experiment.task] + _ALSO[experiment.task]},
        "epsilon": finite(guarantee.value),
        "delta": guarantee.delta,
        "accountant": guarantee.accountant,
        "unit": header.unit,
        "adjacency": header.adjacency.value if header.adjacency is not None else None,
        "model": experiment.model.name,
        "private": finite(guarantee.value) is not None,
        "simulation": header.simulation,
        "synthetic_users": not header.about_people,
        "corpus": header.data,
        **_settings(run),
        "claim": guarantee.claim,
    }


def _settings(run: Run) -> dict[str, Any]:
    """What runs of a task may differ in."""
    from tacit.privacy.guarantee import finite
    from tacit.runs.run import LanguageRun

    if not isinstance(run, LanguageRun):
        training, noise = run.experiment.training, run.experiment.noise  # type: ignore[union-attr]
        return {
            "method": training.method,
            "batch_size": training.batch_size,
            "clip_norms": [noise.clip_norm],
            "noise_multipliers": [noise.noise_multiplier],
            "view": run.experiment.source,
            "tokenizer": None,
            "test_tokens": None,
        }
    plans = run.plans()
    return {
        "clip_norms": [finite(plan.initial_clip_state().total_norm) for plan in plans],
        "noise_multipliers": [plan.noise_multiplier for plan in plans],
        "cohorts": [plan.expected_cohort for plan in plans],
        "view": run.experiment.corpus.view,
        "tokenizer": run.tokenizer.fingerprint,
        "test_tokens": run.experiment.evaluation.max_tokens,
    }


def _run_paths(paths: Sequence[Path]) -> list[Path]:
    """Run directories; one that holds runs stands for all of them."""
    from tacit.cli.requests import runs_in

    expanded: list[Path] = []
    for path in paths:
        inside = [] if (path / "experiment.toml").is_file() else runs_in(path)
        expanded += inside or [path]
    twice = next((path for path in expanded if expanded.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"the run {twice} is named twice")
    return expanded


def _names(runs: Sequence[Run]) -> list[str]:
    """The last part of each path, or the whole of it where that is not enough."""
    short = [run.path.resolve().name for run in runs]
    unique = len(set(short)) == len(short)
    return short if unique else [str(run.path) for run in runs]


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
        ("synthetic_users", True, "With synthetic users, so that epsilon is not about people"),
    ):
        marked = [row["name"] for row in rows if row[key] is value]
        if marked:
            some = marked if len(marked) < 5 else [*marked[:3], f"{len(marked) - 3} more"]
            notes.append(f"{what}: {', '.join(some)}.")
    return notes


def _differ(rows: Sequence[dict[str, Any]], *keys: str) -> bool:
    return len({tuple(row[key] for key in keys) for row in rows}) > 1


_Columns = Mapping[str, Callable[[dict[str, Any]], str]]
_FIGURES: dict[str, _Columns] = {
    "language": {
        "rounds": lambda row: f"{row['rounds']:,}",
        "top-1": lambda row: percent(row["accuracy_top1"]),
        "+/- points": lambda row: _signed(row["difference"]["accuracy_top1"], 100, 2),
        "perplexity": lambda row: perplexity(row["perplexity"]),
        "+/-": lambda row: _signed(row["difference"]["perplexity"], 1, 1),
    },
    "nlu": {
        "epochs": lambda row: f"{row['epochs']:,}",
        "SER": lambda row: percent(row["semantic_error_rate"]),
        "+/- points": lambda row: _signed(row["difference"]["semantic_error_rate"], 100, 2),
        "intents": lambda row: percent(row["intent_accuracy"]),
        "slot F1": lambda row: percent(row["slot_f1"]),
    },
}
_UNITS = {"language": "points of accuracy and in perplexity", "nlu": "points"}
_COST: _Columns = {
    "epsilon": lambda row: epsilon(row["epsilon"]),
    "delta": lambda row: format_delta(row["delta"]),
}
_SETTINGS: _Columns = {
    "model": lambda row: str(row["model"]),
    "S": lambda row: _then(row["clip_norms"]),
    "z": lambda row: _then(row["noise_multipliers"]),
    "cohort": lambda row: _then(row.get("cohorts") or [row.get("batch_size")]),
    "private": lambda row: "yes" if row["private"] else "no",
    "mark": lambda row: "simulation" if row["simulation"] else "",
}


def _print(
    console: Console, rows: Sequence[dict[str, Any]], notes: Sequence[str], task: str
) -> None:
    """One table where everything fits side by side, else two."""
    figures = {**_FIGURES[task], **_COST}
    fits = console.width >= _ONE_TABLE
    for columns in [{**figures, **_SETTINGS}] if fits else [figures, _SETTINGS]:
        cells = [[row["name"], *(cell(row) for cell in columns.values())] for row in rows]
        headings = (f">{heading}" for heading in columns)
        console.print(table("run", *headings, rows=cells, compact=True))
    units = " and ".join(sorted({f"{row['unit']}-level" for row in rows}))
    console.print(
        f"+/-: to {rows[0]['name']}, in {_UNITS[task]}.  Epsilon is {units}, under the adjacency of"
        " each run's claim: tacit ledger RUN prints it."
    )
    for note in notes:
        console.print(note)


def _signed(value: float | None, scale: float, decimals: int) -> str:
    if value is None:
        return "-"
    text = f"{scale * value:+,.{decimals}f}" if abs(value) < 1e6 else f"{scale * value:+.1e}"
    return text if value else ""


def _then(values: Sequence[float | None]) -> str:
    """The value of each phase, once where they are the same."""
    shown = ["none" if value is None else f"{value:,.4g}" for value in values]
    return ", then ".join(dict.fromkeys(shown))
