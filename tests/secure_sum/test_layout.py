"""A contribution comes back from the sum of vectors as if it had been added by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.fixed_point import (
    HALF_CLIP_BIT,
    WHOLE_WEIGHT,
    Contribution,
    IntegerGrid,
)
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler
from tacit.secure_sum import ContributionLayout, SumRules, width_for
from tests.secure_sum.parties import Group


@given(
    st.integers(1, 30),
    st.integers(0, 3),
    st.integers(1, 40),
    st.integers(2, 20),
    st.integers(8, 40),
    st.integers(0, 2**32),
)
def test_the_sum_of_vectors_is_the_vector_of_the_sum(size, bits, people, clients, power, seed):
    grid = IntegerGrid(1.0, 1 << power, bounded=True)
    layout = ContributionLayout.for_grid(grid, size, bits, people)
    random = np.random.default_rng(seed)
    total, vectors = Contribution.zero(size, bits), np.zeros(layout.size, np.int64)
    for _ in range(clients):
        one = Contribution(
            random.choice([-1, 0, 1], size) * layout.limit,
            int(random.choice([0, 1, WHOLE_WEIGHT * people, WHOLE_WEIGHT // 3])),
            random.choice([-1, 1], bits) * people * HALF_CLIP_BIT,
        )
        vector = layout.to_vector(one)
        assert np.abs(vector).max() <= layout.limit
        total += one
        vectors += vector
    back = layout.from_vector(vectors)
    assert back.weight == total.weight
    assert np.array_equal(back.update, total.update)
    assert np.array_equal(back.bits, total.bits)


def test_a_round_of_a_plan_gives_the_same_bits_through_a_secure_sum():
    plan = RoundPlan(
        population=1000,
        sampler=PoissonSampler(0.01),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(1000.0),
        noise=IndependentNoise(1.0),
    )
    state, random = plan.initial_clip_state(), np.random.default_rng(0)
    layout = ContributionLayout.for_grid(plan.grid(state), 50)
    group = Group(
        SumRules.against_a_lying_server(6, layout.size, layout.limit), ids=(2, 3, 5, 7, 11, 13)
    )
    given = {one: plan.contribution(random.normal(size=50), 20, state) for one in group.ids}
    group.vectors = {one: layout.to_vector(each) for one, each in given.items()}
    through = layout.from_vector(group.run((), (), {7}))
    alone = plan.empty(50)
    for one in set(group.ids) - {7}:
        alone += given[one]
    assert np.array_equal(through.update, alone.update)
    assert through.weight == alone.weight
    assert group.rules.width == 32  # 28 bits of the grid, and 3 of six clients


def test_a_coarse_grid_takes_half_the_bytes():
    """Grids of 64-bit sums are 36 bits finer than the clip norm; one for 31 bits is not."""
    fine = ContributionLayout.for_grid(IntegerGrid.for_clip(1.0, 1000), 10)
    coarse = ContributionLayout.for_grid(IntegerGrid.for_int32(1.0, 1000, 1.0), 10)
    assert (width_for(1000, fine.limit), width_for(1000, coarse.limit)) == (48, 32)


LAYOUT = ContributionLayout(updates=3, bits=1, people=2, limit=1 << 20)


@pytest.mark.parametrize(
    ("contribution", "message"),
    [
        (Contribution.zero(4, 1), "must have 3 values and 1 clip bits"),
        (Contribution.zero(3, 0), "must have 3 values and 1 clip bits"),
        (Contribution(np.zeros(3, np.int64), -1, np.zeros(1, np.int64)), "at most 2 people, got"),
        (
            Contribution(np.zeros(3, np.int64), 2 * WHOLE_WEIGHT + 1, np.zeros(1, np.int64)),
            "weight must be that of at most 2 people, got 2",
        ),
        (
            Contribution(np.zeros(3, np.int64), 0, np.array([2 * HALF_CLIP_BIT + 1])),
            "clip bits must be those of at most 2 people",
        ),
    ],
)
def test_a_contribution_of_other_sizes_or_of_more_people_is_refused(contribution, message):
    with pytest.raises(ValueError, match=message):
        LAYOUT.to_vector(contribution)


def test_a_sum_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a sum must have 6 values"):
        LAYOUT.from_vector(np.zeros(7, np.int64))
    with pytest.raises(ValueError, match="limit must be at least 256"):
        ContributionLayout(updates=3, bits=1, people=1, limit=100)
