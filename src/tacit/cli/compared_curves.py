"""The picture of a comparison: held-out figures of several runs, over rounds and over epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.privacy import durable

Rows = Sequence[Mapping[str, Any]]


def held_out_curves(path: Path, curves: Mapping[str, Rows]) -> None:
    """Smoothed accuracy and perplexity over rounds; accuracy over epsilon where it is finite."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(12.8, 4.0), layout="constrained")
    by_round, perplexity, by_epsilon = figure.subplots(1, 3)
    for number, (name, rows) in enumerate(curves.items()):
        style: dict[str, Any] = {"color": f"C{number % 10}", "marker": ".", "label": name}
        style["linestyle"] = ("-", "--", ":")[number // 10 % 3]
        rounds = [row["round"] for row in rows]
        accuracy = [_percent(row["accuracy_top1_smoothed"]) for row in rows]
        by_round.plot(rounds, accuracy, **style)
        perplexity.plot(rounds, [_number(row["perplexity"]) for row in rows], **style)
        costs = [row["epsilon"] for row in rows]
        spent = [(cost, value) for cost, value in zip(costs, accuracy, strict=True) if cost]
        if spent:  # without privacy, or before the first round, there is nothing to draw
            by_epsilon.plot(*zip(*spent, strict=True), **style)
    perplexity.set_yscale("log")
    logarithmic = [(perplexity.yaxis, perplexity.get_ylim())]
    if by_epsilon.lines:
        by_epsilon.set_xscale("log")
        logarithmic.append((by_epsilon.xaxis, by_epsilon.get_xlim()))
    for axis, (low, high) in logarithmic:
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        # On a narrow axis there may be no power of ten to read a value off.
        narrow = high < 50 * low
        axis.set_minor_formatter(StrMethodFormatter("{x:g}") if narrow else NullFormatter())
    by_round.set_xlabel("rounds")
    perplexity.set_xlabel("rounds")
    by_epsilon.set_xlabel("epsilon so far")
    by_round.set_ylabel("top-1 accuracy in %, smoothed")
    perplexity.set_ylabel("perplexity")
    by_epsilon.set_ylabel("top-1 accuracy in %, smoothed")
    for axes in (by_round, perplexity, by_epsilon):
        axes.grid(True, which="both", alpha=0.25)
    by_round.legend(fontsize="small")
    try:
        with durable.whole_file(path) as file:
            figure.savefig(file, format=path.suffix.removeprefix("."), dpi=150)
    except OSError as error:
        raise ValueError(f"plot file {str(path)!r} cannot be written: {error.strerror}") from error


def _percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def _number(value: float | None) -> float:
    return math.nan if value is None else value
