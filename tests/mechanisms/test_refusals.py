"""What would void a guarantee cannot be written down."""

import math

import pytest

from tacit.mechanisms.clipping import FlatClip, LinearClip, NoClip, PerLayerClip, QuantileClip
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import (
    FixedSizeSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)

K = 1000
FALLING = LinearClip(10, 0.5)


def plan(**fields):
    defaults = dict(
        population=K,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(K)),
        noise=IndependentNoise(1.2),
    )
    return RoundPlan(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clipper": NoClip()}, "noise_multiplier 1.2 needs clipped updates.*use FlatClip"),
        ({"estimator": TrueAverage()}, "got TrueAverage; use FixedDenominator or Clipped"),
        (
            {"weight_aware": True, "estimator": ClippedDenominator(100.0)},
            "weight_aware clipping needs the fixed denominator.*use FixedDenominator",
        ),
        (
            {"sampler": FixedSizeSampler(K + 1, 10)},
            "sampler's population must be the plan's population of 1000, got 1001",
        ),
        (
            {"sampler": TruncatedPoissonSampler(K - 1, 0.1, 10)},
            "sampler's population must be the plan's population of 1000, got 999",
        ),
        (
            {"sampler": FixedSizeSampler(5, 5), "noise": None},
            "sampler's population must be the plan's population of 1000, got 5",
        ),
        (
            {"estimator": FixedDenominator(1000.5)},
            "total_weight must be at most the population of 1000, .* got 1000.5",
        ),
        (
            {"estimator": ClippedDenominator(1001.0)},
            "min_weight must be at most the population of 1000, .* got 1001",
        ),
        ({"noise": 1.2}, "noise cannot be 1.2"),
        (
            {"noise": IndependentNoise(1e10)},
            "noise_multiplier must keep the noise below 1.05e.06 clip",
        ),
        ({"population": 0}, "population must be at least 1, got 0"),
        ({"population": 1e3}, "population must be a whole number, got 1000.0"),
        ({"population": 2**32}, "population must be at most 4294967295, .* got 4294967296"),
        ({"unit": "person"}, "unit must be one of user, record, got 'person'"),
        (
            {"clipper": NoClip(), "noise": None, "schedule": FALLING},
            "clipper must have a clip norm for a schedule",
        ),
        (
            {"clipper": NoClip(), "noise": None, "adaptive": QuantileClip()},
            "clipper must have a clip norm for a schedule or an adaptive clip",
        ),
        (
            {"schedule": FALLING, "adaptive": QuantileClip()},
            "schedule must be ConstantClip beside an adaptive clip",
        ),
        (
            {"noise": None, "adaptive": QuantileClip(bit_noise_stddev=5.0)},
            "bit_noise_stddev must be left out of a plan without noise, got 5.0",
        ),
        ({"adaptive": QuantileClip(bit_noise_stddev=0.6)}, "must be above 0.6 .* got 0.6"),
        (
            {"adaptive": QuantileClip(bit_noise_stddev=1e12)},
            "bit_noise_stddev must be at most 1.68e.07",
        ),
        (
            {"clipper": PerLayerClip.even(1.0, 3), "layers": (5, 5)},
            "clip_norms must have one norm for each of the 2 layers, got 3",
        ),
        ({"layers": ()}, "layers must have at least one layer's size"),
        ({"layers": (3, 0)}, "layers\\[1\\] must be at least 1, got 0"),
        ({"layers": (3.5,)}, "layers\\[0\\] must be a whole number"),
        ({"estimator": FlatClip(1.0)}, "estimator cannot be FlatClip"),
    ],
)
def test_plan_is_refused_and_says_why(fields, message):
    with pytest.raises(ValueError, match=message):
        plan(**fields)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (FixedDenominator, "total_weight"),
        (ClippedDenominator, "min_weight"),
        (IndependentNoise, "noise_multiplier"),
    ],
)
def test_estimators_and_noise_refuse_numbers_that_are_not_positive(make, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got {value}"):
        make(value)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampler": FixedSizeSampler(K, K)},
        {"sampler": PoissonSampler(1)},
        {"estimator": ClippedDenominator(1e-9)},
        {"noise": IndependentNoise(1e6)},
        {"noise": IndependentNoise(1e-12)},
        {"population": 2**32 - 1},
        {"noise": None, "clipper": NoClip(), "estimator": TrueAverage()},
    ],
)
def test_plans_at_the_edge_of_what_is_allowed_can_be_made(fields):
    plan(**fields).event()
