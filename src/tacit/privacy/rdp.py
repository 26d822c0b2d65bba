"""Renyi differential privacy (Mironov 2017), computed by dp-accounting.

Two things are ours.  First, under replace-one adjacency dp-accounting 0.6.0 takes the noise
multiplier relative to the *replace-one* sensitivity, twice the clip norm, and does not double
anything itself (its PLD accountant does): our events already carry that ratio, so a fixed-size
mechanism with noise z*S reaches it as z/2.  Second, the curve of an epsilon-DP release, because
the library has no event for one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as library
from numpy.typing import NDArray

from tacit.privacy.accountant import Accountant
from tacit.privacy.events import (
    Adjacency,
    Composition,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PureDP,
)

ORDERS: NDArray[np.float64] = np.asarray(library.DEFAULT_RDP_ORDERS, dtype=np.float64)


class RdpAccountant(Accountant):
    """dp-accounting's RDP curves, orders and improved conversion."""

    name: ClassVar[str] = "rdp"
    title: ClassVar[str] = "Renyi (dp-accounting)"
    limit: ClassVar[str] = "cannot account {what}"
    accounts: ClassVar[tuple[type[Event], ...]] = (
        Gaussian,
        PoissonGaussian,
        FixedSizeGaussian,
        PureDP,
    )

    def _epsilon(self, composition: Composition, delta: float) -> float:
        return float(library.compute_epsilon(ORDERS, rdp_curve(composition), delta)[0])

    def _delta(self, composition: Composition, epsilon: float) -> float:
        return float(library.compute_delta(ORDERS, rdp_curve(composition), epsilon)[0])


def rdp_curve(composition: Composition) -> NDArray[np.float64]:
    """The Renyi divergence of the composition at each of `ORDERS`."""
    total = np.zeros_like(ORDERS)
    for event, count in composition.counts:
        total += count * _curve(event, composition.adjacency)
    return total


@functools.lru_cache(maxsize=256)  # curves over rounds ask for the same events again and again
def _curve(event: Event, adjacency: Adjacency | None) -> NDArray[np.float64]:
    """Of one event; not to be changed by the caller."""
    if isinstance(event, PureDP):
        return _pure_dp_curve(event.epsilon)
    relation = (
        dp_accounting.NeighboringRelation.REPLACE_ONE
        if adjacency is Adjacency.REPLACE
        else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = library.RdpAccountant(ORDERS, relation)
    with _without_warnings():
        accountant.compose(_library_event(event), 1)
    found = np.asarray(accountant.rdp)
    found.flags.writeable = False
    return found


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The library warns of each order that it leaves out, which only makes epsilon larger."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _library_event(event: Event) -> dp_accounting.DpEvent:
    match event:
        case Gaussian(noise_multiplier=z):
            return dp_accounting.GaussianDpEvent(float(z))
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z):
            return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(float(z)))
        case FixedSizeGaussian(population=population, cohort=cohort, noise_multiplier=z):
            return dp_accounting.SampledWithoutReplacementDpEvent(
                population, cohort, dp_accounting.GaussianDpEvent(float(z))
            )
    raise ValueError(f"dp-accounting has no RDP event for {event!r}")


def _pure_dp_curve(epsilon: float) -> NDArray[np.float64]:
    """Randomised response dominates every epsilon-DP release; its divergence is a closed form."""
    heads = -np.logaddexp(0.0, -epsilon)  # log of e^epsilon / (1 + e^epsilon)
    gain = (ORDERS - 1) * epsilon
    return np.asarray(np.logaddexp(heads + gain, heads - epsilon - gain) / (ORDERS - 1))
