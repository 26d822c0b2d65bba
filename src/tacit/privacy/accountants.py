"""Accountants: a composition of events in, epsilon or delta out.

Four accountants share one interface.  `pld` (privacy loss distributions) is the default and the
tightest, `rdp` (Renyi) is the only one for fixed-size sampling, `moments` reproduces the papers'
figures, and `zcdp` serves releases that involve everybody.  Which accountant may read which event
is decided here once and for all (`Accountant.refusal`), because an unsound pair gives a number that
looks like any other.

An event that happens with a small probability only (`Lapse`) is charged the same way by all of
them: if the rest is (epsilon, delta)-DP, then the whole is (epsilon, delta + p)-DP, where p is the
sum of the probabilities.
"""

from __future__ import annotations

import abc
import difflib
import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as library
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, logsumexp

from tacit.privacy import checks, pld
from tacit.privacy.events import (
    Adjacency,
    Composition,
    DistributedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PureDP,
    TruncatedPoissonGaussian,
)

# What each release is called, and the tightest accountant that is sound for it (design rule 1).
_SAMPLING: dict[type[Event], tuple[str, str]] = {
    PoissonGaussian: ("Poisson sampling", "pld"),
    TruncatedPoissonGaussian: ("truncated Poisson sampling", "pld"),
    FixedSizeGaussian: ("fixed-size sampling without replacement", "rdp"),
    DistributedGaussian: ("sums of discrete Gaussians", "rdp"),
}


class Accountant(abc.ABC):
    """Turns events into epsilon.  Accountants have no state: the events are the ledger's.

    Guarantee: `epsilon` and `delta` are upper bounds for every composition that is not refused.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    limit: ClassVar[str]  # the reason it gives for refusing an event
    accounts: ClassVar[tuple[type[Event], ...]]

    def refusal(self, event: Event) -> str | None:
        """Why this accountant must not account `event`, and which one may; None if it may."""
        if isinstance(event, (*self.accounts, Lapse)):
            return None
        what, instead = _SAMPLING.get(type(event), (f"events of kind {event.kind!r}", None))
        hint = f"; use the {instead} accountant" if instead else ""
        return f"the {self.name} accountant {self.limit.format(what=what)}{hint}"

    def refusal_of(self, composition: Composition) -> str | None:
        """The first reason to refuse a composition; events without any privacy need no figure."""
        for event, _ in composition.costly():
            if not isinstance(event, NonPrivate) and (reason := self.refusal(event)):
                return reason
        return None

    def epsilon(self, composition: Composition, delta: float) -> float:
        """The epsilon for which the composition is (epsilon, delta)-DP: an upper bound."""
        checks.open_unit("delta", delta)
        rest, lapses = self._split(composition)
        if not composition.is_private:
            return math.inf
        left = Fraction(delta) - lapses
        if not rest.counts:
            return 0.0 if left >= 0 else math.inf
        return self._epsilon(rest, float(left)) if left > 0 else math.inf

    def delta(self, composition: Composition, epsilon: float) -> float:
        """The delta for which the composition is (epsilon, delta)-DP: an upper bound."""
        checks.non_negative("epsilon", epsilon)
        rest, lapses = self._split(composition)
        if not composition.is_private:
            return 1.0
        delta = self._delta(rest, epsilon) if rest.counts else 0.0
        return min(1.0, float(Fraction(delta) + lapses))

    def rough(self) -> Accountant:
        """A cheaper accountant whose epsilon is never below this one's, for use in searches."""
        return self

    def _split(self, composition: Composition) -> tuple[Composition, Fraction]:
        """The events that this accountant computes, and the exact sum of the lapses.

        Raises `ValueError` for an event that it must not account, since its figure would not be
        a bound, and for events of different adjacencies.
        """
        composition.adjacency  # noqa: B018  (raises when adjacencies are mixed)
        if reason := self.refusal_of(composition):
            raise ValueError(reason)
        rest, lapses = [], Fraction(0)
        for event, count in composition.costly():
            if isinstance(event, Lapse):
                lapses += count * Fraction(event.probability)
            else:
                rest.append((event, count))
        return Composition(tuple(rest)), lapses

    @abc.abstractmethod
    def _epsilon(self, composition: Composition, delta: float) -> float: ...

    @abc.abstractmethod
    def _delta(self, composition: Composition, epsilon: float) -> float: ...


@dataclass(frozen=True)
class _PldAccountant(Accountant):
    """Privacy loss distributions (see `privacy.pld`): tight at any sampling probability.

    An upper bound within about 0.03% of the exact figure (0.001% with the precise grid).
    """

    resolution: float = pld.DEFAULT_RESOLUTION
    name = "pld"
    title = "privacy loss distribution"
    limit = "has no sound figure for {what}"
    accounts = (Gaussian, PoissonGaussian, TruncatedPoissonGaussian, PureDP)

    def rough(self) -> Accountant:
        return _PldAccountant(min(self.resolution, 5.0))

    def _epsilon(self, composition: Composition, delta: float) -> float:
        return pld.epsilon(composition, delta, self.resolution)

    def _delta(self, composition: Composition, epsilon: float) -> float:
        return pld.delta(composition, epsilon, self.resolution)


# Renyi differential privacy (Mironov 2017), computed by dp-accounting.  Two things are ours.
# First, under replace-one adjacency dp-accounting 0.6.0 takes the noise multiplier relative to the
# *replace-one* sensitivity, twice the clip norm, and does not double anything itself (its PLD
# accountant does): our events already carry that ratio, so a fixed-size mechanism with noise z*S
# reaches it as z/2.  Second, the curve of an epsilon-DP release, since the library has none.

_RENYI_ORDERS: NDArray[np.float64] = np.asarray(library.DEFAULT_RDP_ORDERS, dtype=np.float64)


class _RdpAccountant(Accountant):
    """dp-accounting's RDP curves, orders and improved conversion."""

    name = "rdp"
    title = "Renyi (dp-accounting)"
    limit = "cannot account {what}"
    accounts = (Gaussian, PoissonGaussian, FixedSizeGaussian, DistributedGaussian, PureDP)

    def _epsilon(self, composition: Composition, delta: float) -> float:
        return float(library.compute_epsilon(_RENYI_ORDERS, _rdp_curve(composition), delta)[0])

    def _delta(self, composition: Composition, epsilon: float) -> float:
        return float(library.compute_delta(_RENYI_ORDERS, _rdp_curve(composition), epsilon)[0])


def _rdp_curve(composition: Composition) -> NDArray[np.float64]:
    """The Renyi divergence of the composition at each of `_RENYI_ORDERS`."""
    adjacency = composition.adjacency
    return _total(composition, _RENYI_ORDERS, lambda event: _renyi_curve(event, adjacency))


def _total(
    composition: Composition,
    orders: NDArray[np.float64],
    curve: Callable[[Event], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """The sum of the events' curves at each order: both Renyi divergences and log moments add."""
    total = np.zeros_like(orders)
    for event, count in composition.counts:
        total += count * curve(event)
    return total


@functools.lru_cache(maxsize=256)  # curves over rounds ask for the same events again and again
def _renyi_curve(event: Event, adjacency: Adjacency | None) -> NDArray[np.float64]:
    """The Renyi divergence of one event at each order, as an array that cannot be changed."""
    if isinstance(event, PureDP):
        return _log_moments_of_response(event.epsilon, _RENYI_ORDERS - 1) / (_RENYI_ORDERS - 1)
    if isinstance(event, DistributedGaussian):
        return _RENYI_ORDERS / (2 * event.noise_multiplier**2) + event.excess
    relation = (
        dp_accounting.NeighboringRelation.REPLACE_ONE
        if adjacency is Adjacency.REPLACE
        else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = library.RdpAccountant(_RENYI_ORDERS, relation)
    with _without_warnings():
        accountant.compose(_library_event(event), 1)
    curve = np.asarray(accountant.rdp)
    curve.flags.writeable = False
    return curve


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
    """dp-accounting's name for one of our events."""
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


def _log_moments_of_response(epsilon: float, moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """log E[e^(moment L)] of randomised response, which dominates every epsilon-DP release."""
    heads = -np.logaddexp(0.0, -epsilon)  # log of e^epsilon / (1 + e^epsilon)
    gain = moments * epsilon
    return np.asarray(np.logaddexp(heads + gain, heads - epsilon - gain))


# The moments accountant of Abadi et al. 2016, as McMahan et al. 2018 used it.  It is kept because
# the papers' figures need it and no library has it any more.  `rdp` is never worse, and `pld` is
# far better at small q, where 32 moments leave a floor of log(1/delta)/32 on epsilon.

_MOMENTS: NDArray[np.float64] = np.arange(1, 33, dtype=np.float64)


class _MomentsAccountant(Accountant):
    """Integer moments lambda = 1..32 with the classic conversion.

    Moments alpha(lambda) of rounds add, and
    epsilon = min over lambda of (alpha(lambda) + log 1/delta) / lambda.
    """

    name = "moments"
    title = "moments (Abadi et al. 2016)"
    limit = "assumes Poisson sampling, so it cannot account {what}"
    accounts = (Gaussian, PoissonGaussian, PureDP)

    def _epsilon(self, composition: Composition, delta: float) -> float:
        return max(
            float(
                np.min((_total(composition, _MOMENTS, _log_moments) - math.log(delta)) / _MOMENTS)
            ),
            0.0,
        )

    def _delta(self, composition: Composition, epsilon: float) -> float:
        log_delta = float(np.min(_total(composition, _MOMENTS, _log_moments) - _MOMENTS * epsilon))
        return min(math.exp(min(log_delta, 0.0)), 1.0)


def _log_moments(event: Event) -> NDArray[np.float64]:
    """The log moments alpha(lambda) of one event's privacy loss, for lambda = 1..32.

    For a Gaussian with multiplier z on a Poisson sample,

        alpha(lambda) = log E_{x ~ mixture} [(mixture / base)^lambda]
                      = log sum_{k=0}^n C(n, k) (1-q)^{n-k} q^k e^{k(k-1)/(2 z^2)},  n = lambda + 1

    (the other direction is never larger: Mironov et al. 2019, section 3.1).
    """
    match event:
        case PureDP(epsilon=epsilon):
            return _log_moments_of_response(epsilon, _MOMENTS)
        case Gaussian(noise_multiplier=z):
            return _MOMENTS * (_MOMENTS + 1) / (2 * z * z)
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z) if q == 1:
            return _MOMENTS * (_MOMENTS + 1) / (2 * z * z)
        case PoissonGaussian(sampling_prob=q, noise_multiplier=z):
            n = _MOMENTS[:, None] + 1
            k = np.arange(0, 34, dtype=np.float64)[None, :]
            inside = k <= n
            rest = np.where(inside, n - k, 0.0)
            terms = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
            terms += rest * math.log1p(-q) + k * math.log(q) + k * (k - 1) / (2 * z * z)
            return np.asarray(logsumexp(np.where(inside, terms, -np.inf), axis=1))
    raise ValueError(f"the moments of {event!r} are not known")


class _ZcdpAccountant(Accountant):
    """Zero-concentrated DP (Bun and Steinke 2016): one number, rho, that simply adds.

    The conversion is that of Canonne, Kamath and Steinke 2020, the least over alpha > 1 of

        epsilon = rho alpha + log(1/(alpha delta)) / (alpha - 1) + log(1 - 1/alpha).

    zCDP gains nothing from sampling, so events with a sampling claim are refused.
    """

    name = "zcdp"
    title = "zCDP (Bun and Steinke 2016)"
    limit = "has no amplification by sampling, so it is refused under a sampling claim"
    accounts = (Gaussian, DistributedGaussian, PureDP)

    def _epsilon(self, composition: Composition, delta: float) -> float:
        rho = _rho(composition)

        def epsilon(alpha: float) -> float:
            conversion = -math.log(alpha * delta) / (alpha - 1) + math.log1p(-1 / alpha)
            return rho * alpha + conversion

        return max(_least(epsilon), 0.0)

    def _delta(self, composition: Composition, epsilon: float) -> float:
        rho = _rho(composition)

        def log_delta(alpha: float) -> float:
            exponent = rho * alpha - epsilon + math.log1p(-1 / alpha)
            return (alpha - 1) * exponent - math.log(alpha)

        return min(math.exp(min(_least(log_delta), 0.0)), 1.0)


def _rho(composition: Composition) -> float:
    """rho of the composition: 1/(2 m^2) for a Gaussian, epsilon^2/2 for an epsilon-DP release.

    The excess of a sum of discrete Gaussians counts as rho, since alpha is above 1.
    """
    total = 0.0
    for event, count in composition.counts:
        match event:
            case Gaussian(noise_multiplier=m):
                total += count / (2 * m * m)
            case DistributedGaussian(noise_multiplier=m, excess=excess):
                total += count * (1 / (2 * m * m) + excess)
            case PureDP(epsilon=epsilon):
                total += count * epsilon**2 / 2
            case _:
                raise ValueError(f"the rho of {event!r} is not known")
    return total


def _least(objective: Callable[[float], float]) -> float:
    """The least value over alpha > 1; any alpha gives a bound, so an inexact one is still sound."""
    minimum = minimize_scalar(
        lambda log_gap: objective(1 + math.exp(log_gap)),
        bounds=(math.log(1e-6), math.log(1e8)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(minimum.fun)


# Tightest first, which is also the one that takes longest first.
_ACCOUNTANTS: dict[str, type[Accountant]] = {
    each.name: each
    for each in (_PldAccountant, _RdpAccountant, _MomentsAccountant, _ZcdpAccountant)
}
NAMES: tuple[str, ...] = tuple(_ACCOUNTANTS)


def accountant_named(name: str, *, precise: bool = False) -> Accountant:
    """The accountant of that name; `precise` gives pld its finest grid."""
    if name == "pld" and precise:
        return _PldAccountant(pld.PRECISE_RESOLUTION)
    if name in _ACCOUNTANTS:
        return _ACCOUNTANTS[name]()
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"accountant must be one of {', '.join(NAMES)}, got {name!r}{hint}")


def sound_accountants(
    composition: Composition, *, precise: bool = False
) -> tuple[list[Accountant], dict[str, str]]:
    """The accountants that may account the composition, tightest first, and why others may not."""
    accountants = [accountant_named(name, precise=precise) for name in NAMES]
    refused = {one.name: why for one in accountants if (why := one.refusal_of(composition))}
    return [one for one in accountants if one.name not in refused], refused


def default_accountant(composition: Composition, *, precise: bool = False) -> Accountant:
    """The tightest accountant that is sound for the composition."""
    return sound_accountants(composition, precise=precise)[0][0]
