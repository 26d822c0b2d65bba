"""What eDP-SGD costs: the events of the calibrated variant, and the noise of the printed one.

eDP-SGD (Dupuy et al. 2021, Algorithm 1) clips the mean gradient of each of N micro-batches to C.
One record can turn such a mean around, from a vector of norm C to its opposite: the sum over the
workers moves by up to 2C whatever the size of the micro-batch, under add/remove-one and under
replace-one alike.

Guarantee of `decaying_events`: let every record join a step independently with probability q and
pick its worker independently and uniformly, and let Gaussian noise of standard deviation 2C m be
added to the sum of the clipped vectors.  Then the step is dominated, under add/remove-one, by the
Poisson-sampled Gaussian of multiplier m.  Proof: condition on where all other records are.  Without
the record the noisy sum is P = N(s, (2Cm)^2 I).  With it, it is P with probability 1 - q, and with
probability q/N each it is Q_i = N(s + d_i, (2Cm)^2 I), where d_i = b_i - a_i is the difference of
two vectors of norm at most C (a_i is 0 if worker i would have had no record), so |d_i| <= 2C.
Each (1-q) P + q Q_i against P, in both directions, is dominated by the event's pair, since a
smaller shift in any direction is a randomised function of a shift by 2C on a line.  Hockey-stick
divergences are jointly convex, so the average over i is no worse, nor is the average over the
others' micro-batches, whose law is the same in both worlds.  The argument never uses that s is 0
without the record.  docs/privacy/edp-sgd.md has it in plain words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy import checks
from tacit.privacy.events import Event, NonPrivate

# Different events in one composition: enough to lose no more than about 1% of epsilon, and few
# enough for a few seconds of accounting.
GROUPS = 100

_NO_NOISE = NonPrivate("eDP-SGD without noise")


def decaying_events(
    sampler: PoissonSampler, multipliers: Sequence[float], groups: int = GROUPS
) -> list[Event]:
    """The events of steps of calibrated eDP-SGD, of at most `groups` kinds in all.

    Each multiplier is that step's noise stddev / sensitivity; see `_rounded_down` for the groups,
    and the module for the guarantee.
    """
    for step, multiplier in enumerate(multipliers):
        checks.non_negative(f"multipliers[{step}]", multiplier)
    rounded = _rounded_down(multipliers, groups).tolist()
    return [sampler.event(m) if m > 0 else _NO_NOISE for m in rounded]


def _rounded_down(multipliers: Sequence[float], groups: int) -> NDArray[np.float64]:
    """The multipliers with at most `groups` different values, none above what it was.

    Guarantee: less noise never costs less, so the rounded ones account to an upper bound.
    Neighbouring values form a group and take its least.  The groups are cut where that adds little
    to the sum of 1/m^2: for equal steps of sqrt(d(1/m^2) dn), as the best quantiser of a density
    would, which beats equal ratios because the last steps of a decay cost the most.  Up to `groups`
    different values, and zeros, stay as they are.
    """
    checks.whole("groups", groups, at_least=1)
    exact = np.asarray(multipliers, np.float64)
    positive = exact > 0
    values, index, counts = np.unique(-exact[positive], return_inverse=True, return_counts=True)
    values = -values  # falling, as they do over the steps of a decay
    if len(values) <= groups:
        return exact
    cost = (values[-1] / values) ** 2
    position = np.concatenate([[0.0], np.cumsum(np.sqrt(np.diff(cost) * counts[:-1]))])
    # Values that differ in their last bit only may cost the same; they are then one group.
    share = position / position[-1] if position[-1] > 0 else position
    group = np.minimum(np.floor(share * groups), groups - 1)
    least = values[np.searchsorted(group, group, side="right") - 1]
    rounded = exact.copy()
    rounded[positive] = least[index]
    return rounded


def effective_multiplier(
    noise_multiplier: float, workers: int, largest_scale: float = 1.0
) -> float:
    """Noise stddev / sensitivity of Algorithm 1 as printed: z / (2 sqrt(N) max alpha_k).

    Each of N workers adds y/N with y ~ N(0, (Cz)^2), and the average divides by N once more: N
    independent terms of standard deviation C z / N^2 add up to C z / N^1.5.  The average's
    sensitivity is 2C/N in the scaled space, and up to 2C max alpha_k / N where the noise is added,
    behind the rescaling.
    """
    checks.non_negative("noise_multiplier", noise_multiplier)
    checks.whole("workers", workers, at_least=1)
    checks.positive("largest_scale", largest_scale)
    return noise_multiplier / (2 * math.sqrt(workers) * largest_scale)
