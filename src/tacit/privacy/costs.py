"""Epsilon and noise of a training of one's own, in one call each: `tacit.epsilon` and its inverse.

Both are for the mechanism of Algorithm 1 of McMahan et al. 2018 and of DP-SGD: in each of T rounds
every user (or record) is sampled independently with probability q, contributions are clipped, and
Gaussian noise of z times the sensitivity is added to their sum.
"""

from __future__ import annotations

import math

from tacit.privacy import calibration, checks
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, Gaussian, PoissonGaussian


def epsilon(
    *,
    sampling_prob: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    accountant: str = "pld",
) -> float:
    """The epsilon, at this delta, of rounds of Poisson-sampled Gaussian noise.

    Args:
        sampling_prob: q, the probability with which each user takes part in a round; 1 for all.
        noise_multiplier: z, the noise's standard deviation over the sensitivity; 0 for no noise,
            which gives infinity.
        rounds: T, how often a cohort is drawn and its noisy sum released.
        delta: should be well below 1 over the number of users.
        accountant: "pld" (the tightest), "rdp", or "moments" (of the papers' figures).  "zcdp"
            takes q = 1 only.

    Guarantee: an upper bound, under adding or removing one user.  It holds for a training that
    samples as described; shuffled or fixed-size batches are another mechanism.
    """
    by = accountant_named(accountant)
    checks.whole("rounds", rounds)
    if checks.non_negative("noise_multiplier", noise_multiplier) == 0:
        checks.probability("sampling_prob", sampling_prob)
        checks.open_unit("delta", delta)
        return math.inf if rounds else 0.0
    return by.epsilon(_releases(sampling_prob, noise_multiplier, rounds), delta)


def noise_multiplier(
    *,
    sampling_prob: float,
    epsilon: float,
    rounds: int,
    delta: float,
    accountant: str = "pld",
) -> float:
    """The least noise multiplier z at which the rounds cost no more than epsilon, to 0.1% of it.

    The arguments are those of `tacit.epsilon`, whose inverse this is: the epsilon of what is
    returned is at most the one that was asked for.  `ValueError` if no noise reaches it.
    """
    checks.whole("rounds", rounds, at_least=1)
    checks.positive("epsilon", epsilon)
    return calibration.noise_for_epsilon(
        lambda z: _releases(sampling_prob, z, rounds),
        delta=delta,
        target_epsilon=epsilon,
        accountant=accountant_named(accountant),
    )


def _releases(sampling_prob: float, noise_multiplier: float, rounds: int) -> Composition:
    if sampling_prob == 1:  # nothing is sampled, and accountants know closed forms
        return Composition.of([(Gaussian(noise_multiplier), rounds)])
    return Composition.of([(PoissonGaussian(sampling_prob, noise_multiplier), rounds)])
