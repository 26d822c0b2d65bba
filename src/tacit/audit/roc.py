"""How well scores tell members from non-members: ROC curve, AUC, true positives at few false ones.

A score is higher the likelier its user is a member.

AUC is P(member > non-member) + P(equal) / 2 (Mann and Whitney).  Its interval is DeLong's (DeLong,
DeLong and Clarke-Pearson 1988), with users as the units where one has several scores (Obuchowski
1997), the degrees of freedom of Brunner and Munzel 2000, on the logit scale, so that it stays
within 0 and 1.  Where every pair of a member and a non-member comes out alike, that variance is 0
and means nothing.  Then the bound is exact: were the chance of this outcome p, min(users) disjoint,
independent pairs would all show it with probability p^min(users).

The true-positive rate (TPR) at a false-positive rate (FPR) f is taken at the (k+1)-th largest score
of the n non-members, k = floor(f n): who is strictly above it is called a member, so at most k
non-members are, however many are tied.  With fewer than 1/f non-members k would be 0, and it is
refused.  The Clopper-Pearson interval covers the TPR *of this threshold*, which owes nothing to the
members and is therefore fixed as far as they are concerned.  The threshold's own FPR is known from
n users only: with the same confidence it is at most `fpr_high`, the (1 + confidence)/2 quantile of
Beta(k + 1, n - k), which holds although the threshold was chosen among those very scores.

All intervals speak of other users drawn like these, for the one model that was attacked; not of
other models trained the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit.privacy import checks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_Values = Sequence[float] | npt.NDArray[np.floating[Any]]
_Users = Sequence[str] | Sequence[int] | npt.NDArray[Any]


@dataclass(frozen=True)
class _RocCurve:
    """The corners of the curve from (0, 0) to (1, 1); between them it is straight."""

    false_positive: Floats
    true_positive: Floats

    def thinned(self, most: int = 200) -> _RocCurve:
        """Some of the points, close together where false positives are few (for log axes)."""
        checks.whole("most", most, at_least=4)
        count = len(self.false_positive)
        if count <= most:
            return self
        least = float(self.false_positive[self.false_positive > 0].min())
        half = (most - 2) // 2
        rates = np.concatenate([np.geomspace(least, 1, half), np.linspace(0, 1, half)])
        last = np.searchsorted(self.false_positive, rates, side="right") - 1
        kept = np.unique([0, *last.tolist(), count - 1])
        return _RocCurve(self.false_positive[kept], self.true_positive[kept])

    def as_points(self) -> tuple[tuple[float, float], ...]:
        """Pairs of (false-positive rate, true-positive rate)."""
        return tuple(zip(self.false_positive.tolist(), self.true_positive.tolist(), strict=True))


@dataclass(frozen=True)
class _Auc:
    """The area under the curve, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TprAtFpr:
    """Members found at a threshold that at most the share `fpr` of the non-members exceeds.

    With too few non-members for that, only `why_not` is known.
    """

    fpr: float
    tpr: float | None = None
    interval: tuple[float, float] | None = None
    fpr_high: float | None = None  # the threshold's own rate is at most this, as surely
    why_not: str | None = None


def roc_curve(members: _Values, non_members: _Values) -> _RocCurve:
    """The share of members against that of non-members with a score of at least t, over all t.

    Equal scores are one step: a member and a non-member that are tied make a slanted line.
    """
    positive, negative = _checked("members", members), _checked("non-members", non_members)
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
    true, false = _at_least(positive, thresholds), _at_least(negative, thresholds)
    rise, run = np.diff(true, prepend=0), np.diff(false, prepend=0)
    # A corner is where the line turns; compared in whole numbers, so no rounding makes one.
    turns = rise[:-1] * run[1:] != rise[1:] * run[:-1]
    corner = np.append(turns, True)
    return _RocCurve(
        np.concatenate([[0.0], false[corner] / len(negative)]),
        np.concatenate([[0.0], true[corner] / len(positive)]),
    )


def auc(
    members: _Values,
    non_members: _Values,
    *,
    confidence: float = 0.95,
    units: tuple[_Users, _Users] | None = None,
) -> _Auc:
    """AUC with its interval.

    `units` says whose each score is, of members and of non-members, if a user has several.
    """
    checks.open_unit("confidence", confidence)
    positive, negative = _checked("members", members), _checked("non-members", non_members)
    # In half pairs, whole numbers: so that 0, 1/2 and 1 are exactly that.
    above, below = _half_pairs(positive, negative), _half_pairs(negative, positive)
    value = int(above.sum()) / (2 * len(positive) * len(negative))
    if units is None:
        units = np.arange(len(positive)), np.arange(len(negative))
    parts = [
        _of_one_side(above / (2 * len(negative)), units[0]),
        _of_one_side(below / (2 * len(positive)), units[1]),
    ]
    if min(users for _, users in parts) < 2:
        return _Auc(value, 0.0, 1.0)  # one user says nothing about how users differ
    variance = sum(part for part, _ in parts)
    tail = (1 - confidence) / 2
    if value in (0.0, 1.0) or not variance > 1e-30:  # below that it is rounding
        width = 1 - tail ** (1 / min(users for _, users in parts))
        # Tied pairs may in truth be right or wrong; right ones only wrong, and the reverse.
        down, up = {0.0: (0.0, width), 1.0: (width, 0.0)}.get(value, (width / 2, width / 2))
        return _Auc(value, max(value - down, 0.0), min(value + up, 1.0))
    freedom = variance**2 / sum(part**2 / (users - 1) for part, users in parts)
    reach = special.stdtrit(freedom, 1 - tail) * math.sqrt(variance) / (value * (1 - value))
    low, high = special.expit(special.logit(value) + np.array([-reach, reach])).tolist()
    return _Auc(value, low, high)


def tpr_at(
    members: _Values, non_members: _Values, rate: float, *, confidence: float = 0.95
) -> TprAtFpr:
    """The true-positive rate where the false-positive rate is `rate`; one score per user.

    With fewer than 1/rate non-members there is no figure, and the result says why.
    """
    positive, negative = _checked("members", members), _checked("non-members", non_members)
    checks.open_unit("false-positive rate", rate)
    allowed = math.floor(rate * len(negative) + 1e-9)  # 1e-9 for rounding
    if not allowed:
        reason = (
            f"the true-positive rate at a false-positive rate of {rate:g} needs at least"
            f" {math.ceil(1 / rate - 1e-9):,} non-members, one to be wrong about; there are"
            f" {len(negative):,}"
        )
        return TprAtFpr(rate, why_not=reason)
    threshold = np.sort(negative)[-(allowed + 1)]
    above = int((positive > threshold).sum())
    interval = _clopper_pearson(above, len(positive), confidence)
    _, fpr_high = _clopper_pearson(allowed, len(negative), confidence)
    return TprAtFpr(rate, above / len(positive), interval, fpr_high)


def _clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a probability, after `successes` in `trials`."""
    checks.open_unit("confidence", confidence)
    checks.whole("trials", trials, at_least=1)
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be from 0 to the {trials} trials, got {successes}")
    tail, failures = (1 - confidence) / 2, trials - successes
    low = special.betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, failures, 1 - tail) if failures else 1.0
    return float(low), float(high)


def _checked(name: str, scores: _Values) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"the scores of the {name} must be a list of at least one number")
    if np.isnan(values).any():
        count = int(np.isnan(values).sum())
        raise ValueError(f"{count} of {values.size} scores of the {name} are NaN, not numbers")
    return values


def _at_least(scores: Floats, thresholds: Floats) -> Ints:
    """How many scores are at or above each threshold."""
    below = np.searchsorted(np.sort(scores), thresholds, side="left")
    return (len(scores) - below).astype(np.int64)


def _half_pairs(scores: Floats, others: Floats) -> Ints:
    """For each score: twice the others below it, and once those that are equal."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    not_above = np.searchsorted(ordered, scores, side="right")
    return (below + not_above).astype(np.int64)


def _of_one_side(shares: Floats, users: _Users) -> tuple[float, int]:
    """This side's part of the AUC's variance, and its number of users."""
    if len(users) != len(shares):
        raise ValueError(
            f"units must name a user for each of the {len(shares)} scores, got {len(users)}"
        )
    clusters = np.unique(np.asarray(users), return_inverse=True)[1]
    sums = np.bincount(clusters, weights=shares - shares.mean())
    count = len(sums)
    if count < 2:
        return math.nan, count
    return float(count / (count - 1) * (sums**2).sum() / len(shares) ** 2), count
