"""Rounds whose noise is added by their users: what is released, charged, planned and refused.

Statistical tests raise a false alarm for one seed in 10^6.  All seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms.clipping import FlatClip, GeometricClip, PerLayerClip, QuantileClip
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator, UserWeighting
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.planning import PlanSettings, Question, answers, round_plan
from tacit.mechanisms.samplers import MinSeparationSampler, PoissonSampler
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, DistributedGaussian, TurnsDistributedGaussian
from tacit.privacy.stream import Stream

FALSE_ALARM = 1e-6
SIZE, USERS = 2000, 12
LAYERS = (1500, 500)


def shared(**changed: object) -> RoundPlan:
    """Twelve users, all of them in every round; two may drop out and one may tell."""
    z = changed.pop("noise_multiplier", 1.0)
    fields = {"size": SIZE, "clients": USERS, "survivors": 10, "colluding": 1}
    noise = {name: changed.pop(name, value) for name, value in fields.items()}
    parts = {
        "population": USERS,
        "sampler": MinSeparationSampler(1, 1.0),
        "clipper": FlatClip(0.5),
        "estimator": FixedDenominator(float(USERS)),
        "noise": DistributedNoise(z, **noise),
    }
    return RoundPlan(**(parts | changed))


def own(user: int, seed: int = 0) -> object:
    return lambda hidden: Stream(bytes([user, seed]) * 16)


def no_streams(purpose: str) -> Stream:
    raise AssertionError(f"a release with noise in it asked for a stream for {purpose}")


def updates(users: int = USERS) -> np.ndarray:
    values = np.random.default_rng(1).normal(size=(users, SIZE))
    return values * (0.4 / np.linalg.norm(values, axis=1, keepdims=True))


def summed(plan: RoundPlan, given: np.ndarray, seed: int = 0) -> Contribution:
    total, clip = plan.empty(SIZE), plan.initial_clip_state()
    for user, update in enumerate(given):
        plan.add(total, update, 10, clip, own(user, seed))
    return total


def released(plan: RoundPlan, total: Contribution) -> np.ndarray:
    return plan.release(total, plan.initial_clip_state(), no_streams).average


# A round


def test_the_average_has_the_noise_of_all_shares_and_no_other_amount():
    """Each of ten rounds' errors, against the deviation that follows from the plan; a share too
    few or too many among twelve (4%) is noticed in 20,000 values."""
    plan, given = shared(), updates()
    errors = [released(plan, summed(plan, given, seed)) - given.mean(0) for seed in range(10)]
    noise = plan.shared_noise
    sigma = noise.noise_stddev(USERS, plan.initial_clip_state()) / USERS
    assert fits(np.ravel(errors), sigma)
    assert stats.kstest(np.ravel(errors) / sigma, "norm").pvalue > FALSE_ALARM
    for wrong in (USERS - 1, USERS + 1):
        assert not fits(np.ravel(errors), sigma * math.sqrt(wrong / USERS))
    for_fewest = noise.noise_stddev(noise.shares, plan.initial_clip_state())
    assert for_fewest == pytest.approx(noise.inflation * 0.5, rel=1e-12)  # z = 1, S = 1/2


def fits(errors: np.ndarray, sigma: float) -> bool:
    p = stats.chi2.cdf(np.sum((errors / sigma) ** 2), errors.size)
    return bool(FALSE_ALARM / 2 < p < 1 - FALSE_ALARM / 2)


def test_users_whose_shares_are_too_small_are_noticed():
    """The same test, on users who add the noise that would do if all twelve were honest."""
    plan, given = shared(), updates()
    wrong = shared(survivors=USERS, colluding=0)
    errors = [released(wrong, summed(wrong, given, seed)) - given.mean(0) for seed in range(10)]
    sigma = plan.shared_noise.noise_stddev(USERS, plan.initial_clip_state()) / USERS
    assert not fits(np.ravel(errors), sigma)


def test_a_release_is_what_a_slow_reading_of_the_paper_gives():
    """Whole numbers of Python, one after the other, and dense matrices."""
    plan = shared(size=40, layers=None)
    noise, clip = plan.shared_noise, plan.initial_clip_state()
    given = updates(USERS)[:, :40]
    vectors = [
        plan.contribution(update, 10, clip, own(user)).update for user, update in enumerate(given)
    ]
    total = plan.empty(40)
    for user, update in enumerate(given):
        plan.add(total, update, 10, clip, own(user))
    whole = [sum(int(vector[at]) for vector in vectors) for at in range(len(vectors[0]))]
    half = 2 ** (noise.width - 1)
    centred = [(value + half) % (2 * half) - half for value in whole]
    units = np.eye(noise.rotation.padded)
    back = np.array([noise.total(unit.astype(np.int64), clip) for unit in units])
    expected = sum(value * row for value, row in zip(centred, back, strict=True)) / USERS
    average = plan.release(total, clip, no_streams).average
    np.testing.assert_allclose(average, expected, atol=1e-12)
    scale = 0.5 / noise.steps
    np.testing.assert_allclose(back.T @ back, scale**2 * np.eye(40), atol=1e-15)


def test_the_order_of_users_and_what_wraps_change_no_bit():
    plan, given = shared(), updates()
    clip = plan.initial_clip_state()
    parts = [plan.contribution(one, 10, clip, own(user)) for user, one in enumerate(given)]
    total, backwards, wrapped = plan.empty(SIZE), plan.empty(SIZE), plan.empty(SIZE)
    for part in parts:
        total += part
    for part in parts[::-1]:
        backwards += part
    wrapped.update += total.update + 2**16 * 7
    expected = released(plan, summed(plan, given)).tobytes()
    for each in (total, backwards, wrapped):
        assert released(plan, each).tobytes() == expected


def test_weights_scale_the_update_and_are_not_in_the_sum():
    plan = shared(weighting=UserWeighting(20.0), noise_multiplier=0.05)
    part = plan.contribution(np.ones(SIZE), 10, plan.initial_clip_state(), own(0))
    assert (part.weight, part.bits.size) == (0, 0)
    given = np.tile(updates()[0], (USERS, 1))
    error = released(plan, summed(plan, given)) - 0.5 * given[0]
    sigma = plan.shared_noise.noise_stddev(USERS, plan.initial_clip_state()) / USERS
    assert fits(error, sigma)
    assert not fits(released(plan, summed(plan, given)) - given[0], sigma)


@pytest.mark.parametrize(
    "changed",
    [
        {"clipper": PerLayerClip((0.3, 0.4)), "layers": LAYERS},
        {"schedule": GeometricClip(0.9, 0.1)},
        {"weight_aware": True, "weighting": UserWeighting(5.0)},
    ],
    ids=["layers", "schedule", "weight aware"],
)
def test_clips_of_all_kinds_end_within_the_bound_and_on_the_average(changed):
    plan = shared(noise_multiplier=0.05, **changed)
    given = 100 * updates()
    clip = plan.initial_clip_state()
    for number in range(2):
        total = plan.empty(SIZE)
        for user, update in enumerate(given):
            plan.add(total, update, 10, clip, own(user, number))
        release = plan.release(total, clip, no_streams)
        expected = np.mean(
            [plan.clipper.with_norms(clip.norms).clip(u, plan.layers).values for u in given], axis=0
        )
        sigma = plan.shared_noise.noise_stddev(USERS, clip) / USERS
        assert fits(release.average - expected, sigma)
        assert not fits(release.average - 0.5 * expected, sigma)
        clip = release.clip_state


def test_a_user_without_a_secret_of_its_own_is_refused():
    plan = shared()
    with pytest.raises(ValueError, match="need a stream of their own"):
        plan.add(plan.empty(SIZE), updates()[0], 10, plan.initial_clip_state())


def test_too_few_users_are_refused():
    shared().refuse_few(10, round=4)
    with pytest.raises(ValueError, match="round 4 has 9 users, and the noise that they share is"):
        shared().refuse_few(9, round=4)
    replace(shared(), noise=IndependentNoise(1.0)).refuse_few(0, round=4)


# What it costs


def test_a_round_is_charged_as_the_noise_of_the_fewest_honest():
    plan = shared(noise_multiplier=1.3)
    event = plan.event()
    assert isinstance(event, TurnsDistributedGaussian)
    assert (event.each.shares, event.times) == (9, 1)
    assert event.each == plan.shared_noise.each()
    assert plan.adjacency is event.adjacency is Adjacency.ZERO_OUT
    assert event.noise_multiplier == pytest.approx(1.3, rel=1e-12)
    assert plan.event_multiplier == pytest.approx(1.3, rel=1e-12)


def test_every_turn_of_a_user_is_a_release_of_its_own():
    plan = shared(
        sampler=MinSeparationSampler(3, 1.0), population=3 * USERS, estimator=FixedDenominator(36.0)
    )
    each = plan.shared_noise.each()
    assert plan.releases(7).counts == ((each, 3),)
    rdp, z = accountant_named("rdp"), each.noise_multiplier
    alone = DistributedGaussian(1, z * each.sensitivity, each.sensitivity, each.coordinates)
    assert rdp.epsilon(plan.releases(7), 1e-5) == pytest.approx(
        rdp.epsilon(replace_counts(alone, 3), 1e-5), rel=1e-9
    )
    with pytest.raises(ValueError, match="pld accountant has no sound figure for sums of discrete"):
        accountant_named("pld").epsilon(plan.releases(7), 1e-5)


def replace_counts(event: DistributedGaussian, times: int):
    return shared().releases(1).of([(event, times)])


def test_replace_one_doubles_the_sensitivity():
    plan = shared(sampler=MinSeparationSampler(1, 1.0, replace_one=True))
    assert plan.adjacency is plan.event().adjacency is Adjacency.REPLACE
    assert plan.event().noise_multiplier == pytest.approx(0.5, rel=1e-12)
    assert plan.event_multiplier == pytest.approx(0.5, rel=1e-12)


def test_a_plan_is_read_back_and_every_number_of_the_noise_is_in_its_hash():
    plan = shared()
    assert RoundPlan.from_json(plan.to_json()) == plan
    others = [shared(survivors=11), shared(colluding=0), shared(noise_multiplier=1.1)]
    others += [replace(plan, noise=replace(plan.noise, width=32)), shared(size=1999)]
    assert len({each.hash() for each in (plan, *others)}) == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampler": PoissonSampler(1.0)}, 'needs everybody whose turn it is.*"min-separation"'),
        ({"sampler": MinSeparationSampler(1, 0.9)}, "plan.population / plan.separation; got users"),
        ({"estimator": ClippedDenominator(9.0)}, 'needs plan.estimator = "fixed" and no plan.adap'),
        ({"adaptive": QuantileClip(0.5)}, "weights and clip bits would be summed without noise"),
        ({"layers": (1500, 501)}, "noise must be for the 2,001 weights of the layers, got 2,000"),
        ({"survivors": 13}, "survivors must be more than the 1 colluding and at most all 12"),
    ],
)
def test_plans_that_would_say_too_little_or_release_too_much_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        shared(**changed)


# Planning

SETTINGS = PlanSettings(
    population=1200,
    cohort=100.0,
    sampling="min-separation",
    separation=12,
    clip_norm=1.0,
    noise_multiplier=1.0,
    noise="distributed",
    layers=(3000, 500),
)


def made(**changed: object) -> DistributedNoise:
    noise = round_plan(replace(SETTINGS, **changed), delta=1e-6, rounds=10).shared_noise
    assert noise is not None
    return noise


def test_what_is_not_said_follows_from_public_numbers():
    noise = made()
    assert (noise.size, noise.width, noise.colluding) == (3500, 16, 1)
    assert noise.survivors == 67  # two thirds of 100, and one more
    assert noise.clients == 100
    assert made(cohort=70.5, separation=17).clients == 71
    assert made(cohort=1200.0, separation=1).clients == 1200
    assert made(survivors=90, colluding=5, width=24) == replace(
        noise, survivors=90, colluding=5, width=24
    )


@pytest.mark.parametrize("name", ["survivors", "colluding", "width"])
def test_settings_of_shared_noise_are_refused_beside_any_other(name):
    with pytest.raises(ValueError, match=f"{name} is a setting of distributed noise, got 24 with"):
        round_plan(replace(SETTINGS, noise=None, **{name: 24}), delta=1e-6, rounds=10)


def test_a_deviation_of_the_average_cannot_be_promised():
    with pytest.raises(ValueError, match="noise_stddev is the noise of a server"):
        made(noise_multiplier=None, noise_stddev=0.01)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_noise_is_found_for_an_epsilon_by_the_accountant_that_is_sound(epsilon):
    question = Question(
        population=1200,
        cohort=100,
        rounds=36,
        noise_multiplier=None,
        target_epsilon=epsilon,
        delta=1e-5,
        noise="distributed",
        sampling="min-separation",
    )
    [answer], _ = answers(question)
    assert answer.accountant == "rdp"
    assert 0.998 * epsilon <= answer.epsilon <= epsilon
    assert "under zero-out-one adjacency" in answer.claim
    assert "at least 66 honest ones a round add noise" in answer.claim
    of_layers, _ = answers(replace(question, layers=(3500,)))
    assert of_layers[0].plan.noise_multiplier == pytest.approx(answer.plan.noise_multiplier)


def test_an_epsilon_that_16_bits_have_no_room_for_is_refused_by_name():
    question = Question(
        population=1200,
        cohort=1200,
        rounds=500,
        noise_multiplier=None,
        target_epsilon=0.5,
        delta=1e-5,
        noise="distributed",
        sampling="min-separation",
        width=16,
    )
    with pytest.raises(ValueError, match="width must be above 16 bits for 1200 clients"):
        answers(question)


def test_bits_are_the_fewest_that_hold_the_noise():
    assert made().width == 16
    assert made(layers=(10**6,), noise_multiplier=20.0).width == 24
    assert made(noise_multiplier=1e5).width == 32
