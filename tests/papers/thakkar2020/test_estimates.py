"""Means and intervals: known figures, and the coverage that they promise."""

import numpy as np
import pytest
from scipy import stats

from tacit_papers.thakkar2020.estimates import estimate


def test_a_known_case():
    found = estimate({0: [("a", 1.0), ("a", 3.0)], 1: [("a", 2.0), ("a", 6.0)]})
    assert found.mean == 3.0
    assert (found.count, found.seeds) == (4, 2)
    # The seeds' means are 2 and 4: a standard error of 1, times t(0.975, 1) = 12.7062.
    assert found.over_seeds == pytest.approx((3 - 12.7062, 3 + 12.7062), abs=1e-3)
    # (1/2)^2 2/2 + (1/2)^2 8/2 = 1.25; its degrees of freedom are 1.25^2 / (0.25^2 + 1) = 1.4706.
    half = stats.t.ppf(0.975, 1.25**2 / (0.25**2 + 1)) * 1.25**0.5
    assert found.over_canaries == pytest.approx((3 - half, 3 + half), abs=1e-5)


def test_the_spread_between_cells_is_not_counted():
    found = estimate({0: [("few", 1.0), ("few", 1.0), ("many", 30.0), ("many", 30.0)]})
    assert found.mean == 15.5
    assert found.over_canaries == (15.5, 15.5)


def test_one_seed_has_no_interval_over_seeds():
    assert estimate({0: [("a", 1.0), ("a", 2.0)]}).over_seeds is None


def test_a_cell_of_one_canary_has_no_interval_over_canaries():
    assert estimate({0: [("a", 1.0), ("b", 2.0)], 1: [("a", 1.0)]}).over_canaries is None


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="no values"):
        estimate({0: []})


@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.0), (3, 2.0)])
def test_intervals_cover_what_they_say(seeds, spread):
    """600 repetitions: 95% within 4 standard errors (3.6 points) of the rate, and a rate of 90%
    would be noticed.  Where seeds differ, the interval over canaries must fail to cover the mean
    of all seeds: it does not promise to."""
    rng = np.random.default_rng(0)
    hits = {"canaries": 0, "seeds": 0}
    for _ in range(600):
        shifts = rng.normal(0, spread, seeds)
        values = {
            seed: [
                (cell, 10.0 * cell + shifts[seed] + rng.normal())
                for cell in (0, 1)
                for _ in range(25)
            ]
            for seed in range(seeds)
        }
        found = estimate(values)
        hits["canaries"] += found.over_canaries[0] <= 5.0 <= found.over_canaries[1]
        hits["seeds"] += found.over_seeds[0] <= 5.0 <= found.over_seeds[1]
    assert hits["seeds"] / 600 == pytest.approx(0.95, abs=0.036)
    if spread:
        assert hits["canaries"] / 600 < 0.5
    else:
        assert hits["canaries"] / 600 == pytest.approx(0.945, abs=0.038)
