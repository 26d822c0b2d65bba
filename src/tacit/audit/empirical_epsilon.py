"""An empirical epsilon from one audited training, to stand beside the accounted one.

Two auditors look at the same cosines of the canary clients with the model's change:

- `one_shot` estimates epsilon.  It uses only those that took part and presumes normal laws.
- `one_run` bounds epsilon from below with a stated confidence.  It presumes nothing but the coins,
  and can never show more than its ceiling.

Read them together: the accounted epsilon is an upper bound, proved; the lower bound must not be
above it, or something is wrong with the implementation; and a lower bound near 0 means little if
the ceiling is low.  Neither auditor makes a claim stronger.  A single model's privacy is better
tested on the implementation itself, as `tests/audit/repeated_runs.py` does.

All of this is computed from the released model, the canaries and their coins, so it is free to be
published: nothing of a real user's text has a part in it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from tacit.audit.one_run import (
    Guesses,
    OneRun,
    audit_one_run,
    epsilon_lower_bound,
    planned_guesses,
)
from tacit.audit.one_shot import FEWEST, OneShot, estimate_one_shot
from tacit.audit.tries import TRIES_FILE, Tries
from tacit.privacy.documents import read_json

if TYPE_CHECKING:
    from tacit.runs.run import LanguageRun

AUDIT_FILE = "audit.json"  # in a run directory, and in its private folder

_NO_CLAIM = 10.0  # the epsilon that guesses are planned for where none, or a larger one, is claimed
# The confidence that guesses are planned for, whatever is asked for: with other numbers of guesses,
# asking for another confidence would be another look at the coins.
_PLANNED_FOR = 0.99
_UNLIKELY = 0.001  # a p-value below it says that the canaries left out are not as they should be

Tell = Callable[[str, int, int], None]  # what is being done, how much is done, of how much


@dataclass(frozen=True, kw_only=True)
class EmpiricalEpsilon(OneRun):
    """The lower bound of one-run, with the estimate of one-shot beside it, as audit.json has them.

    `estimate` and `normality_p` are None where too few canary clients took part.  `warnings` are
    sentences about what takes meaning from these figures.  The last four are known for the audit of
    a run, whose tries are counted (`tacit.audit.tries`).
    """

    took_part: int
    estimate: float | None
    normality_p: float | None
    warnings: tuple[str, ...] = ()
    says: str | None = None  # what it means for the claim, in one sentence
    try_number: int | None = None  # at this run; the confidence allows for the earlier ones
    confidence_asked: float | None = None  # of all tries together
    highest_lower_bound: float | None = None  # that any of them has shown

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


def audit_canary_clients(run: LanguageRun, confidence: float, tell: Tell) -> EmpiricalEpsilon:
    """The canary clients' trace in what the whole training changed, as one more try at this run.

    The order matters: the number of guesses follows from the claim; the try is recorded and synced;
    only then are the coins held against the model; and the bound is recorded before it is returned.
    """
    from tacit.models.base import to_vector  # torch: whoever reads a result waits for none of it
    from tacit.tasks.language import canary_clients as coins

    key = coins.coins_of_run(run.path, run.ledger)
    clients = coins.CanaryClients.of(run.experiment, run.model(), key)
    assert clients is not None
    claimed = run.guarantee()
    # How many guesses there are follows from the claim alone, before anything is looked at.
    guesses = planned_guesses(
        clients.count, min(claimed.value, _NO_CLAIM), claimed.delta, _PLANNED_FOR
    )
    first, last = to_vector(run.model(run.first_leg)), to_vector(run.model())
    looked_at = {
        "round": run.round,
        "first_round": run.first_leg,
        "model": hashlib.sha256(last.tobytes()).hexdigest(),
        "first_model": hashlib.sha256(first.tobytes()).hexdigest(),
        "coins": coins.commitment(key),
        "canaries": clients.count,
        "guesses": [guesses.guessed_in, guesses.guessed_out],
        "delta": claimed.delta,
    }
    tries = Tries(run.directory.private / TRIES_FILE, at_least=_stated_try(run))
    planned = tries.next(looked_at, confidence)
    count, total = clients.count, guesses.total
    if not epsilon_lower_bound(count, total, total, claimed.delta, planned.confidence) > 0:
        raise ValueError(
            f"confidence must be less than {confidence:g} for {total} guesses to"
            f" show anything: as try {planned.number} at this run they must hold with"
            f" {planned.confidence:.6g}; an earlier audit can be repeated as it was"
        )
    own = tries.begin(looked_at, confidence)  # synced before anything is looked at
    traces = clients.cosines(
        last - first,
        lambda done: tell("looking for canary clients", done, clients.count),
    )
    shown = _empirical_epsilon(
        traces,
        clients.included,
        clients.degrees,
        guesses,
        delta=claimed.delta,
        confidence=own.confidence,
    )
    tries.finish(own, shown.lower_bound)  # before anybody sees it
    highest, warnings = tries.highest(), shown.warnings
    if highest > shown.lower_bound:
        warnings += (
            f"Another try at this run showed more: epsilon is at least {highest:.3g}.  The tries"
            " hold together, so this one does not take it back.",
        )
    return replace(
        shown,
        warnings=warnings,
        says=shown.beside(claimed.value),
        try_number=own.number,
        confidence_asked=own.asked,
        highest_lower_bound=highest,
    )


class _Counted(TypedDict):
    try_number: int


class _Published(TypedDict):
    """What says of audit.json how often the run was audited."""

    empirical_epsilon: _Counted | None


def _stated_try(run: LanguageRun) -> int:
    """The number of the try that the run's published audit speaks of; 0 if it speaks of none."""
    try:
        audit = read_json(run.path / AUDIT_FILE, _Published)
    except (OSError, ValueError):
        return 0
    return (audit["empirical_epsilon"] or {"try_number": 0})["try_number"]


def _empirical_epsilon(
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
    `CanaryClients.cosines`); `degrees` is the number of values that their
    directions live in.  `guesses` must have been fixed without a look at the coins.
    """
    # First, so that a mismatch of sizes is refused before it is used.
    bound = audit_one_run(cosines, included, guesses, delta=delta, confidence=confidence)
    enough = included.sum() >= FEWEST
    shot = estimate_one_shot(cosines[included], degrees, delta) if enough else None
    return EmpiricalEpsilon(
        **vars(bound),
        took_part=int(included.sum()),
        estimate=None if shot is None else shot.estimate,
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
