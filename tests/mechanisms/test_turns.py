"""Users who take turns: nobody too early, nobody moved by another, and what it costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.mechanisms.planning import PlanSettings, round_plan
from tacit.mechanisms.samplers import CyclicPoissonSampler, MinSeparationSampler
from tacit.mechanisms.strategies import (
    INDEPENDENT,
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
)
from tacit.mechanisms.turns import Position, Turns, turn_of
from tacit.privacy.events import Adjacency, Gaussian, PoissonGaussian
from tacit.privacy.randomness import RunKey

FALSE_ALARM = 1e-6
KEYS = [f"user {number}" for number in range(500)]


def plan(**changes):
    settings = {
        "population": 1000,
        "cohort": 100,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling": "min-separation",
        "separation": 5,
    }
    return round_plan(PlanSettings(**settings | changes), delta=1e-6, rounds=40)


def stream(round, attempt=0):
    key = RunKey.from_seed(1)
    return key.stream(branch="main", round=round, attempt=attempt, purpose="cohort")


# Groups.


@given(st.integers(1, 40), st.integers(0, 60))
def test_everybody_is_in_one_group_their_own(separation, users):
    turns = Turns.of(KEYS[:users], separation)
    assert len(turns.groups) == separation
    assert sorted(itertools.chain(*turns.groups)) == list(range(users))
    for number, group in enumerate(turns.groups):
        assert list(group) == sorted(group)
        assert {turn_of(KEYS[user], separation) for user in group} <= {number}


def test_whoever_comes_or_goes_moves_nobody_else():
    everybody, others = Turns.of(KEYS, 7), Turns.of(KEYS[1:], 7)
    for one, other in zip(everybody.groups, others.groups, strict=True):
        assert [KEYS[user] for user in one if user] == [KEYS[1 + user] for user in other]


def test_groups_are_of_about_equal_size():
    """The false-alarm rate is one in a million, and no group may be left out."""
    counts = np.bincount([turn_of(f"{n}", 13) for n in range(13_000)], minlength=13)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare([0, *counts[2:], counts[0] + counts[1]]).pvalue < FALSE_ALARM


@pytest.mark.parametrize("sampling", ["min-separation", "cyclic-poisson"])
def test_no_user_takes_part_again_before_the_separation(sampling):
    """Over many rounds, with second attempts among them, as a run draws its cohorts."""
    one = plan(sampling=sampling)
    turns = Turns.of(KEYS, 5)
    seen: dict[int, list[int]] = {}
    for round in range(60):
        for attempt in range(1 + (round % 7 == 0)):
            for user in one.cohort(len(KEYS), stream(round, attempt), round, turns):
                seen.setdefault(int(user), []).append(round)
    assert len(seen) > 450
    for user, rounds in seen.items():
        assert {round % 5 for round in rounds} == {turn_of(KEYS[user], 5)}


def test_everybody_whose_turn_it_is_joins_with_the_share_and_nobody_else():
    """The false-alarm rate is one in a million; a share of a half is noticed where it is not."""
    half, turns = plan(cohort=100), Turns.of(KEYS, 5)
    assert half.sampler.share == 0.5
    assert half.sampler.sampling_prob == pytest.approx(0.1)
    joined = possible = 0
    for round in range(100):
        cohort = half.cohort(len(KEYS), stream(round), round, turns)
        assert set(cohort) <= set(turns.of_round(round))
        joined, possible = joined + len(cohort), possible + len(turns.of_round(round))
    assert stats.binomtest(joined, possible, 0.5).pvalue > FALSE_ALARM
    assert stats.binomtest(joined, possible, 0.45).pvalue < FALSE_ALARM
    everybody = plan(cohort=200)
    assert everybody.sampler.share == 1
    for round in range(5):
        cohort = everybody.cohort(len(KEYS), stream(round), round, turns)
        assert list(cohort) == list(turns.of_round(round))


def test_a_group_may_be_empty():
    turns = Turns.of(KEYS[:1], 5)
    sizes = [len(plan(cohort=200).cohort(1, stream(r), r, turns)) for r in range(5)]
    assert sorted(sizes) == [0, 0, 0, 0, 1]


# What it costs.

STRATEGIES = [
    INDEPENDENT,
    BandedToeplitz((1.0, -0.5, 0.2)),
    BufferedToeplitz((0.9, 0.3), (0.4, 0.2)),
    SquareRootToeplitz(9),
    BinaryTree(),
]


def moves(matrix, separation):
    """|C u| where one user gives the same vector of norm 1 in each of a group's rounds."""
    return [np.linalg.norm(matrix[:, turn::separation].sum(axis=1)) for turn in range(separation)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.kind)
@pytest.mark.parametrize("rounds", [1, 4, 5, 6, 23])
def test_no_group_moves_the_sum_further_than_is_charged_for(strategy, rounds):
    sampler = MinSeparationSampler(5, 1.0)
    event = sampler.horizon_event(2.0, strategy, Position("h", rounds))
    worst = max(moves(strategy.matrix(rounds), 5))
    assert 2.0 / event.noise_multiplier >= worst * (1 - 1e-12)
    if strategy.kind != "tree":
        assert 2.0 / event.noise_multiplier == pytest.approx(worst, rel=1e-12)
    assert event.times == math.ceil(rounds / 5)
    assert event.amounts_to() == (Gaussian(event.noise_multiplier), 1)


@pytest.mark.parametrize("noise", ["independent", "banded", "blt", "square-root", "tree"])
@pytest.mark.parametrize("estimator", ["fixed", "clipped"])
@pytest.mark.parametrize("separation", [1, 2, 5])
def test_who_is_replaced_and_who_replaces_may_be_of_two_groups(noise, estimator, separation):
    """Each moves the sum in other rounds; with noise that is correlated the moves add up."""
    one = plan(noise=noise, estimator=estimator, separation=separation, replace_one=True)
    assert one.adjacency is Adjacency.REPLACE
    event = one.event(Position("h", 40))
    strategy = getattr(one.noise, "strategy", INDEPENDENT)
    matrix = strategy.matrix(40)
    # Of one user, in units of the noise's deviation, z times what one user moves a round by.
    leaver, comer = (matrix[:, turn::separation].sum(axis=1) for turn in (0, separation - 1))
    worst = np.linalg.norm(leaver + comer) if separation > 1 else 2 * np.linalg.norm(leaver)
    assert 1 / event.noise_multiplier >= worst * (1 - 1e-12)
    added = plan(noise=noise, estimator=estimator, separation=separation).event(Position("h", 40))
    assert event.noise_multiplier == pytest.approx(added.noise_multiplier / 2, rel=1e-12)
    assert event.amounts_to()[0].adjacency is Adjacency.REPLACE


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 30))
def test_a_turn_of_cyclic_sampling_is_a_column_that_shares_no_row_with_the_users_next(
    bands, rounds
):
    strategy, sampler = SquareRootToeplitz(bands), CyclicPoissonSampler(6, 0.25)
    event = sampler.horizon_event(1.0, strategy, Position("h", rounds))
    matrix = strategy.matrix(rounds)
    for first in range(min(6, rounds)):
        columns = matrix[:, first::6]
        assert columns.T @ columns == pytest.approx(np.diag(np.sum(columns**2, axis=0)), abs=0)
    widest = np.linalg.norm(matrix, axis=0).max()
    assert 1 / event.noise_multiplier == pytest.approx(widest, rel=1e-12)
    turns = math.ceil(rounds / 6)
    assert event.amounts_to() == (PoissonGaussian(0.25, event.noise_multiplier), turns)


@pytest.mark.parametrize(
    "strategy", [SquareRootToeplitz(6), BufferedToeplitz((0.5,), (0.1,)), BinaryTree()]
)
def test_turns_that_share_noise_are_not_amplified(strategy):
    with pytest.raises(ValueError, match=r"banded with at most plan.separation = 5 bands .* share"):
        CyclicPoissonSampler(5, 0.5).horizon_event(1.0, strategy, Position("h", 9))


def test_everybody_in_every_round_is_the_gaussian_mechanism_each_time():
    daily = MinSeparationSampler(1, 1.0)
    event = daily.horizon_event(3.0, INDEPENDENT, Position("h", 9))
    assert event.noise_multiplier == pytest.approx(3.0 / math.sqrt(9))


def test_correlated_noise_needs_turns_and_a_clip_norm_that_stays():
    with pytest.raises(ValueError, match="got poisson sampling; use min-separation"):
        plan(noise="blt", sampling="poisson", separation=None)
    with pytest.raises(ValueError, match="got fixed sampling; use min-separation"):
        plan(noise="banded", sampling="fixed", separation=None)
    with pytest.raises(ValueError, match="it must be at most 10, the population over the cohort"):
        plan(separation=11)
