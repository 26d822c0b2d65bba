"""Sums of discrete Gaussians cost at most what accountants say, by brute force in one dimension."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from tacit.privacy import discrete_sums
from tacit.privacy.accountants import accountant_named, sound_accountants
from tacit.privacy.events import (
    Adjacency,
    Composition,
    DistributedGaussian,
    Event,
    Gaussian,
    TurnsDistributedGaussian,
)
from tacit.privacy.records import canonical_json

CASES = [(1.0, 1), (1.0, 2), (1.0, 3), (1.0, 10), (1.3, 4), (3.0, 5)]
Law = NDArray[np.float64]


def law(stddev: float, shares: int) -> Law:
    """Probabilities of the sum, 0 in the middle, by convolution; tails of 10^-146 are cut."""
    x = np.arange(-math.ceil(26 * stddev), math.ceil(26 * stddev) + 1)
    one = np.exp(-(x**2) / (2 * stddev**2))
    one /= one.sum()
    total = np.ones(1)
    for _ in range(shares):
        total = np.convolve(total, one)
    return total


def shifted(stddev: float, shares: int, by: int) -> tuple[Law, Law]:
    """The laws of the sum and of the sum plus `by`, on the same values."""
    here = law(stddev, shares)
    return np.pad(here, (0, by)), np.pad(here, (by, 0))


def exact_delta(stddev: float, shares: int, by: int, epsilon: float) -> float:
    one, other = shifted(stddev, shares, by)
    return float(np.maximum(0.0, one - math.exp(epsilon) * other).sum())


def event(stddev: float, shares: int, by: int = 1, coordinates: int = 1) -> DistributedGaussian:
    return DistributedGaussian(shares, stddev, by, coordinates)


@pytest.mark.parametrize(("stddev", "shares"), CASES)
def test_the_excess_bounds_how_far_a_sum_is_from_a_discrete_gaussian(stddev, shares):
    total = law(stddev, shares)
    x = np.arange(len(total)) - len(total) // 2
    variance = shares * stddev**2
    inside = np.abs(x) < 6 * math.sqrt(variance)  # where doubles are exact to 10^-12
    ratio = np.log(total[inside]) + x[inside] ** 2 / (2 * variance)
    assert np.ptp(ratio) <= discrete_sums.excess(stddev, shares) + 1e-11


def test_the_excess_of_two_shares_is_tight():
    x = np.arange(-5, 6)
    ratio = np.log(law(1.0, 2)[52 - 5 : 52 + 6]) + x**2 / 4
    assert np.ptp(ratio) == pytest.approx(discrete_sums.excess(1.0, 2), rel=1e-3)


@pytest.mark.parametrize(("stddev", "shares"), CASES)
@pytest.mark.parametrize("by", [1, 2, 5])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 4.0, 8.0])
def test_the_divergence_of_a_shifted_sum_is_within_the_bound(stddev, shares, by, alpha):
    one, other = shifted(stddev, shares, by)
    both = (one > 0) & (other > 0)
    logs = alpha * np.log(one[both]) + (1 - alpha) * np.log(other[both])
    divergence = float(logsumexp(logs)) / (alpha - 1)
    released = event(stddev, shares, by)
    bound = alpha / (2 * released.noise_multiplier**2) + released.excess
    assert divergence <= bound + 1e-12


def test_a_gaussians_divergence_alone_would_be_no_bound():
    one, other = shifted(1.0, 10, 2)
    both = (one > 0) & (other > 0)
    divergence = float(logsumexp(2 * np.log(one[both]) - np.log(other[both])))
    assert divergence > 2 * 2**2 / (2 * 10) + 1e-8


@pytest.mark.parametrize("name", ["rdp", "zcdp"])
@pytest.mark.parametrize(("stddev", "shares"), CASES)
@pytest.mark.parametrize("by", [1, 3])
def test_epsilon_is_never_below_the_exact_one(name, stddev, shares, by):
    composition = Composition.of([event(stddev, shares, by)])
    for delta in (1e-2, 1e-4, 1e-6, 1e-9):
        epsilon = accountant_named(name).epsilon(composition, delta)
        assert exact_delta(stddev, shares, by, epsilon) <= delta
        assert accountant_named(name).delta(composition, epsilon) <= delta * (1 + 1e-6)


def test_the_loss_distribution_of_a_gaussian_would_understate_and_is_refused():
    """At epsilon 3.65 two shares of deviation 1 have a delta 1.5 times that of a Gaussian."""
    epsilon, ratio = 3.65, math.sqrt(2)  # of deviation to shift
    gaussian = norm.cdf(0.5 / ratio - epsilon * ratio) - math.exp(epsilon) * norm.cdf(
        -0.5 / ratio - epsilon * ratio
    )
    assert exact_delta(1.0, 2, 1, epsilon) > 1.5 * gaussian
    composition = Composition.of([event(1.0, 2)])
    accountants, refused = sound_accountants(composition)
    assert [one.name for one in accountants] == ["rdp", "zcdp"]
    assert "sums of discrete Gaussians; use the rdp accountant" in refused["pld"]
    with pytest.raises(ValueError, match="has no sound figure for sums of discrete Gaussians"):
        accountant_named("pld").epsilon(composition, 1e-6)


@pytest.mark.parametrize("name", ["rdp", "zcdp"])
def test_coarse_noise_costs_what_a_gaussian_costs_and_fine_noise_more(name):
    account = accountant_named(name)
    coarse = event(50.0, 100, 500, coordinates=10**6)
    same = Gaussian(coarse.noise_multiplier, Adjacency.ZERO_OUT)
    assert coarse.noise_multiplier == 1.0
    epsilons = [account.epsilon(Composition.of([(one, 7)]), 1e-6) for one in (coarse, same)]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-12)
    fine = event(1.0, 100, 10, coordinates=10**6)
    assert account.epsilon(Composition.of([fine]), 1e-6) > 200


def test_the_excess_grows_with_shares_and_falls_with_their_noise():
    excess = [discrete_sums.excess(1.0, shares) for shares in (1, 2, 5, 100, 10**6)]
    assert excess == sorted(excess)
    assert excess[0] == 0
    by_noise = [discrete_sums.excess(stddev, 50) for stddev in (1.0, 1.5, 2.0, 4.0, 100.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert 0 < by_noise[-1] < 1e-200  # never nothing


def turns(each: DistributedGaussian, rounds: int, **changed: object) -> TurnsDistributedGaussian:
    facts = {
        "horizon": "main",
        "rounds": rounds,
        "separation": 10,
        "noise": "independent",
        "noise_multiplier": each.noise_multiplier,
        "each": each,
    }
    return TurnsDistributedGaussian(**(facts | changed))  # type: ignore[arg-type]


def test_turns_cost_what_each_users_turns_cost():
    each = event(50.0, 100, 500, coordinates=1000)
    charged = [turns(each, rounds) for rounds in (1, 11, 25)]
    assert Composition.of(charged).counts == ((each, 3),)
    assert charged[-1].adjacency is Adjacency.ZERO_OUT


@pytest.mark.parametrize("one", [event(2.0, 7, 3, 100), turns(event(2.0, 7, 3, 100), 5)])
def test_events_survive_json(one):
    assert Event.from_json(json.loads(canonical_json(one.to_json()))) == one


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: event(0.9, 5), "share_stddev must be at least 1 steps of the grid"),
        (lambda: event(math.nan, 5), "share_stddev"),
        (lambda: event(2.0, 0), "shares must be at least 1, got 0"),
        (lambda: event(2.0, 10**6 + 1), "shares must be at most 1,000,000, got 1,000,001"),
        (lambda: event(2.0, 5, 0), "sensitivity must be a finite number above 0"),
        (lambda: event(2.0, 5, 1, 0), "coordinates must be at least 1"),
        (
            lambda: DistributedGaussian(5, 2.0, 1.0, 1, Adjacency.ADD_REMOVE),
            "whoever leaves takes a share of the noise along",
        ),
        (
            lambda: turns(event(2.0, 5), 1, noise_multiplier=9.0),
            "noise_multiplier must be that of each turn",
        ),
        (
            lambda: Composition.of([event(2.0, 5), Gaussian(1.0)]).adjacency,
            "the events mix",
        ),
    ],
)
def test_events_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
