import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from tacit.mechanisms.clipping import FlatClip, GeometricClip, NoClip, PerLayerClip
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator, UserWeighting
from tacit.mechanisms.noise import CorrelatedNoise, IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import (
    CyclicPoissonSampler,
    FixedSizeSampler,
    MinSeparationSampler,
    PoissonSampler,
)
from tacit.mechanisms.strategies import (
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
    ToeplitzStrategy,
)
from tacit.mechanisms.turns import Turns
from tacit.privacy.pld import gaussian_epsilon
from tacit.privacy.randomness import RunKey
from tests.audit.repeated_runs import _Seen, _seen, _statistics, audit_repeatedly

DELTA = 1e-5


def plan(plan_class=RoundPlan, **fields):
    defaults = dict(
        population=10,
        sampler=PoissonSampler(1.0),
        clipper=FlatClip(0.5),
        estimator=FixedDenominator(10.0),
        noise=IndependentNoise(1.0),
    )
    return plan_class(**(defaults | fields))


def audit(one_plan, seed=1, **options):
    options = {"dimension": 10, "delta": DELTA} | options
    return audit_repeatedly(one_plan, key=RunKey.from_seed(seed), **options)


# Seeded bugs, each in a part of the real round.


def halve_the_noise(monkeypatch):
    right = IndependentNoise.add
    monkeypatch.setattr(
        IndependentNoise,
        "add",
        lambda self, statistic, stddev, state, stream: right(
            self, statistic, stddev / 2, state, stream
        ),
    )


def leave_out_the_clip(monkeypatch):
    monkeypatch.setattr(
        FlatClip, "clip", lambda self, update, layers=None: NoClip().clip(update, layers)
    )


def weigh_by_half_as_much_again(monkeypatch):
    """What a forgotten min(., 1) does, past the assertion that guards against it."""
    right = RoundPlan.contribution

    def contribution(self, update, examples, clip_state):
        part = right(self, update, examples, clip_state)
        part.update += part.update // 2
        part.weight += part.weight // 2
        return part

    monkeypatch.setattr(RoundPlan, "contribution", contribution)


BUGS = {
    "noise halved": halve_the_noise,
    "clip left out": leave_out_the_clip,
    "weight above 1": weigh_by_half_as_much_again,
}


@pytest.fixture(scope="module")
def right():
    return audit(plan())


def test_the_plan_as_it_is_keeps_its_claim(right):
    assert 0.4 * right.claimed_epsilon < right.lower_bound <= right.claimed_epsilon
    assert not right.contradicts_claim


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(monkeypatch, right, bug):
    BUGS[bug](monkeypatch)
    wrong = audit(plan())
    assert wrong.claimed_epsilon == right.claimed_epsilon
    assert wrong.lower_bound > wrong.claimed_epsilon
    assert wrong.contradicts_claim


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught_every_time(monkeypatch, bug):
    BUGS[bug](monkeypatch)
    found = [audit(plan(), seed) for seed in range(10)]
    assert all(one.lower_bound > one.claimed_epsilon for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 4.0])
def test_a_right_mechanism_is_never_above_its_claim_in_20_runs_of_20(noise_multiplier):
    one_plan = plan(noise=IndependentNoise(noise_multiplier))
    for seed in range(20):
        found = audit(one_plan, seed, confidence=0.999)
        assert found.lower_bound <= found.claimed_epsilon
        assert not found.contradicts_claim


@pytest.mark.slow
def test_without_confidence_to_spare_the_bound_is_close_to_the_claim():
    """A bound that is valid because it is useless would pass all other tests.

    The true mu is 1, and both error rates are Phi(-1/2) = 0.3085 with a standard error of 0.0046.
    Their limits are 0.0092 above them in the mean, so that the bound on mu is 0.948 with a
    standard deviation of 0.0046 sqrt(2) / phi(1/2) = 0.0186; 0.874 is 4 of them below.
    """
    found = audit(plan(), repetitions=20_000, confidence=0.95)
    assert 0.874 < found.mu <= 1
    assert gaussian_epsilon(0.874, DELTA) < found.lower_bound <= found.claimed_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["noise halved", "clip left out"])
def test_a_bug_is_caught_where_cohorts_are_sampled(monkeypatch, bug):
    """Here the bound at one delta is too blunt, and the whole curve of the claim is needed."""
    one_plan = plan(sampler=PoissonSampler(0.5), noise=IndependentNoise(1.0))
    right = audit(one_plan, repetitions=4000)
    assert not right.contradicts_claim
    BUGS[bug](monkeypatch)
    wrong = audit(one_plan, repetitions=4000)
    assert wrong.contradicts_claim


@pytest.mark.parametrize("rounds", [1, 3])
def test_statistics_are_normal_around_nothing_and_around_the_number_of_rounds(rounds):
    """Within 4.5 standard errors, in mean and in spread, of the Gaussian mechanism's law."""
    outs, ins = _statistics(
        plan(noise=IndependentNoise(0.7)), RunKey.from_seed(3), 800, rounds, 5, 1
    )
    spread = 0.7 * math.sqrt(rounds)
    for values, centre in ((outs, 0), (ins, rounds)):
        assert len(values) == 400
        assert values.mean() == pytest.approx(centre, abs=4.5 * spread / 20)
        assert values.std() == pytest.approx(spread, rel=4.5 / math.sqrt(800))


def test_every_repetition_has_noise_of_its_own_and_a_key_repeats_them():
    outs, ins = _statistics(plan(), RunKey.from_seed(3), 200, 1, 4, 1)
    assert len(np.unique(np.r_[outs, ins])) == 200
    again, _ = _statistics(plan(), RunKey.from_seed(3), 200, 1, 4, 1)
    other, _ = _statistics(plan(), RunKey.from_seed(4), 200, 1, 4, 1)
    assert (again == outs).all()
    assert (other != outs).all()


def test_a_canary_adds_one_under_any_weighting_denominator_and_schedule():
    """Without noise to speak of, the unit of the statistic shows."""
    quiet = dict(noise=IndependentNoise(1e-4))
    for one_plan in (
        plan(**quiet),
        plan(**quiet, weighting=UserWeighting(33.3)),
        plan(**quiet, weighting=UserWeighting(33.3), weight_aware=True),
        plan(**quiet, estimator=FixedDenominator(7.0)),
        plan(**quiet, estimator=ClippedDenominator(5.0)),
        plan(**quiet, schedule=GeometricClip(0.5, 0.01)),
        plan(**quiet, clipper=PerLayerClip((0.3, 0.4)), layers=(2, 2)),
    ):
        outs, ins = _statistics(one_plan, RunKey.from_seed(1), 40, 2, 4, 1)
        added = 2 * one_plan.clipper.norms[0] / one_plan.clipper.total_norm
        assert outs == pytest.approx(np.zeros(20), abs=0.01)
        assert ins == pytest.approx(np.full(20, added), abs=0.01)


def test_the_gaussian_bound_is_the_formula_at_the_upper_limits():
    found = audit(plan(), repetitions=400)
    level = 0.0005
    high = [
        binomtest(count, trials, alternative="less").proportion_ci(1 - level).high
        for count, trials in (
            (found.false_positives, found.without_canary),
            (found.false_negatives, found.with_canary),
        )
    ]
    assert found.mu == pytest.approx(norm.isf(high[0]) - norm.ppf(high[1]), rel=1e-6)
    assert found.lower_bound == pytest.approx(gaussian_epsilon(found.mu, DELTA))
    assert found.claimed_epsilon == pytest.approx(gaussian_epsilon(1.0, DELTA))
    assert found.threshold == 0.5
    assert found.ceiling > found.lower_bound


def test_a_sampled_claim_is_held_against_the_accountants_figure_and_its_pilot_is_not_counted():
    one_plan = plan(sampler=PoissonSampler(0.4), noise=IndependentNoise(0.5))
    found = audit(one_plan, repetitions=800, confidence=0.9)
    assert found.mu is None
    assert found.without_canary == found.with_canary == 300
    assert 0 < found.lower_bound <= found.claimed_epsilon
    assert not found.contradicts_claim
    given = audit(one_plan, repetitions=200, threshold=0.6)
    assert (given.threshold, given.with_canary) == (0.6, 100)


@pytest.mark.parametrize(
    "fields",
    [{"estimator": ClippedDenominator(2.0)}, {"sampler": FixedSizeSampler(10, 10)}],
    ids=["clipped denominator", "replace-one"],
)
def test_claims_with_more_room_than_one_canary_takes_are_not_contradicted(fields):
    found = audit(plan(**fields), repetitions=600, confidence=0.95)
    assert found.lower_bound <= found.claimed_epsilon
    assert not found.contradicts_claim


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"noise": None}, {}, "the plan must have noise"),
        ({}, {"repetitions": 199}, "repetitions must be at least 200, got 199"),
        ({}, {"rounds": 0}, "rounds must be at least 1, got 0"),
        ({}, {"confidence": 1.0}, "confidence must be strictly between 0 and 1, got 1"),
        ({}, {"delta": 0.0}, "delta must be strictly between 0 and 1, got 0"),
        ({}, {"bystanders": 10, "dimension": 20}, "below the plan's population of 10, got 10"),
        ({}, {"bystanders": 3, "dimension": 3}, "above the number of bystanders, 3, got 3"),
        ({}, {"bystanders": -1}, "bystanders must be at least 0, got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused(fields, options, message):
    with pytest.raises(ValueError, match=message):
        audit(plan(**fields), **options)


def test_the_result_says_what_was_counted():
    found = audit(plan(), repetitions=400)
    assert (found.without_canary, found.with_canary) == (200, 200)
    assert 0 < found.false_positives < 200
    assert (found.delta, found.confidence) == (DELTA, 0.999)
    assert dataclasses.asdict(found)["contradicts_claim"] is False


# Users who take turns, and noise that is partly taken back in later rounds.

BUFFERED = BufferedToeplitz((0.9, 0.5), (0.3, 0.2))
ROUNDS = 6


def in_turns(strategy=BUFFERED, z=1.0, separation=2, **fields):
    """Everybody whose turn it is takes part, every second round.

    By what the strategy costs, mu is a little above 2 for z = 1.
    """
    noise = IndependentNoise(z) if strategy is None else CorrelatedNoise(z, strategy)
    return plan(**{"sampler": MinSeparationSampler(separation, 1.0), "noise": noise} | fields)


def audit_turns(one_plan=None, seed=1, **options):
    options = {"rounds": ROUNDS, "repetitions": 600} | options
    return audit(one_plan or in_turns(z=2.0), seed, **options)


def take_back_none(monkeypatch):
    """The state is forgotten after every round."""
    right = CorrelatedNoise.next
    monkeypatch.setattr(
        CorrelatedNoise,
        "next",
        lambda self, size, stddev, state, stream: right(self, size, stddev, (), stream),
    )


def take_back_twice(monkeypatch):
    right = BufferedToeplitz.step

    def step(self, fresh, state):
        drawn = fresh.copy()
        once, state = right(self, fresh, state)
        return 2 * once - drawn, state

    monkeypatch.setattr(BufferedToeplitz, "step", step)


def halve_the_sensitivity(monkeypatch):
    right = ToeplitzStrategy.sensitivity
    monkeypatch.setattr(
        ToeplitzStrategy,
        "sensitivity",
        lambda self, participation, rounds: right(self, participation, rounds) / 2,
    )


def take_part_one_round_too_early(monkeypatch):
    monkeypatch.setattr(
        Turns, "of_round", lambda self, round: self.groups[round % (len(self.groups) - 1)]
    )


COSTLY_BUGS = {
    "half the sensitivity": halve_the_sensitivity,
    "a participation too early": take_part_one_round_too_early,
}
NOISE_BUGS = {
    "noise not taken back": take_back_none,
    "noise taken back twice": take_back_twice,
    "noise halved": lambda patch: patch.setattr(
        CorrelatedNoise,
        "next",
        lambda self, size, stddev, state, stream, right=CorrelatedNoise.next: right(
            self, size, stddev / 2, state, stream
        ),
    ),
}


@pytest.fixture(scope="module")
def right_turns():
    return audit_turns()


def test_turns_with_correlated_noise_keep_their_claim_and_the_bound_is_sharp(right_turns):
    """With a false-alarm rate of 0.1% for the claim and of 0.1% for the noise."""
    assert 0.5 * right_turns.claimed_epsilon < right_turns.lower_bound
    assert right_turns.lower_bound <= right_turns.claimed_epsilon
    assert not right_turns.contradicts_claim
    assert right_turns.noise_p > 0.001


@pytest.mark.parametrize("bug", COSTLY_BUGS)
def test_a_seeded_bug_of_turns_that_costs_privacy_contradicts_the_claim(
    monkeypatch, right_turns, bug
):
    COSTLY_BUGS[bug](monkeypatch)
    wrong = audit_turns()
    assert wrong.lower_bound > wrong.claimed_epsilon
    assert wrong.contradicts_claim
    assert wrong.noise_p == right_turns.noise_p  # the noise is as it should be


@pytest.mark.parametrize("bug", NOISE_BUGS)
def test_a_seeded_bug_in_correlated_noise_is_seen_in_the_noise(monkeypatch, bug):
    """At a level of 1e-6; the right noise is below it in one of a million audits."""
    NOISE_BUGS[bug](monkeypatch)
    assert audit_turns(repetitions=300).noise_p < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        BUFFERED,
        BandedToeplitz((1.0, 0.6, 0.1)),
        BandedToeplitz((1.0, -0.5)),
        SquareRootToeplitz(ROUNDS),
        BinaryTree(),
        None,
    ],
    ids=lambda one: one.kind if one else "independent",
)
def test_right_noise_is_neither_contradicted_nor_seen_otherwise_in_20_runs_of_20(strategy):
    for seed in range(20):
        found = audit_turns(in_turns(strategy), seed, repetitions=400)
        assert not found.contradicts_claim
        assert found.noise_p > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("bug", COSTLY_BUGS | NOISE_BUGS)
def test_a_seeded_bug_of_turns_is_caught_every_time(monkeypatch, bug):
    (COSTLY_BUGS | NOISE_BUGS)[bug](monkeypatch)
    for seed in range(10):
        found = audit_turns(seed=seed)
        assert found.contradicts_claim if bug in COSTLY_BUGS else found.noise_p < 1e-6


def test_the_matched_filter_sees_as_much_as_the_claim_allows():
    """Within 4.5 standard errors: deviation k z / |p|, around 0 and around k turns.

    The plain sum over all rounds would have another one.
    """
    z, k = 0.7, 3
    outs, ins = _statistics(in_turns(z=z), RunKey.from_seed(3), 400, ROUNDS, 5, 1)
    pattern = BUFFERED.matrix(ROUNDS)[:, ::2].sum(axis=1)
    spread = k * z / np.linalg.norm(pattern)
    for values, centre in ((outs, 0), (ins, k)):
        assert values.mean() == pytest.approx(centre, abs=4.5 * spread / math.sqrt(200))
        assert values.std() == pytest.approx(spread, rel=4.5 / math.sqrt(400))
    every_round = z * np.linalg.norm(np.linalg.inv(BUFFERED.matrix(ROUNDS)).sum(axis=0))
    assert every_round > 1.15 * spread


@pytest.mark.parametrize("replace_one", [False, True])
def test_a_canary_adds_one_in_each_of_its_turns_and_in_no_other(replace_one):
    quiet = in_turns(z=1e-4, separation=4, sampler=MinSeparationSampler(4, 1.0, replace_one))
    seen = _seen(quiet, RunKey.from_seed(1), 20, 9, 4, 1)
    assert seen.drawn.tolist() == [round % 4 == 0 for round in range(9)]
    assert seen.ins == pytest.approx(np.tile(1.0 * seen.drawn, (10, 1)), abs=0.01)
    assert seen.outs == pytest.approx(np.zeros((10, 9)), abs=0.01)


def test_a_turn_that_is_sampled_is_held_against_its_own_claim():
    cyclic = plan(
        sampler=CyclicPoissonSampler(3, 0.5),
        noise=CorrelatedNoise(0.7, BandedToeplitz((1.0, 0.5, 0.2))),
    )
    found = audit(cyclic, repetitions=400, rounds=6, confidence=0.95)
    assert found.mu is None
    assert not found.contradicts_claim
    assert found.noise_p > 0.001


def test_the_p_value_of_the_noise_is_one_for_right_noise_as_often_as_it_says():
    """Of 400 looks at right noise 40 are below 10% at most: 58 are 3 standard errors above."""
    draws = np.random.default_rng(1).normal(size=(400, 50, 4))
    correlated = draws @ np.linalg.inv(BUFFERED.matrix(4)).T
    looks = [_Seen(in_turns(), one, one, np.ones(4, bool)).noise_p() for one in correlated]
    assert 10 < sum(p < 0.1 for p in looks) < 58
