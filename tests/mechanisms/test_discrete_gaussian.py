"""The sampler has the law of the discrete Gaussian, and a law close by is rejected.

Each test raises a false alarm for one seed in 10^6.  All seeds are fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.mechanisms import discrete_gaussian as sampler
from tacit.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.stream import Stream

FALSE_ALARM = 1e-6
SAMPLES = 60_000


def make_stream(seed: int = 0) -> Stream:
    return Stream(bytes([seed]) * 32)


def has_law(values: NDArray[np.int64], stddev: float) -> bool:
    """Chi-square test in about 60 cells, those of the tails merged."""
    reach, width = math.ceil(12 * stddev) + 12, max(1, round(stddev / 8))
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * stddev**2))
    probabilities = weights / weights.sum()
    cells = x // width
    low = cells.min()
    expected = np.bincount(cells - low, probabilities) * len(values)
    observed = np.bincount(np.clip(values, -reach, reach) // width - low, minlength=len(expected))
    enough = np.flatnonzero(expected > 20)
    first, last = enough[0], enough[-1]
    merged = [
        [part[: first + 1].sum(), *part[first + 1 : last], part[last:].sum()]
        for part in (observed.astype(float), expected)
    ]
    merged[1] = list(np.array(merged[1]) * (len(values) / sum(merged[1])))
    return bool(stats.chisquare(*merged).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("stddev", [0.4, 1.0, 2.5, 17.3, 728.2, 30_000.0])
def test_the_law_is_that_of_the_discrete_gaussian_and_not_that_of_another_sigma(stddev):
    # A sigma 5% off moves the statistic, of at most 60 cells, by some 2 * 60,000 * 0.05^2 = 300,
    # and the test rejects above 130.
    values = discrete_gaussian(stddev, SAMPLES, make_stream(1))
    assert has_law(values, stddev)
    assert not has_law(values, 1.05 * stddev)
    assert not has_law(values, 0.95 * stddev)


def test_a_rounded_gaussian_is_told_from_a_discrete_one():
    """Rounding adds 1/12 to the variance, which a test of sums would not see at large sigma."""
    rounded = np.rint(make_stream().normal(SAMPLES)).astype(np.int64)
    assert not has_law(rounded, 1.0)


@pytest.mark.parametrize("stddev", [0.4, 3.3, 900.5])
def test_floats_decide_as_digits_do(stddev, monkeypatch):
    fast = discrete_gaussian(stddev, 250, make_stream(2))
    monkeypatch.setattr(sampler, "_MARGIN", 2.0)  # every event is decided in digits
    assert np.array_equal(discrete_gaussian(stddev, 250, make_stream(2)), fast)


class Words:
    """A stream of chosen words."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, n: int) -> NDArray[np.uint64]:
        return np.array([self.left.pop(0) for _ in range(n)], np.uint64)


def test_an_event_that_64_bits_cannot_decide_takes_64_more():
    from decimal import Decimal, getcontext
    from fractions import Fraction

    getcontext().prec = 80
    bits = int(Decimal(-1).exp() * 2**192)
    first, second, third = bits >> 128, (bits >> 64) % 2**64, bits % 2**64
    one = Fraction(1)
    assert sampler._is_below(first - 1, one, Words())  # type: ignore[arg-type]
    assert not sampler._is_below(first + 1, one, Words())  # type: ignore[arg-type]
    assert sampler._is_below(first, one, Words(second - 1))  # type: ignore[arg-type]
    assert not sampler._is_below(first, one, Words(second + 1))  # type: ignore[arg-type]
    assert sampler._is_below(first, one, Words(second, third - 1))  # type: ignore[arg-type]
    assert not sampler._is_below(first, one, Words(second, third + 1))  # type: ignore[arg-type]
    assert sampler._is_below(2**64 - 1, Fraction(0), Words())  # type: ignore[arg-type]


@given(st.floats(0.1, 1e6), st.integers(0, 300))
def test_there_are_as_many_values_as_asked_for_and_the_same_ones_again(stddev, size):
    values = discrete_gaussian(stddev, size, make_stream(3))
    assert values.shape == (size,)
    assert values.dtype == np.int64
    assert np.array_equal(values, discrete_gaussian(stddev, size, make_stream(3)))


def test_many_values_are_independent_of_how_they_are_cut():
    """Neighbours are not correlated, across the sampler's own chunks as well."""
    values = discrete_gaussian(5.0, 150_000, make_stream(4)).astype(float)
    correlation = np.mean(values[1:] * values[:-1]) / 25
    assert abs(correlation) < 4.9 / math.sqrt(len(values))


@pytest.mark.parametrize("stddev", [0.0, -1.0, math.nan, math.inf, 2.0**41])
def test_a_sigma_that_is_none_is_refused(stddev):
    with pytest.raises(ValueError, match="stddev must be"):
        discrete_gaussian(stddev, 1, make_stream())
