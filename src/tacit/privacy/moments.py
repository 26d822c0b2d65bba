"""The moments accountant of Abadi et al. 2016, as McMahan et al. 2018 used it.

The log moment of the privacy loss of a Gaussian with multiplier z on a Poisson sample is

    alpha(lambda) = log E_{x ~ mixture} [(mixture / base)^lambda]
                  = log sum_{k=0}^n C(n, k) (1-q)^{n-k} q^k e^{k(k-1)/(2 z^2)},  n = lambda + 1

(the other direction is never larger: Mironov et al. 2019, section 3.1).  Moments of rounds add,
and epsilon = min over lambda of (alpha(lambda) + log 1/delta) / lambda, lambda = 1..32.

Kept because the papers' figures need it and no library has it any more.  The `rdp` accountant is
never worse and `pld` is far better at small q, where the 32 moments leave a floor of
log(1/delta)/32 on epsilon, however little was done.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from tacit.privacy.accountant import Accountant
from tacit.privacy.events import (
    Composition,
    Event,
    Gaussian,
    PoissonGaussian,
    PureDP,
)

ORDERS: NDArray[np.float64] = np.arange(1, 33, dtype=np.float64)


class MomentsAccountant(Accountant):
    """Integer moments up to 32 with the classic conversion."""

    name: ClassVar[str] = "moments"
    title: ClassVar[str] = "moments (Abadi et al. 2016)"
    limit: ClassVar[str] = "assumes Poisson sampling, so it cannot account {what}"
    accounts: ClassVar[tuple[type[Event], ...]] = (Gaussian, PoissonGaussian, PureDP)

    def _epsilon(self, composition: Composition, delta: float) -> float:
        moments = self._moments(composition)
        return max(float(np.min((moments - math.log(delta)) / ORDERS)), 0.0)

    def _delta(self, composition: Composition, epsilon: float) -> float:
        moments = self._moments(composition)
        return min(math.exp(min(float(np.min(moments - ORDERS * epsilon)), 0.0)), 1.0)

    def _moments(self, composition: Composition) -> NDArray[np.float64]:
        total = np.zeros_like(ORDERS)
        for event, count in composition.counts:
            total += count * log_moments(event)
        return total


def log_moments(event: Event) -> NDArray[np.float64]:
    """alpha(lambda) of one event, for lambda = 1..32."""
    match event:
        case PureDP(epsilon=epsilon):
            heads = -np.logaddexp(0.0, -epsilon)  # log of e^epsilon / (1 + e^epsilon)
            gain = ORDERS * epsilon
            return np.asarray(np.logaddexp(heads + gain, heads - epsilon - gain))
        case Gaussian(noise_multiplier=z):
            return ORDERS * (ORDERS + 1) / (2 * z * z)
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z) if q == 1:
            return ORDERS * (ORDERS + 1) / (2 * z * z)
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z):
            n = ORDERS[:, None] + 1
            k = np.arange(0, 34, dtype=np.float64)[None, :]
            inside = k <= n
            rest = np.where(inside, n - k, 0.0)
            terms = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
            terms += rest * math.log1p(-q) + k * math.log(q) + k * (k - 1) / (2 * z * z)
            return np.asarray(logsumexp(np.where(inside, terms, -np.inf), axis=1))
    raise ValueError(f"the moments of {event!r} are not known")
