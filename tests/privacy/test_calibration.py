"""Solving for noise, rounds and cohort: round trips, and never above the target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import calibration
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, FixedSizeGaussian, PoissonGaussian
from tacit.privacy.projection import SmallExperiment

accountants = st.sampled_from(["pld", "rdp", "moments"])
probabilities = st.floats(1e-4, 0.5)
deltas = st.floats(4, 10).map(lambda power: 10**-power)
targets = st.floats(0.8, 20)


@given(accountants, probabilities, st.integers(1, 3000), deltas, targets)
@settings(max_examples=10)
def test_noise_reaches_the_target_and_never_overshoots(name, q, rounds, delta, target):
    accountant = accountant_named(name)

    def epsilon(z: float) -> float:
        return accountant.epsilon(Composition.of([(PoissonGaussian(q, z), rounds)]), delta)

    z = calibration.noise_for_epsilon(
        lambda z: Composition.of([(PoissonGaussian(q, z), rounds)]),
        delta=delta,
        target_epsilon=target,
        accountant=accountant,
    )
    assert epsilon(z) <= target
    assert epsilon(z) >= 0.995 * target or epsilon(0.995 * z) > target


@given(accountants, st.floats(2e-3, 0.5), st.floats(0.6, 3), deltas, st.floats(0.8, 6))
@settings(max_examples=8)
def test_one_round_more_than_allowed_overshoots(name, q, z, delta, target):
    accountant, event = accountant_named(name), PoissonGaussian(q, z)
    rounds = calibration.rounds_for_epsilon(
        event, delta=delta, target_epsilon=target, accountant=accountant
    )
    if rounds:
        assert accountant.epsilon(Composition.of([(event, rounds)]), delta) <= target
    assert accountant.epsilon(Composition.of([(event, rounds + 1)]), delta) > target


def test_what_was_spent_before_counts():
    accountant = accountant_named("pld")
    spent = Composition.of([(PoissonGaussian(0.02, 0.9), 100)])
    settings = {"delta": 1e-6, "target_epsilon": 3.0, "accountant": accountant}

    def rounds_at(z: float) -> Composition:
        return Composition.of([(PoissonGaussian(0.01, z), 100)])

    fresh = calibration.noise_for_epsilon(rounds_at, **settings)
    after = calibration.noise_for_epsilon(lambda z: spent.followed_by(rounds_at(z)), **settings)
    assert after > fresh
    assert 0.995 * 3 <= accountant.epsilon(spent.followed_by(rounds_at(after)), 1e-6) <= 3


def test_fixed_size_noise_is_calibrated_by_rdp():
    rdp = accountant_named("rdp")
    z = calibration.noise_for_epsilon(
        lambda z: Composition.of([(FixedSizeGaussian(10_000, 100, z / 2), 200)]),
        delta=1e-6,
        target_epsilon=4.0,
        accountant=rdp,
    )
    found = rdp.epsilon(Composition.of([(FixedSizeGaussian(10_000, 100, z / 2), 200)]), 1e-6)
    assert 0.995 * 4 <= found <= 4


def test_a_target_below_the_floor_of_moments_is_refused_and_says_so():
    with pytest.raises(ValueError, match=r"out of reach of the moments accountant.*use the pld"):
        calibration.noise_for_epsilon(
            lambda z: Composition.of([(PoissonGaussian(0.001, z), 10)]),
            delta=1e-9,
            target_epsilon=0.1,
            accountant=accountant_named("moments"),
        )


def test_the_smallest_cohort_that_reaches_a_target():
    experiment, population = SmallExperiment(100, 0.003, 15.0), 763_430
    accountant = accountant_named("pld")

    def event(cohort: int) -> PoissonGaussian:
        return PoissonGaussian(cohort / population, experiment.noise_multiplier_at(cohort))

    cohort = calibration.cohort_for_epsilon(
        event,
        population=population,
        rounds=5000,
        delta=1e-9,
        target_epsilon=4.0,
        accountant=accountant,
    )
    assert accountant.epsilon(Composition.of([(event(cohort), 5000)]), 1e-9) <= 4.0
    assert accountant.epsilon(Composition.of([(event(cohort - 1), 5000)]), 1e-9) > 4.0
    assert 4500 < cohort < 5000  # at 5000 the multiplier is 1 and epsilon is 3.90


def test_no_cohort_reaches_an_impossible_target():
    with pytest.raises(ValueError, match="even the whole population of 1,000"):
        calibration.cohort_for_epsilon(
            lambda c: PoissonGaussian(c / 1000, 1e-4 * c),
            population=1000,
            rounds=100,
            delta=1e-5,
            target_epsilon=0.5,
            accountant=accountant_named("pld"),
        )


def test_the_papers_extrapolation():
    """sigma = 0.003 at S = 15 is a multiplier of 0.02 at 100 users, and of 1 at 5000."""
    experiment = SmallExperiment(100, 0.003, 15.0)
    assert experiment.noise_multiplier == pytest.approx(0.02)
    assert experiment.noise_multiplier_at(5000) == pytest.approx(1.0)
    assert SmallExperiment(100, 0.006, 10.0).noise_multiplier_at(1667) == pytest.approx(1, abs=5e-4)
    assert SmallExperiment(100, 0.012, 15.0).noise_multiplier_at(1250) == pytest.approx(1)


@pytest.mark.parametrize("field", ["cohort", "noise_stddev", "clip_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_experiment_needs_positive_numbers(field, value):
    import dataclasses

    with pytest.raises(ValueError, match=field):
        dataclasses.replace(SmallExperiment(100, 0.003, 15.0), **{field: value})
