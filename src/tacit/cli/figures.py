"""Plots of the command line: curves on one or more panels, as .png, .svg or .pdf files.

Every plot of a command is a list of panels, drawn by one function, so that they look alike and are
written alike: whole or not at all.  matplotlib is imported only when something is drawn, because it
takes longer to load than most commands run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.cli.progress import tracked
from tacit.privacy import durable
from tacit.privacy.accountants import sound_accountants
from tacit.privacy.events import Composition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from tacit.mechanisms.planning import Answer

FORMATS = (".png", ".svg", ".pdf")

Points = Iterable[tuple[float, float | None]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes with named curves, and level lines for what does not change along them.

    A point whose value is None or not finite is a gap in its curve.
    """

    x_label: str
    y_label: str
    curves: Mapping[str, Points]
    levels: Mapping[str, float] = field(default_factory=dict)
    title: str = ""
    log_x: bool = False
    log_y: bool = False


def check_target(path: Path) -> None:
    """Refuse a file that no plot can be written to, before anything is computed for it."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"plot file must end in {', '.join(FORMATS)}, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"plot file {str(path)!r} is in a folder that does not exist")


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure of this size in inches, which needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure; nothing half-written is left under the name that was asked for."""
    try:
        with durable.whole_file(path) as file:
            figure.savefig(file, format=path.suffix.removeprefix("."), dpi=150)
    except OSError as error:
        raise ValueError(f"plot file {str(path)!r} cannot be written: {error.strerror}") from error


def draw(path: Path, *panels: Panel) -> None:
    """Draw panels side by side into one file; the legend of the first one is that of all."""
    figure = new_figure(6.4 if len(panels) == 1 else 4.3 * len(panels))
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _fill(axes, panel)
    all_axes[0].legend(fontsize="small")
    save(figure, path)


def _fill(axes: Axes, panel: Panel) -> None:
    for number, (name, curve) in enumerate(panel.curves.items()):
        points = [(x, math.nan if y is None or not math.isfinite(y) else y) for x, y in curve]
        style: dict[str, Any] = {"color": f"C{number % 10}", "marker": "."}
        style["linestyle"] = ("-", "--", ":")[number // 10 % 3]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)
    styles = ("--", ":", "-.")
    for number, (name, value) in enumerate(panel.levels.items()):
        axes.axhline(value, color="0.3", linestyle=styles[number % 3], label=name)
    if panel.log_x and axes.lines:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis, axes.get_xlim())
    if panel.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis, axes.get_ylim())
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title)
    axes.grid(True, which="both", alpha=0.25)


def _plain_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Write numbers rather than powers; between the decades too where an axis is narrow.

    On a narrow logarithmic axis there may be no power of ten to read a value off.
    """
    low, high = limits
    axis.set_major_formatter(lambda value, _: f"{value:,.9g}")
    axis.set_minor_formatter("" if high > 50 * low else lambda value, _: f"{value:,.3g}")


def epsilon_over_rounds(answer: Answer, path: Path, points: int = 24) -> None:
    """Epsilon against rounds, on log axes, by every accountant that is sound for the plan."""
    plan, event, delta = answer.plan, answer.plan.event(), answer.delta
    accountants, _ = sound_accountants(Composition.of([event]))
    rounds = sorted({round(float(x)) for x in np.geomspace(1, answer.rounds, points)})
    curves: dict[str, list[tuple[float, float]]] = {each.title: [] for each in accountants}
    steps = [(accountant, count) for accountant in accountants for count in rounds]
    for accountant, count in tracked(steps, "epsilon over rounds"):
        epsilon = accountant.epsilon(Composition.of([(event, count)]), delta)
        curves[accountant.title].append((count, epsilon))
    title = (
        f"{plan.expected_cohort:,.6g} {plan.unit}s a round of {plan.population:,},"
        f" z = {plan.noise_multiplier:.4g}"
    )
    label = f"epsilon at delta = {delta:g}"
    draw(path, Panel("rounds", label, curves, title=title, log_x=True, log_y=True))


def epsilon_over_releases(path: Path, facts: Mapping[str, Any], budget: float | None) -> None:
    """Epsilon as releases were charged, from 0 on: `report.claim.epsilon_over_releases`."""
    curves = {
        curve["title"]: [(0, 0.0), *zip(facts["after"], curve["epsilon"], strict=True)]
        for curve in facts["curves"]
    }
    levels = {} if budget is None else {"budget": budget}
    label = f"epsilon at delta = {facts['delta']:g}"
    draw(path, Panel(facts["counted"], label, curves, levels))


def compared_runs(
    path: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], task: str = "language"
) -> None:
    """Held-out metrics of runs by name: over legs, and over epsilon where that is finite."""

    def curves(x: str, y: str, scale: float = 1.0) -> dict[str, list[tuple[float, float | None]]]:
        return {
            name: [
                (row[x], None if row[y] is None else scale * row[y])
                for row in rows
                if x in ("round", "epoch") or row[x]
            ]
            for name, rows in runs.items()
        }

    if task == "nlu":
        panels = {"semantic error rate": "semantic_error_rate", "slot F1": "slot_f1"}
        draw(
            path,
            *(
                Panel("epochs", f"{title} in %", curves("epoch", y, 100))
                for title, y in panels.items()
            ),
        )
        return
    smoothed, accuracy = "accuracy_top1_smoothed", "top-1 accuracy in %, smoothed"
    draw(
        path,
        Panel("rounds", accuracy, curves("round", smoothed, 100)),
        Panel("rounds", "perplexity", curves("round", "perplexity"), log_y=True),
        Panel("epsilon so far", accuracy, curves("epsilon", smoothed, 100), log_x=True),
    )


def perplexity_curve(
    path: Path,
    tokens: Sequence[int],
    train: Sequence[float],
    held_out: Sequence[float],
    baselines: Mapping[str, float],
    title: str,
) -> None:
    """Perplexity of a pre-training over its tokens; baselines are level lines."""
    millions = [count / 1e6 for count in tokens]
    curves = {
        "training text": zip(millions, train, strict=True),
        "held-out text (a sample)": zip(millions, held_out, strict=True),
    }
    levels = {f"{name}: {value:,.0f}": value for name, value in baselines.items()}
    draw(path, Panel("million tokens trained on", "perplexity", curves, levels, title, log_y=True))
