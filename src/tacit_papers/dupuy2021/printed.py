"""Three epsilons for eDP-SGD as printed in Dupuy et al. 2021; only the first is a guarantee.

A run of `edp-sgd-paper` claims what its ledger says.  Beside that, the paper's tables have what
epsilon would be if the scaling factors were public, and what the paper's own accounting prints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.mechanisms.edp_accounting import effective_multiplier
from tacit.mechanisms.edp_sgd import PaperEdpSgd
from tacit.privacy import checks
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, Composition, Gaussian, NonPrivate
from tacit.runs.run import NluRun
from tacit.tasks.nlu import scaling

# What each figure for the printed algorithm is.
_INFINITE = (
    "the actual epsilon: infinite, because the scaling factors alpha_k are taken from the gradients"
    " of private records and used without noise"
)
_ACTUAL = (
    "the actual epsilon, under replace-one adjacency: the scaling factors alpha_k are public, and"
    " reshuffled epochs bring no amplification"
)
_CONDITIONAL = (
    "what epsilon would be if the scaling factors alpha_k were public: reshuffled epochs without"
    " amplification, one Gaussian release per epoch of the effective multiplier"
    " z_t / (2 sqrt(N) max alpha_k), under replace-one adjacency"
)
_PUBLISHED = (
    "what the paper would print, and no guarantee: zCDP with rho = 1 / (2 z_t^2) per epoch and"
    " epsilon = rho + 2 sqrt(rho log(1/delta))"
)


@dataclass(frozen=True)
class PaperFigure:
    """An epsilon and what it is."""

    epsilon: float
    delta: float
    meaning: str


def published_epsilon_of_run(run: NluRun) -> float | None:
    """What the paper would print for a run of eDP-SGD, as printed or calibrated; else None.

    Its figure knows z_0, the decay, the epochs and delta, and nothing of how the noise is added, so
    that both forms have the same.  It is no guarantee for either.
    """
    training, noise = run.experiment.training, run.experiment.noise
    if not training.method.startswith("edp-sgd"):
        return None
    decay, z = noise.noise_decay(), noise.noise_multiplier or 0.0
    multipliers = [z * decay.factor(epoch) for epoch in range(run.leg)]
    return _published_epsilon(multipliers, run.ledger.header.delta)


def figures_of_run(run: NluRun) -> tuple[PaperFigure, PaperFigure, PaperFigure] | None:
    """The figures of a run of `edp-sgd-paper` for the epochs done; None for every other method."""
    training, noise = run.experiment.training, run.experiment.noise
    if training.method != "edp-sgd-paper":
        return None
    method = PaperEdpSgd(
        training.workers,
        noise.clip_norm,
        noise.noise_multiplier or 0.0,
        scaling.read(run.path),
        noise.noise_decay(),
        micro_batches=training.micro_batches,
    )
    return printed_figures(method, run.leg, run.ledger.header.delta)


def printed_figures(
    method: PaperEdpSgd, epochs: int, delta: float
) -> tuple[PaperFigure, PaperFigure, PaperFigure]:
    """Three figures of Algorithm 1 as printed, run for some epochs.

    They are the actual one, the one if alpha_k were public (one Gaussian per epoch, replace-one),
    and the one that the paper would print.  Only the first is a guarantee.

    Given alpha_k: epochs are reshuffled independently of the records, so that a record is in at
    most one step of each, and replacing it changes one worker's clipped vector there and nothing
    else but through what was released.  Removing it instead would shift the split of the others, a
    far larger move, so the figure is stated for replace-one.
    """
    multipliers = [method.noise_multiplier_at(epoch) for epoch in range(epochs)]
    largest = method.scaling.largest
    effective = [effective_multiplier(z, method.vectors, largest) for z in multipliers]
    releases = [
        Gaussian(m, Adjacency.REPLACE) if m > 0 else NonPrivate("eDP-SGD without noise")
        for m in effective
    ]
    epsilon = accountant_named("pld").epsilon(Composition.of(releases), delta)
    is_public = method.scaling.is_public
    return (
        PaperFigure(epsilon if is_public else math.inf, delta, _ACTUAL if is_public else _INFINITE),
        PaperFigure(epsilon, delta, _CONDITIONAL),
        PaperFigure(_published_epsilon(multipliers, delta), delta, _PUBLISHED),
    )


def _published_epsilon(multipliers: Sequence[float], delta: float) -> float:
    """rho + 2 sqrt(rho log(1/delta)), rho the sum of 1 / (2 z_t^2) over the epochs."""
    checks.open_unit("delta", delta)
    squares = [checks.non_negative("noise_multiplier", z) ** 2 for z in multipliers]
    if not all(squares):  # no noise, or so little that its square is no number any more
        return math.inf
    rho = math.fsum(1 / (2 * square) for square in squares)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
