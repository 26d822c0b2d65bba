"""An empirical epsilon from one audited training, to stand beside the accounted one.

Two auditors look at the same cosines of the canary clients with the model's change:

- `one_shot` estimates epsilon.  It uses only those that took part and presumes normal laws.
- `one_run` bounds epsilon from below with a stated confidence.  It presumes nothing but the coins,
  and can never show more than its ceiling.

Read them together: the accounted epsilon is an upper bound, proved; the lower bound must not be
above it, or something is wrong with the implementation; and a lower bound near 0 means little if
the ceiling is low.  Neither auditor makes a claim stronger.  A single model's privacy is better
tested by `repeated_runs`, on the implementation itself.

All of this is computed from the released model, the canaries and their coins, so it is free to be
published: nothing of a real user's text has a part in it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from tacit.audit.one_run import Guesses, audit_one_run
from tacit.audit.one_shot import FEWEST, OneShot, estimate_one_shot

_UNLIKELY = 0.001  # a p-value below it says that the canaries left out are not as they should be


@dataclass(frozen=True)
class EmpiricalEpsilon:
    """`estimate` by one-shot, `lower_bound` with `confidence` by one-run, at most `ceiling`.

    `estimate` and `normality_p` are None where too few canary clients took part.  `warnings` are
    sentences about what takes meaning from these figures.
    """

    estimate: float | None
    lower_bound: float
    confidence: float
    ceiling: float
    delta: float
    canaries: int
    took_part: int
    guesses: int
    correct: int
    normality_p: float | None
    warnings: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"warnings": list(self.warnings)}

    def beside(self, accounted_epsilon: float) -> str:
        """What these figures say about an accounted epsilon at the same delta, in one sentence."""
        sure = f"{self.confidence:.4g}"
        if not math.isfinite(accounted_epsilon):
            return (
                f"Epsilon is at least {self.lower_bound:.3g} at a confidence of {sure}; there is no"
                " claim to hold it against."
            )
        if self.lower_bound > accounted_epsilon:
            return (
                f"The claim of epsilon {accounted_epsilon:.3g} is refuted: epsilon is at least"
                f" {self.lower_bound:.3g} at a confidence of {sure}."
            )
        if self.ceiling <= accounted_epsilon:
            return (
                f"Epsilon is at least {self.lower_bound:.3g} at a confidence of {sure}; so few"
                f" guesses show at most {self.ceiling:.3g} and cannot refute the claim of"
                f" {accounted_epsilon:.3g}."
            )
        return (
            f"Epsilon is at least {self.lower_bound:.3g} at a confidence of {sure}, which agrees"
            f" with the claim of {accounted_epsilon:.3g}; {self.ceiling:.3g} could have been shown."
        )


def empirical_epsilon(
    cosines: NDArray[np.float64],
    included: NDArray[np.bool_],
    degrees: int,
    guesses: Guesses,
    *,
    delta: float,
    confidence: float = 0.95,
) -> EmpiricalEpsilon:
    """Both auditors on the same cosines of canary clients with the model's change.

    `cosines` and `included` have an entry per canary client (see
    `tacit.tasks.language.canary_clients.cosines`); `degrees` is the number of values that their
    directions live in.  `guesses` must have been fixed without a look at the coins.
    """
    # First, so that a mismatch of sizes is refused before it is used.
    bound = audit_one_run(cosines, included, guesses, delta=delta, confidence=confidence)
    enough = included.sum() >= FEWEST
    shot = estimate_one_shot(cosines[included], degrees, delta) if enough else None
    return EmpiricalEpsilon(
        estimate=None if shot is None else shot.estimate,
        lower_bound=bound.lower_bound,
        confidence=confidence,
        ceiling=bound.ceiling,
        delta=delta,
        canaries=len(cosines),
        took_part=int(included.sum()),
        guesses=bound.guesses,
        correct=bound.correct,
        normality_p=None if shot is None else shot.normality_p,
        warnings=_warnings(shot, _control_p_value(cosines[~included], degrees)),
    )


def _warnings(shot: OneShot | None, control: float) -> tuple[str, ...]:
    warnings = []
    if shot is None:
        warnings.append(
            f"There is no estimate: it needs at least {FEWEST} canary clients that took part."
        )
    elif not shot.is_normal:
        warnings.append(
            f"The canaries' cosines are not normally distributed (p = {shot.normality_p:.2g}), so"
            " the estimate means little; the lower bound does not depend on it."
        )
    if control < _UNLIKELY:
        warnings.append(
            f"The canaries that were left out do not look left out (p = {control:.2g}): these are"
            " not the directions or the coins of this training."
        )
    return tuple(warnings)


def _control_p_value(left_out: NDArray[np.float64], degrees: int) -> float:
    """p-value of cosines being N(0, 1/n), by their mean and by their squares, two-sided."""
    count = len(left_out)
    if not count:
        return 1.0
    squares = degrees * float(np.dot(left_out, left_out))
    spread = 2 * min(chdtr(count, squares), chdtrc(count, squares))
    mean = math.erfc(abs(float(left_out.sum())) * math.sqrt(degrees / count / 2))
    return min(float(2 * min(spread, mean)), 1.0)
