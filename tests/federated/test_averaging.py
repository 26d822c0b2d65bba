"""Means of iterates against the sums that define them, in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.federated import averaging
from tacit.federated.averaging import IterateAveraging, IterateMean

SIZE = 7


def iterates(count):
    return np.random.default_rng(3).normal(size=(count, SIZE)).astype(np.float32)


def running(how, rows):
    mean = IterateMean(rows[0], 0)
    for row in rows:
        mean = mean.followed_by(row, how)
    return mean


def defined(rows, weights):
    """sum_i weight_i iterate_i / sum_i weight_i, in fractions."""
    total = sum(weights)
    return [
        float(sum(w * Fraction(float(x)) for w, x in zip(weights, column, strict=True)) / total)
        for column in rows.T
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_a_tail_is_the_plain_mean(count):
    rows = iterates(count)
    mean = running(IterateAveraging("tail"), rows)
    assert mean.count == count
    assert mean.values.dtype == np.float32
    assert mean.values == pytest.approx(defined(rows, [Fraction(1)] * count), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
@pytest.mark.parametrize("decay", [0.1, 0.9, 0.99])
def test_a_moving_average_weighs_each_iterate_by_decay_to_its_age(count, decay):
    rows = iterates(count)
    ages = [Fraction(decay) ** (count - 1 - index) for index in range(count)]
    found = running(IterateAveraging("ema", decay=decay), rows).values
    assert found == pytest.approx(defined(rows, ages), abs=1e-6)
    if count > 2:  # and the test would see another decay
        off = [Fraction(decay) ** (count - index) for index in range(1, count)] + [Fraction(2)]
        assert found != pytest.approx(defined(rows, off), abs=1e-3)


def test_the_same_iterate_again_and_again_is_its_own_mean():
    rows = np.repeat(iterates(1), 20, axis=0)
    for kind in ("tail", "ema"):
        assert np.array_equal(running(IterateAveraging(kind), rows).values, rows[0])


@pytest.mark.parametrize(
    ("share", "rounds", "begins"),
    [(0.5, 10, 5), (1.0, 10, 0), (0.1, 3, 2), (0.7, 10, 3), (0.5, 1, 0), (0.25, 1000, 750)],
)
def test_a_tail_begins_at_a_public_round_and_has_at_least_one(share, rounds, begins):
    assert IterateAveraging("tail", share=share).begins(rounds) == begins
    assert IterateAveraging("ema", share=share).begins(rounds) == 0


@given(st.integers(1, 30), st.sampled_from(["tail", "ema"]))
def test_a_mean_goes_on_from_a_checkpoint_with_the_same_bits(cut, kind):
    how, rows = IterateAveraging(kind), iterates(31)
    before = running(how, rows[:cut])
    state = averaging.to_arrays(rows[cut - 1], before) | {"velocity": np.zeros(SIZE)}
    iterate, mean = averaging.from_arrays(state, np.zeros(SIZE, np.float32))
    assert np.array_equal(iterate, rows[cut - 1])
    assert averaging.without_mean(state).keys() == {"velocity"}
    for row in rows[cut:]:
        mean = mean.followed_by(row, how)
    assert np.array_equal(mean.values, running(how, rows).values)


def test_a_checkpoint_without_a_mean_has_its_model_as_iterate():
    model = iterates(1)[0]
    assert averaging.from_arrays({"velocity": model}, model) == (pytest.approx(model), None)


def test_a_mean_of_another_size_is_refused():
    state = averaging.to_arrays(np.zeros(3, np.float32), IterateMean(np.zeros(3, np.float32), 1))
    with pytest.raises(ValueError, match="must have the 7 values of its model, got 3 and 3"):
        averaging.from_arrays(state, np.zeros(SIZE, np.float32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "mean"}, "kind must be one of tail, ema, got 'mean'"),
        ({"share": 0.0}, "share must be .* got 0"),
        ({"decay": 1.0}, "decay must be .* got 1"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        IterateAveraging(**fields)
