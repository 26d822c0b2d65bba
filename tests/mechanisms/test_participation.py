"""How often one user can take part."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.participation import Participation


@given(st.integers(1, 8), st.one_of(st.none(), st.integers(1, 5)), st.integers(0, 8))
def test_times_is_the_size_of_the_largest_allowed_pattern(separation, at_most, rounds):
    allowed = (
        pattern
        for size in range(rounds + 1)
        for pattern in itertools.combinations(range(rounds), size)
        if all(b - a >= separation for a, b in itertools.pairwise(pattern))
        and (at_most is None or size <= at_most)
    )
    assert Participation(separation, at_most).times(rounds) == max(map(len, allowed))


@pytest.mark.parametrize("bad", [-1, 1.5, True])
def test_rounds_are_a_count(bad):
    with pytest.raises(ValueError, match="rounds must be"):
        Participation(3).times(bad)
