"""The charts of a page as data: what is drawn, on which axes, and a description for screen readers.

`charts.html` draws them as SVG, with every text escaped by the template engine, since some of it
comes from a corpus.  No plotting library does it, because `tacit verify` draws a report again and
compares it byte for byte: what the library of another machine draws would differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.privacy.claims import format_delta

Facts = Mapping[str, Any]  # a section of report.json
Curves = Mapping[str, Sequence[tuple[float, float]]]  # points by the name of a curve

_MOST_BARS = 12  # of a histogram
_MOST_MARKERS = 150  # on a curve: more would hide it
_COLUMNS = {"rounds": "round", "epochs": "epoch", "epsilon so far": "epsilon"}  # of the metrics


@dataclass(frozen=True)
class _Axis:
    """A scale from `low` to `high`, linear or logarithmic, and where its values are drawn.

    The data of a chart lies between 52 and 348 units across, and between 200 (at the bottom) and 24
    (at the top) units down; `charts.html` draws the axes around it.
    """

    label: str
    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, is_log: bool = False) -> _Axis:
        """An axis that holds the values: from 0 on, or on a logarithmic scale of positive ones."""
        low, high = min(values), max(values)
        if is_log:
            margin = 1.05 if high > low else 2.0
            return cls(label, low / margin, high * margin, is_log=True)
        return cls(label, 0.0, 1.05 * high if high > 0 else 1.0)

    def share(self, value: float) -> float:
        """Where a value stands: 0 at the low end of the axis, 1 at the high one."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def across(self, value: float) -> float:
        """The x coordinate of a value, if this is the horizontal axis of a chart."""
        return 52 + 296 * self.share(value)

    def up(self, value: float) -> float:
        """The y coordinate of a value, if this is the vertical axis of a chart."""
        return 200 - 176 * self.share(value)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values on the axis, about as many as asked for."""
        if self.is_log:
            return self._log_ticks(about)
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self, about: int) -> list[float]:
        """Powers of ten, or 1, 2 and 5 times them; on a narrow axis the ticks of a linear one."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for sizes in ((1,), (1, 2, 5)):
            ticks = [size * 10.0**power for power in powers for size in sizes]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) >= 3:
                return ticks[:: math.ceil(len(ticks) / (about + 1))]
        return [tick for tick in _Axis("", self.low, self.high).ticks(2 * about) if tick > 0]


def short(value: float) -> str:
    """A number in few letters, such as 1,234 or 2e6."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.6g}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}")


def _line_chart(
    title: str, about: str, x: _Axis, y: _Axis, curves: Curves, *, has_markers: bool = True
) -> Facts:
    """Named curves over two axes; `about` describes the chart to those who do not see it."""
    data = {"x": x, "y": y, "curves": curves, "has_markers": has_markers}
    return _chart("lines", title, about, 243 + 17 * len(curves), data)


def fitted_chart(
    title: str, up: str, across: str, curves: Curves, *, is_log: bool = False
) -> Facts | None:
    """Curves over what was done or spent, on axes that fit; None if no curve has a point.

    `up` and `across` label the axes.  With `is_log` the vertical one is logarithmic, unless a value
    is 0.
    """
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    xs, ys = zip(*(point for points in curves.values() for point in points), strict=True)
    ends = "; ".join(
        f"{name} from {short(points[0][1])} to {short(points[-1][1])}"
        for name, points in curves.items()
    )
    y_axis = _Axis.over(up, ys, is_log=is_log and min(ys) > 0)
    has_markers = max(map(len, curves.values())) <= _MOST_MARKERS
    about, x_axis = f"{up} over {across}, {ends}", _Axis.over(across, xs)
    return _line_chart(title, about, x_axis, y_axis, curves, has_markers=has_markers)


def shares_chart(
    title: str, up: str, across: str, rows: Sequence[Facts], columns: Mapping[str, str]
) -> Facts | None:
    """Columns of the run's metrics in percent, over its rounds, its epochs or its epsilon.

    `columns` names the curve of each column, and `across` is the label of the horizontal axis.
    """
    over = _COLUMNS[across]
    curves = {
        name: [(row[over], 100 * row[key]) for row in rows if row[key] is not None]
        for key, name in columns.items()
    }
    return fitted_chart(title, up, across, curves)


def epsilon_chart(facts: Facts | None) -> Facts | None:
    """Epsilon as the releases were made, by each accountant; None if there is nothing to draw.

    `facts` is what `report.claim.epsilon_over_releases` returns.
    """
    if facts is None:
        return None
    curves = {}
    for curve in facts["curves"]:
        name, title = curve["accountant"], curve["title"]
        points = zip(facts["after"], curve["epsilon"], strict=True)
        known = [(after, epsilon) for after, epsilon in points if epsilon is not None]
        curves[title if title.startswith(name) else f"{name}: {title}"] = known
    up = f"epsilon at delta {format_delta(facts['delta'])}"
    return fitted_chart("Epsilon over the training", up, facts["counted"], curves)


def roc_chart(title: str, attacks: Sequence[Facts]) -> Facts | None:
    """ROC curves on logarithmic axes, which show how many are found when few may be wronged.

    Points with a rate of 0 have no place on such axes and are left out; None if none are left.
    """
    curves = {
        attack["name"]: [(fpr, tpr) for fpr, tpr in attack["roc"] if fpr > 0 and tpr > 0]
        for attack in attacks
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    low = min(0.1, *(min(point) for points in curves.values() for point in points))
    curves["chance"] = [(low, low), (1.0, 1.0)]
    about = "; ".join(f"{attack['name']} with an AUC of {attack['auc']:.3f}" for attack in attacks)
    x = _Axis("non-members taken for members (FPR)", low, 1.0, is_log=True)
    y = _Axis("members found (TPR)", low, 1.0, is_log=True)
    return _line_chart(title, about, x, y, curves, has_markers=False)


def histogram(
    title: str, labels: tuple[str, str], unit: str, stacks: Mapping[str, Sequence[float]]
) -> Facts | None:
    """How often values fall between whole numbers, one named part of each bar on the other.

    `labels` are those of the horizontal and the vertical axis, and `unit` is that of the values.
    None if there is no value.
    """
    values = [value for stack in stacks.values() for value in stack]
    if not values:
        return None
    most = max(1.0, *values)
    step = math.ceil(most / _MOST_BARS)
    edges = [step * index for index in range(math.floor(most / step) + 2)]
    counts = np.array([np.histogram(np.maximum(each, 0), edges)[0] for each in stacks.values()])
    tops = counts.cumsum(axis=0)
    bars = [
        {
            "stack": stack,
            "low": edges[index],
            "high": edges[index + 1],
            "bottom": tops[stack, index] - counts[stack, index],
            "top": tops[stack, index],
        }
        for stack, index in np.argwhere(counts).tolist()
    ]
    about = ", ".join(
        f"{total} from {short(low)} to {short(high)} {unit}"
        for total, low, high in zip(tops[-1], edges, edges[1:], strict=False)
        if total
    )
    x, y = _Axis(labels[0], 0.0, edges[-1]), _Axis(labels[1], 0.0, max(5.0, *tops[-1].tolist()))
    data = {"x": x, "y": y, "bars": bars, "names": list(stacks)}
    return _chart("bars", title, about, 243 + 17 * len(stacks), data)


def level_chart(title: str, levels: Sequence[tuple[str, float, str]]) -> Facts:
    """Named values as bars from 0 to the right: name, value, and the value in words."""
    about = "; ".join(f"{name} {words}" for name, _, words in levels)
    data = {"levels": levels, "most": max(1e-9, *(value for _, value, _ in levels))}
    return _chart("levels", title, about, 8 + 34 * len(levels), data)


def heat_map(
    title: str, labels: tuple[str, str], cells: Sequence[tuple[float, float, float, str]]
) -> Facts:
    """A cell for each column and row: their values, a share from 0 to 1, and its text.

    `labels` are those of the columns and of the rows.
    """
    columns, rows = (sorted({cell[index] for cell in cells}) for index in (0, 1))
    about = "; ".join(
        f"{words} with {short(column)} {labels[0]} and {labels[1]} {short(row)}"
        for column, row, _, words in cells
    )
    data = {"labels": labels, "columns": columns, "rows": rows, "cells": cells}
    return _chart("heat", title, about, 42 + 38 * len(rows), data)


def matrix_chart(title: str, labels: tuple[str, str], rows: Sequence[Sequence[float]]) -> Facts:
    """A lower triangle of numbers from -1 to 1, as a square of shades; `labels` across and down."""
    filled = [
        (row, column, value)
        for row, values in enumerate(rows)
        for column, value in enumerate(values)
        if value
    ]
    about = f"{len(rows)} rows; the last one is {', '.join(short(value) for value in rows[-1])}"
    data = {"labels": labels, "size": len(rows), "cells": filled}
    return _chart("matrix", title, about, 340, data)


def rounded(value: float) -> float:
    """A figure for a picture, in four digits: the same on every machine."""
    return float(f"{value:.4g}")


def _chart(kind: str, title: str, about: str, height: int, data: Facts) -> Facts:
    """A chart of a kind that `charts.html` draws; its height includes that of the legend."""
    return {"kind": kind, "title": title, "about": about, "height": height, **data}
