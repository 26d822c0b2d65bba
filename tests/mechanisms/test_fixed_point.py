import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.fixed_point import (
    LARGEST_NOISE,
    WHOLE_WEIGHT,
    Contribution,
    IntegerGrid,
    grid_bits,
)
from tests.oracles.estimators import squared_norm

POPULATIONS = st.integers(1, 2**42 - 1)
CLIP_NORMS = st.floats(1e-30, 1e30)


@given(CLIP_NORMS, POPULATIONS)
def test_a_whole_population_at_the_clip_norm_stays_below_2_to_62(clip_norm, population):
    grid = IntegerGrid.for_clip(clip_norm, population)
    assert population * Fraction(clip_norm) / Fraction(grid.step) < 2**62
    assert math.frexp(grid.step)[0] == 0.5, "the step is a power of two"


@pytest.mark.parametrize(
    ("population", "bits"),
    [(1, 36), (763_430, 36), (2**26 - 1, 36), (2**26, 35), (2**42 - 1, 20), (2**54 - 1, 8)],
)
def test_grid_is_36_bits_finer_than_the_clip_norm_unless_the_population_is_huge(population, bits):
    assert grid_bits(population) == bits
    assert IntegerGrid.for_clip(20.0, population).step == 32 * 2.0**-bits


@given(CLIP_NORMS, POPULATIONS, st.floats(1e-6, 1e6))
def test_grid_is_coarse_enough_for_the_noise_to_round_exactly(clip_norm, population, noise):
    grid = IntegerGrid.for_clip(clip_norm, population, noise)
    assert noise * clip_norm / grid.step <= LARGEST_NOISE
    assert clip_norm / grid.step >= 2**7
    if noise <= 2.0**-8:
        assert grid == IntegerGrid.for_clip(clip_norm, population)


def test_a_population_that_leaves_fewer_than_8_bits_is_refused():
    with pytest.raises(
        ValueError, match=r"population must be below 2\^54 .* got 18014398509481984"
    ):
        grid_bits(2**54)


@given(
    hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-1, 1)),
    st.integers(0, WHOLE_WEIGHT) | st.just(WHOLE_WEIGHT),
)
def test_quantising_rounds_toward_zero_so_that_no_norm_grows(direction, weight):
    # Spare room for one rounding of the product is left by the clip: here by the factor 1 - 2^-50.
    values = direction * (1 - 2.0**-50) / max(1.0, float(np.linalg.norm(direction)))
    grid = IntegerGrid.for_clip(1.0, 1000)
    units = grid.quantise(values, weight)
    w = Fraction(weight, WHOLE_WEIGHT)
    assert units.dtype == np.int64
    assert squared_norm([int(u) for u in units]) * Fraction(grid.step) ** 2 <= w**2
    for unit, value in zip(units, values, strict=True):
        ideal = w * Fraction(value) / Fraction(grid.step)
        assert abs(ideal - int(unit)) <= 1 + Fraction(1, 2**10)
        assert int(unit) * value >= 0


def test_quantised_weight_is_rounded_down_and_capped_at_one():
    weigh = UserWeighting(3.0).weigh
    assert weigh(1) == WHOLE_WEIGHT // 3
    assert weigh(0) == 0
    assert weigh(3) == weigh(4) == weigh(10**9) == WHOLE_WEIGHT
    assert UserWeighting().weigh(0) == UserWeighting().weigh(17) == WHOLE_WEIGHT


@given(st.integers(0, 10**12), st.floats(1e-3, 1e12))
def test_weights_are_between_zero_and_one_and_close_to_the_formula(examples, cap):
    weight = UserWeighting(cap).weigh(examples)
    assert 0 <= weight <= WHOLE_WEIGHT
    assert weight / WHOLE_WEIGHT == pytest.approx(min(examples / cap, 1), abs=2.0**-29)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_cap_that_is_not_positive_is_refused(cap):
    with pytest.raises(ValueError, match="user_weight_cap must be a finite number above 0"):
        UserWeighting(cap)


@pytest.mark.parametrize("examples", [-1, 2.5, True])
def test_a_count_of_examples_that_is_not_whole_is_refused(examples):
    with pytest.raises(ValueError, match="examples must be"):
        UserWeighting(10.0).weigh(examples)


def test_unclipped_updates_use_the_declared_step_and_refuse_to_overflow():
    grid = IntegerGrid.unclipped(100)
    assert grid.step == 2.0**-32
    values = np.array([0.75, -1000.0])
    np.testing.assert_array_equal(grid.quantise(values, WHOLE_WEIGHT) * grid.step, values)
    for huge in (1e8, 1e300):
        with pytest.raises(ValueError, match=r"coordinate of 1e\+\d+, which must be below 1\.07"):
            grid.quantise(np.array([0.0, -huge]), WHOLE_WEIGHT)


contributions = st.builds(
    Contribution,
    hnp.arrays(np.int64, 4, elements=st.integers(-(2**36), 2**36)),
    st.integers(0, WHOLE_WEIGHT),
    hnp.arrays(np.int64, 2, elements=st.sampled_from([-(2**19), 2**19])),
)


@given(st.lists(contributions, min_size=1, max_size=12), st.data())
def test_sums_do_not_depend_on_order_or_partition(users, data):
    def total(group):
        acc = Contribution.zero(4, 2)
        for one in group:
            acc += one
        return acc

    def as_bytes(contribution):
        return contribution.update.tobytes(), contribution.weight, contribution.bits.tobytes()

    shuffled = data.draw(st.permutations(users))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(users)), max_size=3)))
    edges = [0, *cuts, len(users)]
    ranks = [total(shuffled[a:b]) for a, b in pairwise(edges)]
    joined = ranks[-1]
    for rank in reversed(ranks[:-1]):
        joined += rank
    assert as_bytes(joined) == as_bytes(total(users))


def test_accumulating_changes_the_first_and_leaves_the_other_alone():
    one = Contribution(np.array([1, 2]), 3, np.array([4]))
    two = Contribution(np.array([10, 20]), 30, np.array([40]))
    one += two
    assert two.update.tolist() == [10, 20]
    assert (one.update.tolist(), one.weight, one.bits.tolist()) == ([11, 22], 33, [44])


def test_contributions_of_different_sizes_do_not_add():
    acc = Contribution.zero(3)
    with pytest.raises(ValueError, match="same sizes of update and bits"):
        acc += Contribution.zero(1)
    acc = Contribution.zero(3, 1)
    with pytest.raises(ValueError, match="same sizes of update and bits"):
        acc += Contribution.zero(3, 0)
