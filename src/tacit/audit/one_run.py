"""A lower bound on epsilon from one training run (Steinke, Nasr and Jagielski 2023).

Of m canary clients each takes part by a fair coin.  From the released model alone an auditor scores
them all, guesses "in" for the highest and "out" for the lowest, and abstains from the rest.  Say
that r guesses were made and v of them are right.

If the training is (epsilon, delta)-DP in every canary, then (their Theorem 5.2) the number of right
guesses is hardly more than Binomial(r, q) with q = e^epsilon / (1 + e^epsilon), which is how often
randomized response is guessed right:

    P(right >= v) <= beta + 2 m delta alpha,       B ~ Binomial(r, q),
    beta = P(B >= v),      alpha = max over 1 <= i <= v of P(v - i <= B < v) / i.

Guarantee: every epsilon whose right-hand side is below 1 - confidence is refuted; the lower bound
is where this ends.  It exceeds the true epsilon with a probability of at most 1 - confidence.  This
needs that

- the coins are fair, independent, and used for nothing else;
- scores and the numbers of guesses are chosen without a look at the coins.  `Guesses` is therefore
  an argument of its own, to be fixed before training; trying several and keeping the best bound
  would void it.

Nothing is assumed of the model, the scores, or the other users.  The price is sharpness: even with
all guesses right, r guesses show no more than `ceiling`, about log(r / log(1 / (1 - confidence))).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, betaincinv, expit, logit, ndtr

from tacit.privacy import checks
from tacit.privacy.pld import gaussian_epsilon

# The refuted epsilons are looked for on this many points, and their end between two of them.
_POINTS = 64


@dataclass(frozen=True)
class Guesses:
    """How many canaries are guessed to be in and out: fixed before anything is seen."""

    guessed_in: int
    guessed_out: int

    def __post_init__(self) -> None:
        checks.whole("guessed_in", self.guessed_in)
        checks.whole("guessed_out", self.guessed_out)
        if not self.total:
            raise ValueError("guessed_in and guessed_out must not both be 0")

    @property
    def total(self) -> int:
        """r: all guesses."""
        return self.guessed_in + self.guessed_out

    def correct(self, scores: NDArray[Any], included: NDArray[np.bool_]) -> int:
        """v, where a higher score speaks for being in.

        Of equal scores the earlier one counts as lower: a matter of numbering, not of coins.
        """
        if scores.ndim != 1 or scores.shape != included.shape or included.dtype != np.bool_:
            raise ValueError(
                "scores and included must be two vectors of one length, the second of booleans, got"
                f" shapes {list(scores.shape)} and {list(included.shape)} of {included.dtype}"
            )
        if not np.isfinite(scores).all():
            raise ValueError("scores must be finite numbers")
        if self.total > len(scores):
            raise ValueError(
                f"guesses must be at most the {len(scores)} canaries, got {self.guessed_in} in and"
                f" {self.guessed_out} out"
            )
        order = np.argsort(scores, kind="stable")
        said_in = order[len(order) - self.guessed_in :]
        said_out = order[: self.guessed_out]
        return int(included[said_in].sum() + (~included[said_out]).sum())


@dataclass(frozen=True)
class OneRun:
    """What the guesses came to: epsilon is at least `lower_bound`, with this confidence."""

    canaries: int
    guesses: int
    correct: int
    lower_bound: float
    ceiling: float
    delta: float
    confidence: float


def audit_one_run(
    scores: NDArray[Any],
    included: NDArray[np.bool_],
    guesses: Guesses,
    *,
    delta: float,
    confidence: float = 0.95,
) -> OneRun:
    """Guess by the scores, and bound epsilon by how often that was right."""
    correct = guesses.correct(scores, included)
    m, r = len(scores), guesses.total
    most = epsilon_lower_bound(m, r, r, delta, confidence)  # if all of them are right
    if not most > 0:
        raise ValueError(
            f"{r} guesses show nothing at a confidence of {confidence:g}, even if all are right;"
            f" at least {_least_guesses(confidence)} are needed, and delta far below 1/{m}"
        )
    bound = epsilon_lower_bound(m, r, correct, delta, confidence)
    return OneRun(m, r, correct, bound, most, delta, confidence)


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on P(at least `correct` right guesses) under (epsilon, delta)-DP.

    Of `canaries` canary clients, `guesses` are guessed to be in or out: beta + 2 m delta alpha of
    the module, at most 1.
    """
    _check_counts(canaries, guesses, correct)
    checks.non_negative("epsilon", epsilon)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta}")
    if correct == 0:
        return 1.0
    q = float(expit(epsilon))
    i = np.arange(1, correct + 1)
    tails = _at_least(correct - np.arange(correct + 1), guesses, q)
    alpha = float(np.max((tails[1:] - tails[0]) / i))
    return min(float(tails[0]) + 2 * canaries * delta * alpha, 1.0)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon below which every one is refuted with this confidence; 0 if none is.

    `correct` of `guesses` guesses about `canaries` canary clients were right.
    """
    _check_counts(canaries, guesses, correct)
    level = 1 - checks.open_unit("confidence", confidence)

    def excess(epsilon: float) -> float:
        return _p_value(canaries, guesses, correct, epsilon, delta) - level

    # With delta = 0 the end is known: q is the lower limit of Clopper and Pearson.
    limit = float(betaincinv(correct, guesses - correct + 1, level)) if correct else 0.0
    if limit <= 0.5 or excess(0.0) >= 0:
        return 0.0
    if delta == 0:
        return float(logit(limit))
    points = np.linspace(0.0, float(logit(limit)), _POINTS)
    for low, high in pairwise(points.tolist()):
        if excess(high) >= 0:
            return float(brentq(excess, low, high, xtol=1e-10))
    return float(points[-1])


def _least_guesses(confidence: float) -> int:
    """Fewer guesses than this are all right by luck too often for the confidence."""
    level = 1 - checks.open_unit("confidence", confidence)
    return math.floor(math.log2(1 / level)) + 1


def planned_guesses(
    canaries: int, epsilon: float, delta: float, confidence: float = 0.95
) -> Guesses:
    """The numbers of guesses that promise the best bound if the claim is just true.

    A function of the claim and of public constants, so it may be used before training without harm.
    It supposes scores of N(0, 1) for those out and N(mu, 1) for those in, with the mu of a Gaussian
    mechanism that has this epsilon, and takes as many guesses on either side.
    """
    checks.whole("canaries", canaries, at_least=2)
    checks.positive("epsilon", epsilon)
    mu = _gaussian_mu(epsilon, delta)
    sizes = sorted({max(1, round(canaries * share)) for share in np.geomspace(0.01, 0.5, 25)})
    best, most = Guesses(canaries // 2, canaries // 2), -1.0
    for size in sizes:
        if 2 * size > canaries:
            continue
        right = math.floor(2 * size * _accuracy(size / canaries, mu))
        bound = epsilon_lower_bound(canaries, 2 * size, right, delta, confidence)
        if bound >= most:
            best, most = Guesses(size, size), bound
    return best


def _accuracy(share: float, mu: float) -> float:
    """How often the highest `share` of an even mixture of N(0, 1) and N(mu, 1) is of the second."""

    def excess(t: float) -> float:
        return float(ndtr(-t) + ndtr(mu - t)) / 2 - share

    threshold = brentq(excess, -40.0, mu + 40.0)
    return float(ndtr(mu - threshold)) / (2 * share)


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian mechanism has this epsilon at this delta."""
    checks.open_unit("delta", delta)
    high = 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2
    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 1e-9, high))


def _at_least(counts: NDArray[np.int64], trials: int, q: float) -> NDArray[np.float64]:
    """P(Binomial(trials, q) >= count) for each count."""
    tails: NDArray[np.float64] = np.where(
        counts > 0, bdtrc(np.maximum(counts, 1) - 1, trials, q), 1
    )
    return tails


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    checks.whole("canaries", canaries, at_least=1)
    checks.whole("guesses", guesses, at_least=1)
    checks.whole("correct", correct)
    if not correct <= guesses <= canaries:
        raise ValueError(
            "there must be no more correct guesses than guesses, and no more guesses than canaries,"
            f" got {correct} of {guesses} of {canaries}"
        )
