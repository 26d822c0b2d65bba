"""Statistical tests here have a false-alarm rate of one in a million each."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms.clipping import FlatClip, PerLayerClip, QuantileClip
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator
from tacit.mechanisms.noise import IndependentNoise, add_gaussian
from tacit.mechanisms.plan import BIT_NOISE, UPDATE_NOISE, RoundPlan
from tacit.mechanisms.planning import PlanSettings, round_plan
from tacit.mechanisms.samplers import FixedSizeSampler, PoissonSampler
from tacit.privacy.events import PoissonGaussian
from tacit.privacy.randomness import RunKey

FALSE_ALARM = 1e-6


def stream(purpose, index=0):
    key = RunKey.from_seed(7)
    return key.stream(branch="main", round=0, attempt=0, purpose=purpose, index=index)


def p_value(values, stddev):
    """Two-sided: is this the spread of independent normal values of the given deviation?"""
    statistic = float(np.sum((np.asarray(values) / stddev) ** 2))
    law = stats.chi2(len(values))
    return 2 * min(law.cdf(statistic), law.sf(statistic))


@pytest.mark.parametrize("sampler", [PoissonSampler(0.1), FixedSizeSampler(1000, 100)])
@pytest.mark.parametrize("clipper", [FlatClip(15.0), PerLayerClip.even(15.0, 2)])
@pytest.mark.parametrize(
    ("estimator", "sigma"),
    [(FixedDenominator(800.0), 1.3 * 15 / 80), (ClippedDenominator(500.0), 2 * 1.3 * 15 / 50)],
)
def test_an_empty_cohort_is_released_with_exactly_the_noise_of_the_paper(
    sampler, clipper, estimator, sigma
):
    plan = RoundPlan(
        population=1000,
        sampler=sampler,
        clipper=clipper,
        estimator=estimator,
        noise=IndependentNoise(1.3),
    )
    released = plan.release(plan.empty(20_000), plan.initial_clip_state(), stream).average
    assert plan.noise_stddev() == pytest.approx(sigma, rel=1e-14)
    assert p_value(released, sigma) > FALSE_ALARM
    assert p_value(released, 0.9 * sigma) < FALSE_ALARM
    assert p_value(released, 1.1 * sigma) < FALSE_ALARM
    assert stats.kstest(released / sigma, "norm").pvalue > FALSE_ALARM


def test_adaptive_plan_gives_the_update_and_the_bits_their_own_noise():
    adaptive = QuantileClip(target_quantile=0.5, learning_rate=1.0, bit_noise_stddev=2.0)
    plan = RoundPlan(
        population=1000,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(1000.0),
        noise=IndependentNoise(1.0),
        adaptive=adaptive,
    )
    # z_u = (1 - 1/16)^(-1/2)
    sigma = 1 / math.sqrt(1 - 1 / 16) / 100
    state = plan.initial_clip_state()
    released = plan.release(plan.empty(20_000), state, stream).average
    assert p_value(released, sigma) > FALSE_ALARM
    assert p_value(released, 0.95 * sigma) < FALSE_ALARM
    # Without users, log(S_next / S) = -learning_rate * (noise / qK).
    logs = [
        math.log(
            plan.release(
                plan.empty(1), state, lambda purpose, i=index: stream(purpose, i)
            ).clip_state.total_norm
        )
        for index in range(2_000)
    ]
    assert p_value(logs, 2.0 / 100) > FALSE_ALARM
    assert p_value(logs, 0.9 * 2.0 / 100) < FALSE_ALARM
    assert p_value(logs, 1.1 * 2.0 / 100) < FALSE_ALARM


def test_noise_on_an_integer_sum_is_the_rounded_noise_itself():
    statistic = np.array([0, 5, -(2**60), 2**61])
    noisy = add_gaussian(statistic, 2e8, stream(UPDATE_NOISE))
    noise = np.rint(stream(UPDATE_NOISE).normal(4) * 2e8).astype(np.int64)
    assert noisy.dtype == np.int64
    np.testing.assert_array_equal(noisy - statistic, noise)


def test_noise_on_a_float_statistic_is_rounded_after_adding():
    statistic = np.array([0.25, -7.5, 1e6 + 1 / 3])
    noisy = add_gaussian(statistic, 100.0, stream(UPDATE_NOISE))
    expected = np.rint(statistic + stream(UPDATE_NOISE).normal(3) * 100.0)
    assert noisy.dtype == np.int64
    np.testing.assert_array_equal(noisy, expected)


def test_update_and_bits_ask_for_streams_of_different_purposes():
    plan = RoundPlan(
        population=1000,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(1000.0),
        noise=IndependentNoise(1.0),
        adaptive=QuantileClip(),
    )
    asked = []

    def recording(purpose):
        asked.append(purpose)
        return stream(purpose)

    plan.release(plan.empty(3), plan.initial_clip_state(), recording)
    assert asked == [UPDATE_NOISE, BIT_NOISE]


@pytest.mark.parametrize("stddev", [0.0, -1.0, math.nan, math.inf, 2.0**53])
def test_noise_that_float64_cannot_round_exactly_is_refused(stddev):
    with pytest.raises(ValueError, match="noise"):
        add_gaussian(np.zeros(2, np.int64), stddev, stream(UPDATE_NOISE))


def test_independent_noise_keeps_no_state_and_costs_the_samplers_event_each_round():
    noise, statistic = IndependentNoise(1.3), np.zeros(4, np.int64)
    noisy, state = noise.add(statistic, 50.0, (), stream(UPDATE_NOISE))
    np.testing.assert_array_equal(noisy, add_gaussian(statistic, 50.0, stream(UPDATE_NOISE)))
    assert state == ()
    releases = noise.releases(PoissonSampler(0.1), 1.3, 7)
    assert releases.counts == ((PoissonGaussian(0.1, 1.3), 7),)


@dataclass(frozen=True)
class _Doubled(IndependentNoise):
    """Adds what it drew last time once more: a noise with a state, as correlated ones have."""

    kind: ClassVar[str] = "doubled"

    def add(self, statistic, stddev, state, stream):
        drawn = stream.normal(statistic.size) * stddev
        total = statistic + drawn + sum(state)
        return np.rint(total).astype(np.int64), (drawn,)


def test_a_noise_with_a_state_goes_through_a_plan_unchanged():
    plan = RoundPlan(
        population=1000,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(1000.0),
        noise=_Doubled(1.0),
    )
    clip_state = plan.initial_clip_state()
    first = plan.release(plan.empty(3), clip_state, stream)
    second = plan.release(
        plan.empty(3), clip_state, lambda purpose: stream(purpose, 1), first.noise_state
    )
    step = plan.grid(clip_state).step
    drawn = [release.noise_state[0] for release in (first, second)]
    np.testing.assert_allclose(first.average * 100 / step, drawn[0], atol=1)
    np.testing.assert_allclose(second.average * 100 / step, drawn[0] + drawn[1], atol=1)
    assert plan.to_json()["noise"] == {"kind": "doubled", "noise_multiplier": 1}
    assert "noise_state" not in repr(second)


def test_an_experiment_names_its_noise_by_kind():
    def plan(noise):
        settings = PlanSettings(
            population=1000, cohort=100, clip_norm=1.0, noise_multiplier=1.0, noise=noise
        )
        return round_plan(settings, delta=1e-6, rounds=10)

    assert plan("independent").hash() == plan(None).hash()
    with pytest.raises(ValueError, match=r"noise must be one of .*, got 'pink'"):
        plan("pink")
