import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.clipping import (
    FlatClip,
    PerLayerClip,
    QuantileClip,
    joint_noise_multiplier,
    split_noise_multiplier,
)
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator
from tacit.mechanisms.fixed_point import HALF_CLIP_BIT
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import FixedSizeSampler, PoissonSampler
from tacit.privacy.events import Adjacency
from tacit.privacy.randomness import RunKey

MULTIPLIERS = st.floats(0.1, 10)


def adaptive_plan(**fields):
    defaults = dict(
        population=1000,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(1000.0),
        noise=IndependentNoise(1.0),
        adaptive=QuantileClip(),
    )
    return RoundPlan(**(defaults | fields))


@given(MULTIPLIERS, st.floats(1.001, 1e3), st.integers(1, 50))
def test_update_and_bits_together_have_the_multiplier_that_was_split(z, room, bits):
    sigma_b = room * z * math.sqrt(bits) / 2
    z_update = split_noise_multiplier(z, sigma_b, bits)
    assert z_update > z
    assert z_update**-2 + bits * (2 * sigma_b) ** -2 == pytest.approx(z**-2, rel=1e-9)
    assert joint_noise_multiplier(z_update, sigma_b, bits, Adjacency.ADD_REMOVE) == pytest.approx(
        z, rel=1e-9
    )


def test_split_of_one_bit_is_the_formula_of_the_paper():
    assert split_noise_multiplier(1.0, 5.0, 1) == pytest.approx((1 - 1 / 100) ** -0.5, rel=1e-14)


@pytest.mark.parametrize("sampler", [PoissonSampler(0.1), FixedSizeSampler(1000, 100)])
@pytest.mark.parametrize("estimator", [FixedDenominator(1000.0), ClippedDenominator(400.0)])
@pytest.mark.parametrize("clipper", [FlatClip(3.0), PerLayerClip.even(3.0, 4)])
def test_event_is_the_literal_composition_of_all_that_is_released(sampler, estimator, clipper):
    # One Gaussian vector: every coordinate is scaled by its own noise, and the sensitivity of the
    # scaled vector is the root of the sum of squares.
    adaptive = QuantileClip(bit_noise_stddev=4.0)
    plan = adaptive_plan(sampler=sampler, estimator=estimator, clipper=clipper, adaptive=adaptive)
    q, adjacency, m = 0.1, sampler.adjacency, len(clipper.norms)
    S = clipper.total_norm
    z_update = (1 - m / 8**2) ** -0.5
    paper = {FixedDenominator: 1, ClippedDenominator: 2}[type(estimator)]
    sigma = z_update * paper * S / estimator.denominator(q)
    assert plan.noise_stddev() == pytest.approx(sigma, rel=1e-12)
    scaled = [estimator.sensitivity(S, q, adjacency) / sigma]
    scaled += [{Adjacency.ADD_REMOVE: 0.5, Adjacency.REPLACE: 1.0}[adjacency] / 4.0] * m
    sensitivity = math.sqrt(sum(s * s for s in scaled))
    assert plan.event().noise_multiplier == pytest.approx(1 / sensitivity, rel=1e-12)
    if adjacency is Adjacency.ADD_REMOVE:
        assert plan.event().noise_multiplier == pytest.approx(1.0, rel=1e-12)


def test_bits_of_an_update_cost_nothing_extra_under_add_remove():
    without = adaptive_plan(adaptive=None)
    assert adaptive_plan().event().noise_multiplier == pytest.approx(
        without.event().noise_multiplier, rel=1e-15
    )
    assert adaptive_plan().noise_stddev() > without.noise_stddev()


def test_default_bit_noise_is_a_twentieth_of_the_expected_cohort():
    assert adaptive_plan().bit_noise_stddev == pytest.approx(5.0)


@pytest.mark.parametrize(("bits", "least"), [(1, "1.5"), (9, "4.5")])
def test_too_little_bit_noise_is_refused_with_the_least_that_is_allowed(bits, least):
    clipper = FlatClip(1.0) if bits == 1 else PerLayerClip.even(1.0, bits)
    too_little = QuantileClip(bit_noise_stddev=float(least))
    with pytest.raises(ValueError, match=f"bit_noise_stddev must be above {least} .* got {least}"):
        adaptive_plan(clipper=clipper, noise=IndependentNoise(3.0), adaptive=too_little)
    enough = QuantileClip(bit_noise_stddev=float(least) * 1.01)
    adaptive_plan(clipper=clipper, noise=IndependentNoise(3.0), adaptive=enough)


def test_too_small_a_cohort_for_the_default_bit_noise_is_refused():
    with pytest.raises(ValueError, match=r"above 0\.5 .* got 0\.25"):
        adaptive_plan(sampler=PoissonSampler(0.005))


def test_bits_are_plus_or_minus_one_half_whatever_the_weight():
    plan = adaptive_plan()
    state = plan.initial_clip_state()
    for update, bit in ((0.5, 1), (2.0, -1), (math.nan, 1)):
        contribution = plan.contribution(np.array([update]), 1, state)
        assert contribution.bits.tolist() == [bit * HALF_CLIP_BIT]
    assert adaptive_plan(adaptive=None).contribution(np.ones(1), 1, state).bits.size == 0


def test_noise_free_step_is_the_geometric_update_of_the_paper():
    clip = QuantileClip(target_quantile=0.8, learning_rate=0.2)
    # 30 of an expected 100 users are within the bound and 70 are not: b = (15 - 35)/100 + 1/2.
    [following] = clip.next_norms((2.0,), [-20.0], 100.0)
    assert following == pytest.approx(2.0 * math.exp(-0.2 * (0.3 - 0.8)), rel=1e-15)


def test_layers_adapt_independently():
    clip = QuantileClip(target_quantile=0.5, learning_rate=1.0)
    up, stay, down = clip.next_norms((1.0, 1.0, 1.0), [-50.0, 0.0, 50.0], 100.0)
    assert (up, stay, down) == pytest.approx((math.exp(0.5), 1.0, math.exp(-0.5)))


@pytest.mark.parametrize("bits", [1e300, -1e300])
def test_extreme_noise_keeps_the_norm_within_what_a_clipper_accepts(bits):
    clip, norms = QuantileClip(learning_rate=1e6), (1.0,)
    for _ in range(5):
        norms = clip.next_norms(norms, [bits], 1.0)
        FlatClip(norms[0])


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_clip_norm_converges_to_the_quantile_of_the_norms(quantile):
    users, rounds = 400, 250
    rng = np.random.default_rng(11)
    norms = np.exp(rng.normal(1.0, 0.7, users))
    plan = RoundPlan(
        population=users,
        sampler=PoissonSampler(0.25),
        clipper=FlatClip(0.01),  # far too low at first
        estimator=FixedDenominator(float(users)),
        noise=IndependentNoise(0.5),
        adaptive=QuantileClip(target_quantile=quantile, learning_rate=0.2),
    )
    key, state, path = RunKey.from_seed(3), plan.initial_clip_state(), []
    for t in range(rounds):

        def stream_for(purpose, t=t):
            return key.stream(branch="main", round=t, attempt=0, purpose=purpose)

        acc = plan.empty(1)
        for user in plan.cohort(users, stream_for("cohort")):
            acc += plan.contribution(norms[user : user + 1], 1, state)
        state = plan.release(acc, state, stream_for).clip_state
        path.append(state.total_norm)
    assert state.round == rounds
    reached = np.mean(norms <= np.exp(np.mean(np.log(path[-120:]))))
    assert reached == pytest.approx(quantile, abs=0.06)


def test_without_noise_the_bits_are_counted_exactly():
    plan = adaptive_plan(noise=None, adaptive=QuantileClip(0.5, 1.0))
    state = plan.initial_clip_state()
    acc = plan.empty(1)
    for norm in (0.1, 0.2, 5.0):
        acc += plan.contribution(np.array([norm]), 1, state)
    following = plan.release(acc, state, no_stream).clip_state
    assert following.total_norm == pytest.approx(math.exp(-0.5 / 100), rel=1e-15)


def no_stream(purpose):
    raise AssertionError(f"a plan without noise asked for a stream for {purpose}")


def test_bit_sensitivity_by_adjacency():
    for adjacency, sensitivity in ((Adjacency.ADD_REMOVE, 0.5), (Adjacency.REPLACE, 1.0)):
        assert joint_noise_multiplier(math.inf, 3.0, 1, adjacency) == 3.0 / sensitivity


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"target_quantile": 0.0}, "target_quantile"),
        ({"target_quantile": 1.0}, "target_quantile"),
        ({"target_quantile": math.nan}, "target_quantile"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"bit_noise_stddev": 0.0}, "bit_noise_stddev"),
        ({"bit_noise_stddev": math.nan}, "bit_noise_stddev"),
    ],
)
def test_bad_values_are_refused_by_name(fields, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        QuantileClip(**fields)
