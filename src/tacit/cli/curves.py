"""The picture of a training: held-out perplexity over tokens, beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def perplexity_curve(
    path: Path,
    tokens: Sequence[int],
    train: Sequence[float],
    held_out: Sequence[float],
    baselines: Mapping[str, float],
    title: str,
) -> None:
    """Draw training and held-out perplexity on a log axis; baselines are level lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    millions = [count / 1e6 for count in tokens]
    axes.plot(millions, train, color="0.6", label="training text")
    axes.plot(millions, held_out, marker=".", label="held-out text (a sample)")
    for (name, value), style in zip(baselines.items(), ("--", ":", "-."), strict=False):
        axes.axhline(value, color="0.2", linestyle=style, label=f"{name}: {value:,.0f}")
    axes.set_yscale("log")
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("million tokens trained on")
    axes.set_ylabel("perplexity")
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=150)
