"""What was measured, as Markdown and as a plot."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """A row of a table: users per second in each repetition, or why there are none."""

    name: str
    cores: int
    rates: list[float]
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rates) if self.rates else math.nan

    def times(self, other: Line) -> float:
        """The median of the ratios within a repetition."""
        if len(self.rates) != len(other.rates) or not self.rates:
            return math.nan
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


@dataclass(frozen=True)
class Goal:
    """A figure that should be at least, or at most, something."""

    name: str
    value: float
    bound: float
    at_most: bool = False
    digits: int = 2

    @property
    def verdict(self) -> str:
        if math.isnan(self.value):
            return "not measured"
        met = self.value <= self.bound if self.at_most else self.value >= self.bound
        return "met" if met else "**falls short**"


def table(lines: list[Line], operations: float, base: Line, products: Line) -> str:
    """Users per second with the range, and three ratios."""
    text = [
        f"| | users/s | range | x {base.name} | of products alone | GFLOP/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for line in lines:
        if line.problem or not line.rates:
            text.append(f"| {line.name} | not measured: {line.problem or 'no time'} | | | | |")
            continue
        # A sampled softmax leaves most of these operations out.
        whole = "sampled" not in line.name
        text.append(
            f"| {line.name} | {line.median:.2f} | {min(line.rates):.2f}-{max(line.rates):.2f}"
            f" | {_number(line.times(base))} | {_percent(line.times(products)) if whole else ''}"
            f" | {f'{line.median * operations / 1e9:.0f}' if whole else ''} |"
        )
    return "\n".join(text)


def note(
    *, setting: str, tables: list[str], goals: list[Goal], profiles: dict[str, dict[str, Any]]
) -> str:
    """All that is measured; `profiles` by the name of a row."""
    one, two, beside = tables
    parts = [
        setting,
        f"**One core**\n\n{one}",
        f"**Two cores**\n\n{two}",
        f"**Private or not, and users in the corpus** (one core, C++ kernel)\n\n{beside}",
        f"**Goals**\n\n{_goals(goals)}",
    ]
    if profiles:
        parts.append(f"**Where the time of a round goes** (one core)\n\n{_profiles(profiles)}")
    return "\n\n".join(parts) + "\n"


def _goals(goals: list[Goal]) -> str:
    text = ["| figure | measured | goal | |", "|---|---:|---:|---|"]
    for goal in goals:
        sign = "at most" if goal.at_most else "at least"
        text.append(
            f"| {goal.name} | {_number(goal.value, goal.digits)} |"
            f" {sign} {goal.bound:g} | {goal.verdict} |"
        )
    return "\n".join(text)


def _profiles(profiles: dict[str, dict[str, Any]]) -> str:
    names = list(profiles)
    parts = dict.fromkeys(part for found in profiles.values() for part in found["parts"])
    text = ["| ms per user | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for part in parts:
        values = []
        for found in profiles.values():
            each = 1e3 * found["parts"].get(part, 0.0) / found["users"]
            values.append(f"{each:.1f} ({found['parts'].get(part, 0.0) / found['seconds']:.1%})")
        text.append(f"| {part} | " + " | ".join(values) + " |")
    whole = [f"{1e3 * found['seconds'] / found['users']:.1f}" for found in profiles.values()]
    text.append("| all | " + " | ".join(whole) + " |")
    return "\n".join(text)


def plot(groups: list[list[Line]], folder: Path) -> None:
    """A bar for each line, with its range; one panel for each group."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    heights = [len(group) for group in groups]
    figure, panels = pyplot.subplots(
        len(groups), 1, figsize=(8, 0.42 * sum(heights) + 1.2), height_ratios=heights, sharex=True
    )
    for panel, group in zip(panels, groups, strict=True):
        shown = [line for line in reversed(group) if line.rates]
        for place, line in enumerate(shown):
            ours, limit = line.name.startswith("tacit"), line.name.startswith("matrix")
            color = "#1b6ca8" if ours else "#bbbbbb" if limit else "#d98c3f"
            low, high = line.median - min(line.rates), max(line.rates) - line.median
            panel.barh(place, line.median, color=color, height=0.7)
            panel.errorbar(line.median, place, xerr=[[low], [high]], color="#333333", capsize=2)
            panel.text(max(line.rates), place, f"  {line.median:.1f}", va="center", fontsize=9)
        panel.set_yticks(range(len(shown)), [line.name for line in shown])
        cores = shown[0].cores if shown else 0
        panel.set_title("one core" if cores == 1 else "two cores", loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.08)
    panels[-1].set_xlabel("users per second (median of interleaved repetitions, with the range)")
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "speed.png", dpi=120)
    pyplot.close(figure)


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0%}"
