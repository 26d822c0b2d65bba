import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from tacit.audit.one_shot import (
    _epsilon_between_normals,
    _log_hockey_stick,
    _normality_p_value,
    estimate_one_shot,
)
from tacit.privacy.pld import gaussian_epsilon

DELTA = 1e-6
FIGURES = [(4.22, 1), (1.54, 3), (0.541, 10)]


def released_cosines(dimension, canaries, noise, rng):
    """The cosines of all canaries with (their sum + noise), exactly in law.

    Rotated so that the i-th direction lies in the first i coordinates (Bartlett's decomposition),
    k random directions of d dimensions take k^2/2 numbers rather than k d.
    """
    directions = np.tril(rng.standard_normal((canaries, canaries), np.float32), -1)
    own = np.sqrt(rng.chisquare(dimension - np.arange(canaries)))
    directions[np.diag_indices(canaries)] = own
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    release = directions.sum(0) + noise * rng.standard_normal(canaries)
    beyond = noise**2 * rng.chisquare(dimension - canaries)
    return directions @ release / math.sqrt(release @ release + beyond)


@pytest.mark.parametrize(("noise", "epsilon"), FIGURES)
def test_a_normal_law_moved_by_one_over_z_has_the_published_epsilon(noise, epsilon):
    assert _epsilon_between_normals(1 / noise, 1.0, DELTA) == pytest.approx(epsilon, rel=0.003)


@pytest.mark.parametrize(
    ("noise", "epsilon", "runs"),
    [
        pytest.param(4.22, 1, 100, marks=pytest.mark.slow),
        (1.54, 3, 30),
        (0.541, 10, 10),
    ],
)
def test_estimates_of_the_gaussian_mechanism_are_right_in_the_mean(noise, epsilon, runs):
    """A million dimensions and 1,000 canaries.

    One estimate has a standard deviation of 19%, 9% and 3.4%, so that the mean of so many is within
    10% with 5 standard errors to spare; that of half of the noise is far outside.
    """
    rng = np.random.default_rng(1)

    def mean_estimate(noise, runs):
        drawn = (released_cosines(10**6, 1000, noise, rng) for _ in range(runs))
        return np.mean([estimate_one_shot(run, 10**6, DELTA).estimate for run in drawn])

    assert mean_estimate(noise, runs) == pytest.approx(epsilon, rel=0.1)
    assert mean_estimate(noise / 2, 3) > 1.5 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "epsilon"), FIGURES)
def test_one_estimate_with_many_canaries_is_within_a_tenth(noise, epsilon):
    """Its standard error is 4.4% at epsilon = 1, where it is largest."""
    run = released_cosines(10**8, 10_000, noise, np.random.default_rng(2))
    found = estimate_one_shot(run, 10**8, DELTA)
    assert found.estimate == pytest.approx(epsilon, rel=0.1)
    assert found.is_normal
    assert not found.uses_fitted_deviation


def test_the_short_cut_of_these_tests_has_the_law_of_the_literal_mechanism():
    """Means over 30 releases, by whole vectors and by rotated ones, within 4 standard errors."""
    rng = np.random.default_rng(3)
    d, k, noise = 2000, 50, 1.54
    expected = math.sqrt(d / (k + noise**2 * d))

    def literal():
        directions = rng.standard_normal((k, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        release = directions.sum(0) + noise * rng.standard_normal(d)
        return directions @ release / np.linalg.norm(release)

    for draw in (literal, lambda: released_cosines(d, k, noise, rng)):
        scaled = np.concatenate([draw() for _ in range(30)]) * math.sqrt(d)
        assert scaled.mean() == pytest.approx(expected, abs=4 / math.sqrt(1500))
        assert scaled.std() == pytest.approx(1, abs=4 / math.sqrt(3000))


def test_canaries_that_took_no_part_give_next_to_nothing():
    rng = np.random.default_rng(4)
    found = [estimate_one_shot(rng.normal(0, 0.001, 1000), 10**6, DELTA) for _ in range(50)]
    assert np.median([one.estimate for one in found]) < 0.2


def test_the_fitted_deviation_alone_overrates_a_small_epsilon():
    """Why the null law's deviation is used unless the data speak against it."""
    rng = np.random.default_rng(5)
    found = [
        estimate_one_shot(rng.normal(1 / 4.22, 1, 1000) / 1000, 10**6, DELTA) for _ in range(60)
    ]
    assert np.mean([one.fitted_estimate for one in found]) > 1.25
    assert np.mean([one.estimate for one in found]) == pytest.approx(1, rel=0.1)


def test_a_spread_that_is_not_that_of_the_null_law_counts():
    rng = np.random.default_rng(6)
    found = estimate_one_shot(rng.normal(0.5, 1.3, 1000) / 1000, 10**6, DELTA)
    assert found.uses_fitted_deviation
    assert found.estimate == found.fitted_estimate
    assert found.estimate > _epsilon_between_normals(found.mean, 1.0, DELTA) + 1
    assert found.deviation == pytest.approx(1.3, rel=0.1)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize(
    ("mean", "deviation"), [(1.0, 1.0), (-1.5, 1.0), (0.4, 1.3), (0.4, 0.8), (0.0, 2.0), (2.0, 0.1)]
)
def test_the_closed_form_is_the_integral(mean, deviation, epsilon):
    def excess(y):
        first = math.exp(-(((y - mean) / deviation) ** 2) / 2) / deviation
        return max(first - math.exp(epsilon - y * y / 2), 0.0) / math.sqrt(2 * math.pi)

    pieces = pairwise(np.linspace(-14, 14, 57))
    expected = sum(quad(excess, low, high, limit=200)[0] for low, high in pieces)
    found = math.exp(_log_hockey_stick(mean, deviation, epsilon))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)


@given(mean=st.floats(0.01, 8), delta=st.sampled_from([1e-9, 1e-5, 0.01]))
def test_with_equal_deviations_it_is_the_gaussian_mechanism(mean, delta):
    expected = gaussian_epsilon(mean, delta)
    assert _epsilon_between_normals(mean, 1.0, delta) == pytest.approx(expected, abs=1e-7)
    assert _epsilon_between_normals(-mean, 1.0, delta) == pytest.approx(expected, abs=1e-7)


@settings(deadline=None)
@given(mean=st.floats(-5, 5), deviation=st.floats(0.3, 3))
def test_which_of_the_two_laws_is_the_null_makes_no_difference(mean, deviation):
    forth = _epsilon_between_normals(mean, deviation, DELTA)
    back = _epsilon_between_normals(-mean / deviation, 1 / deviation, DELTA)
    assert forth == pytest.approx(back, rel=1e-6, abs=1e-6)


@given(mean=st.floats(0.1, 5), sign=st.sampled_from([-1, 1]))
def test_deviations_that_are_all_but_equal_change_nothing(mean, sign):
    expected = _epsilon_between_normals(mean, 1.0, DELTA)
    found = _epsilon_between_normals(mean, 1.0 + sign * 1e-12, DELTA)
    assert found == pytest.approx(expected, abs=1e-6)


def test_equal_laws_cost_nothing_and_far_ones_a_lot():
    assert _epsilon_between_normals(0.0, 1.0, DELTA) == 0
    assert _epsilon_between_normals(1000.0, 1.0, DELTA) > 400_000


def test_the_normality_test_has_its_level_and_finds_what_is_not_normal():
    rng = np.random.default_rng(7)

    def p_value(values):
        return _normality_p_value((values - values.mean()) / values.std(ddof=1))

    normal = np.array([p_value(rng.normal(size=150)) for _ in range(2000)])
    for level in (0.01, 0.05, 0.25, 0.5, 0.75):
        margin = 4 * math.sqrt(level * (1 - level) / 2000) + 0.005
        assert abs(np.mean(normal < level) - level) < margin
    assert p_value(rng.exponential(size=150)) < 1e-6
    two = np.r_[rng.normal(0, 1, 100), rng.normal(5, 1, 100)]
    assert p_value(two) < 1e-6


def test_cosines_that_are_not_normal_are_reported():
    rng = np.random.default_rng(8)
    some_drawn = np.r_[rng.normal(0, 1, 200), rng.normal(8, 1, 50)] / 1000
    found = estimate_one_shot(some_drawn, 10**6, DELTA)
    assert not found.is_normal
    assert found.normality_p < 1e-6


@pytest.mark.parametrize(
    ("cosines", "degrees", "delta", "message"),
    [
        (np.zeros(7), 100, DELTA, "at least 8"),
        (np.zeros((8, 2)), 100, DELTA, "must be a vector"),
        (np.zeros(9), 100, DELTA, "must not all be equal"),
        (np.full(9, 1.1), 100, DELTA, "between -1 and 1"),
        (np.full(9, np.nan), 100, DELTA, "between -1 and 1"),
        (np.linspace(0, 0.1, 9), 1, DELTA, "degrees must be at least 2, got 1"),
        (np.linspace(0, 0.1, 9), 100, 0.0, "delta must be strictly between 0 and 1, got 0"),
    ],
    ids=["few", "matrix", "equal", "large", "nan", "degrees", "delta"],
)
def test_bad_input_is_refused(cosines, degrees, delta, message):
    with pytest.raises(ValueError, match=message):
        estimate_one_shot(cosines, degrees, delta)


@pytest.mark.parametrize(("mean", "deviation"), [(math.nan, 1.0), (0.0, 0.0), (0.0, math.inf)])
def test_laws_that_are_none_are_refused(mean, deviation):
    with pytest.raises(ValueError, match="must be a finite number"):
        _epsilon_between_normals(mean, deviation, DELTA)
