"""The picture of a secret-sharer table: canaries memorized by arm, and exposure by copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.cli import plots
from tacit_papers.thakkar2020.table import ArmRow, Result


def draw(path: Path, rows: Sequence[ArmRow], results: Sequence[Result]) -> None:
    """Shares of the canaries memorized, and under them each canary's exposure.

    Arms differ in colour and, past ten of them, in marker.  Their dots are shifted sideways, since
    all arms of a seed have the same canaries with much the same copies.
    """
    figure = plots.new_figure(9.6, 1.8 + 0.36 * len(rows) + 4.2)
    bars, dots = figure.subplots(2, 1, height_ratios=[1 + 0.36 * len(rows), 4.2])
    heights = np.arange(len(rows))
    sampled = [100 * sum(row.memorized_rs) / sum(row.canaries) for row in rows]
    beamed = [100 * sum(row.memorized_bs) / sum(row.canaries) for row in rows]
    bars.barh(heights - 0.2, sampled, 0.38, label="Random Sampling")
    bars.barh(heights + 0.2, beamed, 0.38, label="Beam Search")
    bars.set_yticks(heights, [row.arm for row in rows])
    bars.invert_yaxis()
    bars.set_xlim(0, 100)
    bars.set_xlabel("canaries memorized, in %")
    bars.legend()
    for number, row in enumerate(rows):
        points = [
            (canary["copies"], canary["exposure"])
            for result in results
            if result["arm"] == row.arm
            for canary in result["canaries"]
            if canary["exposure"] is not None
        ]
        if points:
            style = {"marker": "os^vDP*X"[number // 10 % 8], "color": f"C{number % 10}"}
            copies, exposures = zip(*points, strict=True)
            # A canary that the caps cut away has no copies, and a log axis has no 0.
            shown = np.maximum(copies, 0.5) * 1.04 ** (number - len(rows) / 2)
            dots.plot(shown, exposures, linestyle="", alpha=0.6, label=row.arm, **style)
    dots.set_xscale("log")
    dots.set_xlabel("copies planted (0 is drawn at 0.5; arms side by side)")
    dots.set_ylabel("exposure in bits")
    if dots.lines:
        dots.legend(fontsize="small", ncols=2)
    plots.save(figure, path)
