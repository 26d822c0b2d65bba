"""The picture of a demo: held-out perplexity over rounds, without and with privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def perplexity_over_rounds(
    path: Path,
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    levels: Mapping[str, float],
    title: str,
) -> None:
    """One curve for each run's rows of metrics; what does not train is a level line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, rows in curves.items():
        measured = [row for row in rows if row["perplexity"] is not None]
        rounds = [row["round"] for row in measured]
        axes.plot(rounds, [row["perplexity"] for row in measured], marker=".", label=name)
    for (name, value), style in zip(levels.items(), ("--", ":", "-."), strict=False):
        axes.axhline(value, color="0.3", linestyle=style, label=f"{name}: {value:,.0f}")
    axes.set_yscale("log")
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("rounds")
    axes.set_ylabel("perplexity on test users")
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=150)
