"""Pictures of figures that people would rather look at than read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.cli.progress import tracked
from tacit.privacy import durable
from tacit.privacy.accountants import sound_accountants
from tacit.privacy.events import Composition

if TYPE_CHECKING:
    from matplotlib.axis import Axis

    from tacit.mechanisms.planning import Answer

FORMATS = (".png", ".svg", ".pdf")


def check_target(path: Path) -> None:
    """Before anything is computed: can a picture be written there?"""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"plot file must end in {', '.join(FORMATS)}, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"plot file {str(path)!r} is in a folder that does not exist")


def _plain_ticks(axis: Axis, *, wide: bool) -> None:
    """Numbers rather than powers; on a narrow axis between the decades as well."""
    axis.set_major_formatter(lambda value, _: f"{value:,.9g}")
    axis.set_minor_formatter("" if wide else lambda value, _: f"{value:.3g}")


def epsilon_over_rounds(answer: Answer, path: Path, points: int = 24) -> None:
    """Epsilon against rounds, on log axes, by every accountant that is sound for the plan."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    event, delta = answer.plan.event(), answer.delta
    accountants, _ = sound_accountants(Composition.of([event]))
    spaced = np.geomspace(1, answer.rounds, points)
    rounds = sorted({round(float(value)) for value in spaced})
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    steps = [(accountant, count) for accountant in accountants for count in rounds]
    curves: dict[str, list[float]] = {accountant.title: [] for accountant in accountants}
    for accountant, count in tracked(steps, "epsilon over rounds"):
        epsilon = accountant.epsilon(Composition.of([(event, count)]), delta)
        curves[accountant.title].append(epsilon if math.isfinite(epsilon) else math.nan)
    for title, curve in curves.items():
        axes.plot(rounds, curve, marker=".", label=title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes.xaxis, wide=True)
    _plain_ticks(axes.yaxis, wide=axes.get_ylim()[1] > 50 * axes.get_ylim()[0])
    axes.set_xlabel("rounds")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    axes.set_title(
        f"{answer.plan.expected_cohort:,.6g} {answer.plan.unit}s a round of"
        f" {answer.plan.population:,}, z = {answer.plan.noise_multiplier:.4g}"
    )
    axes.grid(True, which="both", alpha=0.25)
    axes.legend()
    try:
        with durable.whole_file(path) as file:
            figure.savefig(file, format=path.suffix.removeprefix("."), dpi=150)
    except OSError as error:
        raise ValueError(f"plot file {str(path)!r} cannot be written: {error.strerror}") from error
