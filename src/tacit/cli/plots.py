"""Plots of the command line: curves on one or more panels, as .png, .svg or .pdf files.

Every plot of a command is a list of panels, drawn by one function, so that they look alike and are
written alike: whole or not at all.  matplotlib is imported only when something is drawn, because it
takes longer to load than most commands run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.privacy import durable
from tacit.privacy.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Panel:
    """One pair of axes with named curves, and level lines for what does not change along them.

    A point whose value is None or not finite is a gap in its curve.
    """

    x_label: str
    y_label: str
    curves: Mapping[str, Iterable[tuple[float, float | None]]]
    levels: Mapping[str, float] = field(default_factory=dict)
    title: str = ""
    log_x: bool = False
    log_y: bool = False


def check_target(path: Path) -> None:
    """Refuse a file that no plot can be written to, before anything is computed for it."""
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"plot file must end in {', '.join(_FORMATS)}, got {str(path)!r}")
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
    _take_as_text(figure)
    try:
        with durable.whole_file(path, mode=durable.SHARED) as file:
            figure.savefig(file, format=path.suffix.removeprefix("."), dpi=150)
    except OSError as error:
        raise ValueError(f"plot file {str(path)!r} cannot be written: {error.strerror}") from error


def _take_as_text(figure: Figure) -> None:
    """Keep names from being read as mathematics between dollars, and show all that is in them.

    Only what matplotlib itself writes along a logarithmic axis is mathematics.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(visible(text.get_text(), lines=True))
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            for label in axis.get_ticklabels(which="both"):
                label.set_parse_math(True)


def draw(path: Path, *panels: Panel) -> None:
    """Draw panels side by side into one file; the legend of the first one is that of all."""
    figure = new_figure(6.4 if len(panels) == 1 else 4.3 * len(panels))
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _fill(axes, panel)
    all_axes[0].legend(fontsize="small")
    save(figure, path)


def _fill(axes: Axes, panel: Panel) -> None:
    """Draw the curves and levels of a panel; past ten curves the line style changes."""
    styles = ("-", "--", ":")
    for number, (name, curve) in enumerate(panel.curves.items()):
        points = [(x, math.nan if y is None or not math.isfinite(y) else y) for x, y in curve]
        if points:
            style = f"C{number % 10}{styles[number // 10 % 3]}"
            axes.plot(*zip(*points, strict=True), style, marker=".", label=name)
    for number, (name, value) in enumerate(panel.levels.items(), 1):
        axes.axhline(value, color="0.3", linestyle=styles[number % 3], label=name)
    if panel.log_x and axes.lines:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis, axes.get_xlim())
    if panel.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis, axes.get_ylim())
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    axes.grid(True, which="both", alpha=0.25)


def _plain_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Write numbers rather than powers; between the decades too where an axis is narrow.

    On a narrow logarithmic axis there may be no power of ten to read a value off.
    """
    low, high = limits
    axis.set_major_formatter(lambda value, _: f"{value:,.9g}")
    axis.set_minor_formatter("" if high > 50 * low else lambda value, _: f"{value:,.3g}")


_LABELS = {
    "round": "rounds",
    "epoch": "epochs",
    "epsilon": "epsilon so far",
    "accuracy_top1_smoothed": "top-1 accuracy in %, smoothed",
    "perplexity": "perplexity",
    "semantic_error_rate": "semantic error rate in %",
    "slot_f1": "slot F1 in %",
}
_COMPARED = {
    "language": (
        ("round", "accuracy_top1_smoothed"),
        ("round", "perplexity"),
        ("epsilon", "accuracy_top1_smoothed"),
    ),
    "nlu": (("epoch", "semantic_error_rate"), ("epoch", "slot_f1")),
}


def draw_runs(
    path: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], task: str = "language"
) -> None:
    """Held-out metrics of runs by name: over legs, and over epsilon where that is finite.

    The curves of a long run are thinned as in its report.
    """
    from tacit.report.metrics import thinned

    drawn = [itemgetter(y) for y in dict.fromkeys(y for _, y in _COMPARED[task])]
    runs = {name: thinned(rows, drawn) for name, rows in runs.items()}

    def panel(x: str, y: str) -> Panel:
        scale = 1 if y == "perplexity" else 100
        curves = {
            name: [
                (row[x], None if row.get(y) is None else scale * row[y])
                for row in rows
                if x != "epsilon" or row.get(x)
            ]
            for name, rows in runs.items()
        }
        is_cost, is_perplexity = x == "epsilon", y == "perplexity"
        return Panel(_LABELS[x], _LABELS[y], curves, log_x=is_cost, log_y=is_perplexity)

    draw(path, *(panel(x, y) for x, y in _COMPARED[task]))
