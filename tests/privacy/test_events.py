"""Events survive JSON, merge when equal, and fail closed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy import checks
from tacit.privacy.claims import format_epsilon
from tacit.privacy.events import (
    Adjacency,
    Composition,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
    TruncatedPoissonGaussian,
)
from tacit.privacy.records import canonical_json

noise = st.floats(1e-3, 1e3)
prob = st.floats(1e-9, 1.0)
events = st.one_of(
    st.builds(Gaussian, noise, st.sampled_from(Adjacency)),
    st.builds(PoissonGaussian, prob, noise),
    st.builds(TruncatedPoissonGaussian, st.integers(1, 10**9), prob, st.integers(1, 10**6), noise),
    st.builds(FixedSizeGaussian, st.just(10**6), st.integers(1, 10**6), noise),
    st.builds(PureDP, st.floats(0, 50), st.sampled_from(Adjacency)),
    st.builds(Lapse, st.floats(1e-300, 1.0, exclude_max=True)),
    st.builds(NonPrivate, st.text()),
    st.builds(PostProcessing, st.text()),
)


@given(events)
def test_events_survive_json(event):
    import json

    assert Event.from_json(json.loads(canonical_json(event.to_json()))) == event


@given(st.lists(st.tuples(events, st.integers(0, 5)), max_size=8))
def test_equal_events_merge_and_nothing_is_lost(items):
    composition = Composition.of(items)
    assert len({e for e, _ in composition.counts}) == len(composition.counts)
    assert sum(n for _, n in composition.counts) == sum(n for _, n in items)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "laplace", "scale": 1},
        {},
        {"kind": "poisson-gaussian", "sampling_prob": 0.1},
        {"kind": "poisson-gaussian", "sampling_prob": 0.1, "noise_multiplier": 1, "extra": 1},
        {"kind": "poisson-gaussian", "sampling_prob": 1.5, "noise_multiplier": 1},
        {"kind": "gaussian", "noise_multiplier": 1.0, "stated_for": "swap"},
        {"kind": "lapse", "probability": 1.5},
        {"kind": "lapse"},
    ],
)
def test_unknown_or_incomplete_events_fail_closed(data):
    with pytest.raises(ValueError, match=r"event|sampling_prob|Adjacency|probability"):
        Event.from_json(data)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_noise_must_be_positive_and_finite(bad):
    for build in (
        Gaussian,
        lambda z: PoissonGaussian(0.1, z),
        lambda z: FixedSizeGaussian(9, 3, z),
    ):
        with pytest.raises(ValueError, match=f"noise_multiplier must be .* got {bad}"):
            build(bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-9, 2.0, math.nan, math.inf])
def test_the_probability_of_a_lapse_is_strictly_between_0_and_1(bad):
    with pytest.raises(
        ValueError, match=f"probability must be strictly between 0 and 1, got {bad}"
    ):
        Lapse(bad)


def test_a_lapse_has_no_adjacency_of_its_own_costs_something_and_is_private():
    for adjacency in Adjacency:
        composition = Composition.of([Gaussian(1.0, adjacency), Lapse(1e-6)])
        assert composition.adjacency is adjacency
        assert composition.is_private
        assert len(composition.costly()) == 2
    assert canonical_json(Lapse(5e-06).to_json()) == '{"kind":"lapse","probability":5e-06}'


def test_a_cohort_above_the_population_is_refused():
    with pytest.raises(ValueError, match="cohort must be at most the population of 10, got 11"):
        FixedSizeGaussian(10, 11, 1.0)


@given(st.floats(1e-12, 1e12))
def test_a_printed_epsilon_is_never_below_the_real_one(epsilon):
    printed = float(format_epsilon(epsilon))
    assert epsilon <= printed <= epsilon * 1.001


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_checks_refuse_everything_outside_their_bound(value):
    inside = {
        checks.positive: value > 0 and math.isfinite(value),
        checks.non_negative: value >= 0 and math.isfinite(value),
        checks.probability: 0 < value <= 1,
        checks.open_unit: 0 < value < 1,
    }
    for check, fine in inside.items():
        if fine:
            assert check("x", value) == value
        else:
            with pytest.raises(ValueError, match="x must be"):
                check("x", value)


@pytest.mark.parametrize("value", [True, 1.0, "1", -1])
def test_whole_refuses_what_is_not_a_count(value):
    with pytest.raises(ValueError, match="n must be"):
        checks.whole("n", value)
