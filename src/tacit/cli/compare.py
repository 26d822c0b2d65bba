"""`tacit compare`: several runs in one table, and their held-out curves in one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli.options import AsJson, argument, text
from tacit.cli.output import emit, epsilon, table
from tacit.privacy.claims import format_delta
from tacit.runs.figures import FIGURES, UNK_COMPETES, Figure, percent

if TYPE_CHECKING:
    from tacit.runs.run import Run


_ONE_TABLE = 120  # columns of a terminal in which everything fits side by side


def compare(
    runs: list[Path] = argument(..., "RUN...", "Run directories, or directories of them."),
    plot: Path | None = text(None, "FILE", "Draw the held-out curves: .png, .svg or .pdf."),
    as_json: AsJson = False,
) -> None:
    """What several runs reached, what it cost, and how they differ from the first one.

    Examples:

    `tacit compare runs/fedavg runs/private --plot curves.png`

    `tacit compare runs/clipping`
    """
    from tacit.cli import plots
    from tacit.runs.run import Run

    if plot is not None:
        plots.check_target(plot)
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
            for key in (figure.key for figure in FIGURES[task] if figure.compared)
        }
    if plot is not None:
        metrics = (run.metrics() for run in opened)
        plots.draw_runs(plot, dict(zip(names, metrics, strict=True)), task)
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
        **{figure.key: reached.get(figure.key) for figure in FIGURES[experiment.task]},
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
    plans = run.plans_to_read()
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
    from tacit.cli.requests import run_paths

    expanded = [run for path in paths for run in run_paths(path) or [path]]
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


_Column = tuple[str, Callable[[dict[str, Any]], str]]  # a heading, and the cell of a run
_SETTINGS: list[_Column] = [
    (
        f"top-1 {UNK_COMPETES}",
        lambda row: percent(row.get("accuracy_top1_unk_competes")),
    ),  # to hold against a paper's figure
    (
        "unknown",
        lambda row: percent(row.get("unknown_rate")),
    ),  # without it a perplexity says little
    ("model", lambda row: str(row["model"])),
    ("S", lambda row: _then(row["clip_norms"])),
    ("z", lambda row: _then(row["noise_multipliers"])),
    ("cohort", lambda row: _then(row.get("cohorts") or [row.get("batch_size")])),
    ("mark", lambda row: "simulation" if row["simulation"] else ""),
]


def _print(
    console: Console, rows: Sequence[dict[str, Any]], notes: Sequence[str], task: str
) -> None:
    """One table where everything fits side by side, else two."""
    leg = "epochs" if task == "nlu" else "rounds"
    figures: list[_Column] = [(leg, lambda row: f"{row[leg]:,}")]
    for figure in FIGURES[task]:
        if figure.compared:
            figures += _with_difference(figure)
    figures += [
        ("epsilon", lambda row: epsilon(row["epsilon"])),
        ("delta", lambda row: format_delta(row["delta"])),
    ]
    fits = console.width >= _ONE_TABLE
    for columns in [[*figures, *_SETTINGS]] if fits else [figures, _SETTINGS]:
        cells = [[row["name"], *(cell(row) for _, cell in columns)] for row in rows]
        headings = (f">{heading}" for heading, _ in columns)
        console.print(table("run", *headings, rows=cells, compact=True))
    units = " and ".join(sorted({f"{row['unit']}-level" for row in rows}))
    console.print(
        f"+/-: to {rows[0]['name']}, of shares in percentage points.  Epsilon is {units}, under the"
        " adjacency of each run's claim: tacit ledger RUN prints it."
    )
    for note in notes:
        console.print(note)


def _with_difference(figure: Figure) -> list[_Column]:
    """The column of a figure, and that of its difference to the first run."""
    scale, decimals = (100, 2) if figure.show is percent else (1, 1)
    return [
        (figure.heading, lambda row: figure.show(row[figure.key])),
        ("+/-", lambda row: _signed(row["difference"][figure.key], scale, decimals)),
    ]


def _signed(value: float | None, scale: float, decimals: int) -> str:
    """A difference with its sign: empty if there is none, a dash if nothing was measured."""
    if value is None:
        return "-"
    text = f"{scale * value:+,.{decimals}f}" if abs(value) < 1e6 else f"{scale * value:+.1e}"
    return text if value else ""


def _then(values: Sequence[float | None]) -> str:
    """The value of each phase, once where they are the same."""
    shown = ["none" if value is None else f"{value:,.4g}" for value in values]
    return ", then ".join(dict.fromkeys(shown))
