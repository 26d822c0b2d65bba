import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.mechanisms.clipping import (
    ConstantClip,
    FlatClip,
    GeometricClip,
    LinearClip,
    NoClip,
    PerLayerClip,
    QuantileClip,
)
from tacit.mechanisms.estimators import (
    ClippedDenominator,
    FixedDenominator,
    TrueAverage,
    UserWeighting,
)
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import (
    FixedSizeSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)
from tacit.privacy import events
from tacit.privacy.events import Adjacency
from tacit.privacy.randomness import RunKey
from tests.oracles import estimators as oracle

K = 1000


def plan(**fields):
    defaults = dict(
        population=K,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(K)),
        noise=IndependentNoise(1.2),
    )
    return RoundPlan(**(defaults | fields))


def streams(purpose):
    return RunKey.from_seed(5).stream(branch="main", round=0, attempt=0, purpose=purpose)


def no_streams(purpose):
    raise AssertionError(f"a plan without noise asked for a stream for {purpose}")


def summed(one_plan, users):
    state = one_plan.initial_clip_state()
    acc = one_plan.empty(len(users[0][0]))
    for update, examples in users:
        acc += one_plan.contribution(np.asarray(update), examples, state)
    return acc, state


FIXED, CLIPPED = FixedDenominator(float(K)), ClippedDenominator(800.0)
TRUNCATED = TruncatedPoissonSampler(K, 0.1, 150)


@pytest.mark.parametrize(
    ("sampler", "estimator", "event"),
    [
        (PoissonSampler(0.1), FIXED, events.PoissonGaussian(0.1, 1.2)),
        (PoissonSampler(0.1), CLIPPED, events.PoissonGaussian(0.1, 1.2)),
        (PoissonSampler(1.0), FIXED, events.Gaussian(1.2, Adjacency.ADD_REMOVE)),
        (PoissonSampler(1.0), CLIPPED, events.Gaussian(1.2, Adjacency.ADD_REMOVE)),
        (TRUNCATED, FIXED, events.TruncatedPoissonGaussian(K, 0.1, 150, 1.2)),
        (TRUNCATED, CLIPPED, events.TruncatedPoissonGaussian(K, 0.1, 150, 1.2)),
        (FixedSizeSampler(K, 100), FIXED, events.FixedSizeGaussian(K, 100, 0.6)),
        (FixedSizeSampler(K, 100), CLIPPED, events.FixedSizeGaussian(K, 100, 1.2 * 2 / 3)),
        (FixedSizeSampler(K, K), FIXED, events.Gaussian(0.6, Adjacency.REPLACE)),
        (FixedSizeSampler(K, K), CLIPPED, events.Gaussian(1.2 * 2 / 3, Adjacency.REPLACE)),
    ],
)
def test_event_is_noise_over_sensitivity_under_the_samplers_adjacency(sampler, estimator, event):
    one = plan(sampler=sampler, estimator=estimator)
    derived = one.event()
    assert dataclasses.replace(derived, noise_multiplier=1.0) == dataclasses.replace(
        event, noise_multiplier=1.0
    )
    assert derived.noise_multiplier == pytest.approx(event.noise_multiplier, rel=1e-15)
    assert one.adjacency is derived.adjacency
    # The literal definition, from the average's own noise and sensitivity.
    sensitivity = estimator.sensitivity(1.0, sampler.sampling_prob, one.adjacency)
    assert one.noise_stddev() / sensitivity == pytest.approx(event.noise_multiplier, rel=1e-12)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clipper": NoClip()},
        {"estimator": TrueAverage()},
    ],
)
def test_plan_without_noise_accounts_to_infinity_and_needs_no_randomness(fields):
    one = plan(noise=None, **fields)
    assert one.event() == events.NonPrivate("no noise is added to the updates")
    assert one.noise_stddev() == 0
    assert "No differential privacy" in one.guarantee(math.inf, 1e-6, "pld", 10).claim
    one.release(one.empty(3), one.initial_clip_state(), no_streams)


@pytest.mark.parametrize(
    ("estimator", "sigma"),
    [(FixedDenominator(900.0), 1.2 * 15 / 90), (ClippedDenominator(400.0), 2 * 1.2 * 15 / 40)],
)
@pytest.mark.parametrize("sampler", [PoissonSampler(0.1), TRUNCATED, FixedSizeSampler(K, 100)])
def test_noise_on_the_average_is_the_papers_for_every_sampler(sampler, estimator, sigma):
    one = plan(sampler=sampler, estimator=estimator, clipper=FlatClip(15.0))
    assert one.noise_stddev() == pytest.approx(sigma, rel=1e-14)


users_lists = st.lists(
    st.tuples(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.integers(0, 20)),
    min_size=1,
    max_size=6,
)


def exact_weights(users, cap):
    return [Fraction(UserWeighting(cap).weigh(n), 2**30) for _, n in users]


@given(users_lists)
def test_no_clip_no_noise_everybody_is_the_plain_weighted_average(users):
    one = plan(
        sampler=PoissonSampler(1.0),
        clipper=NoClip(),
        estimator=TrueAverage(),
        weighting=UserWeighting(7.0),
        noise=None,
    )
    assert one.cohort(len(users), streams("cohort")).tolist() == list(range(len(users)))
    acc, state = summed(one, users)
    average = one.release(acc, state, no_streams).average
    weights = exact_weights(users, 7.0)
    if sum(weights) == 0:
        np.testing.assert_array_equal(average, np.zeros(3))
        return
    expected = oracle.true_average(weights, [update for update, _ in users])
    bound = 2.0**-32 * len(users) / float(sum(weights)) + 1e-14
    np.testing.assert_allclose(average, [float(x) for x in expected], rtol=0, atol=bound)


@given(users_lists)
def test_without_noise_the_estimators_are_those_of_the_paper(users):
    updates = [update for update, _ in users]
    weights = exact_weights(users, 7.0)
    # A clip norm beyond all updates is no clip.
    shared = dict(clipper=FlatClip(100.0), weighting=UserWeighting(7.0), noise=None)
    for estimator, expected in (
        (FixedDenominator(40.0), oracle.fixed_denominator(weights, updates, Fraction(4))),
        (ClippedDenominator(20.0), oracle.clipped_denominator(weights, updates, Fraction(2))),
    ):
        one = plan(estimator=estimator, **shared)
        acc, state = summed(one, users)
        average = one.release(acc, state, no_streams).average
        np.testing.assert_allclose(average, [float(x) for x in expected], rtol=1e-12, atol=1e-7)


def test_little_noise_is_no_noise():
    users = [([0.3, -0.2], 1), ([0.1, 0.9], 1)]
    quiet, silent = plan(noise=IndependentNoise(1e-9)), plan(noise=None)
    acc, state = summed(quiet, users)
    released, exact = (one.release(acc, state, streams).average for one in (quiet, silent))
    np.testing.assert_allclose(released, exact, atol=1e-10)


def test_release_is_repeated_bit_for_bit_from_the_same_streams():
    one = plan(estimator=CLIPPED, adaptive=QuantileClip())
    acc, state = summed(one, [([0.3, -0.2], 1), ([0.1, 0.9], 1)])
    first, second = (one.release(acc, state, streams) for _ in range(2))
    assert first.average.tobytes() == second.average.tobytes()
    assert first.clip_state == second.clip_state


def test_released_average_lies_on_the_public_grid():
    # Nothing but whole steps over the public denominator leaves the round.
    for estimator in (FIXED, CLIPPED):
        one = plan(estimator=estimator)
        acc, state = summed(one, [([0.123456789, -0.2], 1)])
        average = one.release(acc, state, streams).average
        steps = average * one.estimator.denominator(0.1) / 2.0**-35
        np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-3)


@given(
    hnp.arrays(np.float64, 4, elements=st.floats(-1, 1)),
    st.floats(0.5, 2.0) | st.just(1.0),
    st.floats(1e-3, 1e3),
    st.integers(0, 8),
)
def test_contribution_has_norm_at_most_weight_times_clip_norm_exactly(
    direction, length, clip_norm, examples
):
    norm = float(np.linalg.norm(direction))
    update = direction * (length * clip_norm / norm) if norm > 1e-100 else direction
    for clipper in (FlatClip(clip_norm), PerLayerClip.even(clip_norm, 2)):
        one = plan(clipper=clipper, weighting=UserWeighting(7.0), layers=(1, 3))
        acc = one.contribution(update, examples, one.initial_clip_state())
        step = Fraction(one.grid(one.initial_clip_state()).step)
        norm_squared = oracle.squared_norm([int(u) for u in acc.update]) * step**2
        weight = Fraction(acc.weight, 2**30)
        assert norm_squared <= (weight * Fraction(clipper.total_norm)) ** 2


def test_contribution_uses_the_clip_norms_of_the_state_it_is_given():
    one = plan(clipper=FlatClip(1.0), schedule=LinearClip(1, 0.25), noise=None)
    update = np.array([3.0, 4.0])
    for round, norm in ((0, 1.0), (1, 0.25)):
        state = one.schedule.state((1.0,), round)
        acc = one.contribution(update, 1, state)
        average = one.release(acc, state, no_streams).average
        assert np.linalg.norm(average) * 100 == pytest.approx(norm, rel=1e-9)


def test_per_layer_plan_needs_the_layers_only_to_run():
    planned = plan(clipper=PerLayerClip.even(1.0, 2))
    assert planned.event() == plan().event()
    with pytest.raises(ValueError, match="layers must have the sizes of 2 layers"):
        planned.contribution(np.ones(3), 1, planned.initial_clip_state())
    run = plan(clipper=PerLayerClip.even(1.0, 2), layers=(1, 2))
    assert run.contribution(np.ones(3), 1, run.initial_clip_state()).update.size == 3


def test_run_time_mistakes_are_refused():
    one = plan(layers=(2, 2))
    state = one.initial_clip_state()
    with pytest.raises(ValueError, match="update must have 4 values, got 3"):
        one.contribution(np.ones(3), 1, state)
    with pytest.raises(ValueError, match="clip_state must have 1 norms, got 2"):
        one.contribution(np.ones(4), 1, dataclasses.replace(state, norms=(1.0, 1.0)))
    with pytest.raises(ValueError, match="total must have 0 clip bits, got 1"):
        one.release(Contribution.zero(4, 1), state, streams)
    with pytest.raises(ValueError, match="at least the number of users, 1001, got 1000"):
        one.cohort(1001, streams("cohort"))


EVERY_FIELD_CHANGED = {
    "population": plan(population=K + 1),
    "sampler": plan(sampler=PoissonSampler(0.11)),
    "sampler's kind": plan(sampler=FixedSizeSampler(K, 100)),
    "cap": plan(sampler=TRUNCATED),
    "another cap": plan(sampler=TruncatedPoissonSampler(K, 0.1, 151)),
    "clipper": plan(clipper=FlatClip(1.5)),
    "clipper's kind": plan(clipper=PerLayerClip((1.0,))),
    "layer norms": plan(clipper=PerLayerClip((1.0, 0.5))),
    "estimator": plan(estimator=FixedDenominator(999.0)),
    "estimator's kind": plan(estimator=ClippedDenominator(float(K))),
    "noise_multiplier": plan(noise=IndependentNoise(1.3)),
    "no noise": plan(noise=None),
    "no clip": plan(noise=None, clipper=NoClip()),
    "true average": plan(noise=None, estimator=TrueAverage()),
    "weighting": plan(weighting=UserWeighting(160.0)),
    "geometric": plan(schedule=GeometricClip(0.999, 0.5)),
    "linear": plan(schedule=LinearClip(100, 0.5)),
    "adaptive": plan(adaptive=QuantileClip()),
    "adaptive quantile": plan(adaptive=QuantileClip(0.6, 0.3, 8.0)),
    "layers": plan(layers=(3, 4)),
    "weight_aware": plan(weight_aware=True),
    "unit": plan(unit="record"),
}


def test_hash_changes_with_every_field():
    plans = [plan(), *EVERY_FIELD_CHANGED.values()]
    assert len({one.hash() for one in plans}) == len(plans)
    changed = {
        f.name
        for f in dataclasses.fields(RoundPlan)
        for one in plans
        if getattr(one, f.name) != getattr(plan(), f.name)
    }
    assert changed == {f.name for f in dataclasses.fields(RoundPlan)}


@pytest.mark.parametrize("name", EVERY_FIELD_CHANGED)
def test_json_round_trip_keeps_the_plan_and_its_hash(name):
    one = EVERY_FIELD_CHANGED[name]
    text = json.dumps(one.to_json(), allow_nan=False)
    read = RoundPlan.from_json(json.loads(text))
    assert read == one
    assert read.hash() == one.hash()
    assert read.event() == one.event()


def test_equal_plans_have_equal_hashes_however_their_numbers_were_written():
    written = plan(clipper=FlatClip(20), estimator=FixedDenominator(K), noise=IndependentNoise(1))
    other = plan(
        clipper=FlatClip(np.float32(20.0)),
        estimator=FixedDenominator(np.float64(K)),
        noise=IndependentNoise(1.0),
        schedule=ConstantClip(),
    )
    assert written == other
    assert written.hash() == other.hash()


def test_hash_is_pinned_so_that_old_ledgers_stay_readable():
    assert plan().hash() == ("6cec3f343ac29aad2696053fcf139eda9e813c99b0d6fdd040c2547eae0f2f59")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "plan"}, "unknown part 'plan' in a plan"),
        ({"sampler": {"kind": "bernoulli"}}, "unknown part 'bernoulli'"),
        ({"clipper": {"kind": "flat-clip"}}, "'flat-clip' needs the fields \\['clip_norm'\\]"),
        ({"extra": 1}, "'round-plan' needs the fields"),
        ({"sampler": {"kind": "no-clip"}}, "sampler cannot be NoClip"),
        ({"clipper": None}, "clipper cannot be None"),
    ],
)
def test_json_that_is_not_a_plan_fails_closed(change, message):
    with pytest.raises(ValueError, match=message):
        RoundPlan.from_json(plan().to_json() | change)


def test_json_of_a_part_alone_is_not_a_plan():
    with pytest.raises(ValueError, match="expected the JSON of a 'round-plan', got NoClip"):
        RoundPlan.from_json({"kind": "no-clip"})


def test_claim_says_everything_the_guarantee_depends_on():
    one = plan(sampler=FixedSizeSampler(K, 100), unit="record")
    claim = one.guarantee(1.25, 1e-6, "rdp", 500).claim
    for fact in (
        "1.25",
        "1e-06",
        "record",
        "replace-one",
        "1,000",
        "fixed-size sampling of 100 a round without replacement",
        "500 rounds",
        "noise of 0.6 times the sensitivity",
        "rdp",
        "the choice of settings",
    ):
        assert fact in claim.lower()
    assert "projected" not in claim
    assert "projected" in plan().guarantee(1.0, 1e-6, "pld", 5, projected=True).claim
