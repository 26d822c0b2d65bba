"""Rounds, cohort and noise from public facts: what more of anything must and must not do."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.mechanisms.planning import Question, answers
from tacit.planner.choice import (
    BEARABLE_NOISE,
    ROUNDS,
    SMALLEST_COHORT,
    Facts,
    choose,
    with_more,
)

FACTS = Facts(
    population=8_000,
    users=8_000,
    epsilon=8.0,
    delta=5e-5,
    parameters=1_356_144,
    seconds=1_600.0,
    users_per_second=70.0,
    seconds_per_round=0.2,
)


def epsilon_of(facts, choice):
    question = Question(
        population=facts.population,
        cohort=choice.cohort,
        rounds=choice.rounds,
        noise_multiplier=choice.noise_multiplier,
        delta=facts.delta,
    )
    return answers(question)[0][0].epsilon


def test_the_choice_keeps_to_epsilon_and_to_the_time():
    choice = choose(FACTS)
    assert epsilon_of(FACTS, choice) <= FACTS.epsilon
    assert epsilon_of(FACTS, choice) > 0.99 * FACTS.epsilon  # nothing of it is wasted
    took = choice.rounds * (choice.cohort / FACTS.users_per_second + FACTS.seconds_per_round)
    assert 0.95 * FACTS.seconds < took <= FACTS.seconds


def test_it_has_the_most_rounds_whose_noise_is_bearable():
    choice = choose(FACTS)
    assert choice.noise == pytest.approx(
        choice.noise_multiplier * FACTS.parameters**0.5 / choice.cohort
    )
    assert choice.noise <= BEARABLE_NOISE
    assert choice.rate_share == 1
    later = [rounds for rounds in ROUNDS if rounds > choice.rounds]
    for rounds in later:
        cohort = int(FACTS.users_per_second * (FACTS.seconds / rounds - FACTS.seconds_per_round))
        question = Question(
            population=FACTS.population,
            cohort=cohort,
            rounds=rounds,
            noise_multiplier=None,
            target_epsilon=FACTS.epsilon,
            delta=FACTS.delta,
        )
        z = answers(question)[0][0].plan.noise_multiplier
        assert z * FACTS.parameters**0.5 / cohort > BEARABLE_NOISE


def test_where_no_noise_is_bearable_the_server_goes_slower():
    few = dataclasses.replace(FACTS, population=300, users=300, delta=1e-3, epsilon=1.0)
    choice = choose(few)
    assert choice.noise > BEARABLE_NOISE
    assert choice.rate_share == pytest.approx(BEARABLE_NOISE / choice.noise)
    assert choice.cohort <= 300


def test_a_cohort_is_never_more_than_everybody():
    plenty = dataclasses.replace(FACTS, users_per_second=1e6)
    assert choose(plenty).cohort == FACTS.population


def test_too_little_time_is_refused_with_what_it_would_take():
    short = dataclasses.replace(FACTS, seconds=1.0)
    with pytest.raises(ValueError, match=rf"8 rounds of {SMALLEST_COHORT} users take 1 minutes"):
        choose(short)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.sampled_from(["users", "time", "epsilon"]), st.floats(1.5, 8), st.sampled_from([0.5, 2, 8])
)
def test_more_of_anything_never_means_less_training(what, factor, epsilon):
    facts = dataclasses.replace(FACTS, epsilon=epsilon)
    before, after = choose(facts), choose(with_more(facts, **{what: factor}))
    assert (after.rounds, -after.noise) >= (before.rounds, -before.noise) or (
        after.noise <= before.noise
    )
