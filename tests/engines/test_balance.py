"""Who computes whom: everybody once, evenly, and the same for all who ask."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines.engine import balance

costs = st.lists(st.integers(0, 2000), max_size=40)


@given(costs, st.integers(1, 9))
def test_every_place_is_in_one_part_and_no_part_is_far_above_the_mean(costs, parts):
    found = balance(costs, parts)
    assert len(found) == parts
    assert sorted(itertools.chain(*found)) == list(range(len(costs)))
    assert all(part == sorted(part) for part in found)
    heaviest = max(sum(costs[place] for place in part) for part in found)
    assert heaviest <= sum(costs) / parts + max(costs, default=0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_heaviest_part_is_within_grahams_bound_of_the_best(costs, parts):
    best = min(
        max(
            sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == part)
            for part in range(parts)
        )
        for owners in itertools.product(range(parts), repeat=len(costs))
    )
    heaviest = max(sum(costs[place] for place in part) for part in balance(costs, parts))
    assert heaviest <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


def test_equal_users_are_dealt_in_turn():
    assert balance([5] * 5, 2) == [[0, 2, 4], [1, 3]]


def test_more_parts_than_users_leaves_some_empty():
    assert balance([3, 9], 4) == [[1], [0], [], []]
    assert balance([], 2) == [[], []]


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="parts must be at least 1, got 0"):
        balance([1], 0)
