"""The picture of a ledger: epsilon as the releases were made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.cli.progress import tracked
from tacit.privacy import durable

if TYPE_CHECKING:
    from tacit.privacy.ledger import Ledger


def epsilon_over_releases(ledger: Ledger, path: Path, points: int = 24) -> None:
    """Epsilon after each of some releases, by every accountant that is sound for all of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from tacit.privacy.accountants import sound_accountants
    from tacit.privacy.events import Composition

    whole, delta = ledger.composition(), ledger.header.delta
    if not whole.is_private or not whole.costly():
        raise ValueError(f"--plot has nothing to draw: {ledger.path} has no epsilon above 0")
    events = [entry.event for entry in ledger.entries]
    accountants, _ = sound_accountants(whole)
    places = sorted({round(float(x)) for x in np.linspace(1, len(events), points)})
    curves: dict[str, list[float]] = {accountant.title: [] for accountant in accountants}
    steps = [(accountant, place) for accountant in accountants for place in places]
    for accountant, place in tracked(steps, "epsilon over releases"):
        so_far = Composition.of(events[:place])
        epsilon = accountant.epsilon(so_far, delta) if so_far.costly() else 0.0
        curves[accountant.title].append(epsilon if math.isfinite(epsilon) else math.nan)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for title, curve in curves.items():
        axes.plot(places, curve, marker=".", label=title)
    if ledger.header.budget is not None:
        axes.axhline(ledger.header.budget.epsilon, color="0.3", linestyle="--", label="budget")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("releases charged")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    axes.grid(True, alpha=0.25)
    axes.legend()
    try:
        with durable.whole_file(path) as file:
            figure.savefig(file, format=path.suffix.removeprefix("."), dpi=150)
    except OSError as error:
        raise ValueError(f"plot file {str(path)!r} cannot be written: {error.strerror}") from error
