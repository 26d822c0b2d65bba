"""How many rounds, how many people in each and how much each reads: chosen without protected text.

A time allows a number of users' updates, to be spent on T rounds of C users who read n tokens each.
More rounds let the model go further; noise on the average has a stddev of z S / (C w) for each of d
trained parameters, where w is a person's mean weight, so that its length in clip norms is

    noise = z sqrt(d) / (C w).

Reading more makes an update say more about the language and less about the text that happened to be
read, and takes time from the cohort.  `planner.law` weighs these against each other: the choice is
what gets furthest by it.  Beyond some size a cohort has hardly less noise, since the z that meets
an epsilon grows with it: then fewer people, and less time, do as well.

The z of a choice is that of the kind of noise which leaves the least in the model
(`planner.noises`), as independent noise that is as bad, unless a kind was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from tacit.mechanisms.plan import RoundPlan
from tacit.planner import law, noises
from tacit.planner.noises import PlannedNoise, Terms
from tacit.privacy.records import NonNegative, OpenUnit, Positive, Probability, Record, at_least

ROUNDS = (8, 12, 16, 24, 32, 48, 64, 80, 100, 125, 150, 200, 250, 300, 400)
RATE_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)  # of the server's full learning rate
SMALLEST_COHORT = 20  # fewer people a round are no average
_FIRST_TRIED = 64  # rounds: most plans end up near it
_GOOD_ENOUGH = 0.98  # of what is learnt: nobody would wait for the rest, under 0.1 points


@dataclass(frozen=True)
class Reading(Record):
    """How much people read in a round, and how fast."""

    tokens: Annotated[int, at_least(2)]  # of a user, at most
    typical: Positive  # times as much as in a rehearsal, on average over test people
    users_per_second: Positive


@dataclass(frozen=True)
class Facts(Record):
    """What a plan is decided from.  None of it is computed from protected people's text."""

    population: Annotated[int, at_least(2)]
    users: Annotated[int, at_least(1)]  # there are: no cohort is larger
    epsilon: Positive
    delta: OpenUnit
    parameters: Annotated[int, at_least(1)]  # that are trained
    weight: Probability  # of a person, on average over test people
    gain: NonNegative  # of a rehearsal on test people, in nats a token
    seconds: Positive  # for all rounds
    seconds_per_round: NonNegative  # besides users' updates
    readings: tuple[Reading, ...]
    noise: str | None = None  # the kind that was asked for
    separation: Annotated[int, at_least(1)] | None = None  # that was asked for

    @property
    def asks_for_noise(self) -> bool:
        """Whether a person has decided what noise it is to be."""
        return self.noise is not None or self.separation is not None


@dataclass(frozen=True)
class Choice(Record):
    """A number of rounds and what follows from it."""

    rounds: int
    cohort: int
    noises: PlannedNoise
    noise: Positive  # the length of the noise on the average, in units of the clip norm
    reading: Reading
    gain: NonNegative  # of the rehearsal

    @property
    def noise_multiplier(self) -> float:
        """z, of a single round."""
        return self.noises.noise_multiplier

    @property
    def rate_share(self) -> float:
        """The share of the server's full learning rate that gets furthest with this noise."""
        return max(RATE_SHARES, key=self._fall_at)

    @property
    def fall(self) -> float:
        """By how many nats a token the loss falls, by the law."""
        return self._fall_at(self.rate_share)

    def seconds(self, facts: Facts) -> float:
        """That all rounds take."""
        each = self.cohort / self.reading.users_per_second + facts.seconds_per_round
        return self.rounds * each

    def _fall_at(self, rate_share: float) -> float:
        return law.fall(self.gain, self.rounds, self.noise, rate_share, self.reading.typical)


def choose(facts: Facts, near: Choice | None = None) -> Choice:
    """What gets furthest in the time.

    Args:
        facts: what it is decided from.
        near: a choice from facts that differ little: it is not far away, and found sooner.

    Raises:
        ValueError: if the time is too short for the fewest rounds of the smallest cohort.
    """
    refuse_small_turns(facts.population, facts.separation)
    best, first = None, near.rounds if near else _FIRST_TRIED
    for reading in facts.readings:
        choice = _best_rounds(facts, reading, first)
        if choice is not None:
            first = choice.rounds
            best = choice if best is None or choice.fall > best.fall else best
    if best is None:
        fastest = max(reading.users_per_second for reading in facts.readings)
        needed = ROUNDS[0] * (SMALLEST_COHORT / fastest + facts.seconds_per_round)
        raise ValueError(
            f"{ROUNDS[0]} rounds of {SMALLEST_COHORT} users take {math.ceil(needed / 60)} minutes"
            f" on this machine, and there are {facts.seconds / 60:.1f}; give --minutes more, or"
            " --set update.tokens_per_round less"
        )
    return _with_fewest_users(facts, best)


def refuse_small_turns(population: int, separation: int | None) -> None:
    """Refuse turns of so few people that no round could average over them."""
    if separation is not None and population < separation * SMALLEST_COHORT:
        raise ValueError(
            f"min_separation must be at most {max(population // SMALLEST_COHORT, 1):,}, so that"
            f" {SMALLEST_COHORT} of {population:,} people have a turn in each round, got"
            f" {separation:,}"
        )


def with_more(facts: Facts, *, users: float = 1, time: float = 1, epsilon: float = 1) -> Facts:
    """The same facts with so many times the people, the time and the epsilon."""
    population = round(users * facts.population)
    return replace(
        facts,
        population=population,
        users=round(users * facts.users),
        delta=min(facts.delta, population**-1.1),
        seconds=time * facts.seconds,
        epsilon=epsilon * facts.epsilon,
    )


def _best_rounds(facts: Facts, reading: Reading, first: int) -> Choice | None:
    """The number of rounds that gets furthest with this reading; None if there is no time for any.

    The law has one peak over the rounds, and every number that is tried takes accounting.  So it is
    climbed from the number `first`, upwards and downwards, until that gets no further.
    """
    cohorts = {rounds: _cohort_for(facts, reading, rounds) for rounds in ROUNDS}
    possible = [rounds for rounds in ROUNDS if cohorts[rounds]]
    if not possible:
        return None

    def at(index: int) -> Choice:
        rounds = possible[index]
        return _with_cohort(facts, reading, rounds, cohorts[rounds])

    middle = min(range(len(possible)), key=lambda index: abs(possible[index] - first))
    best = at(middle)
    for indices in (range(middle + 1, len(possible)), range(middle - 1, -1, -1)):
        for other in map(at, indices):
            if other.fall <= best.fall:
                break
            best = other
    return best


def _cohort_for(facts: Facts, reading: Reading, rounds: int) -> int:
    """The largest cohort that so many rounds have time for; 0 if that is hardly anybody.

    Where people take turns it is of those whose turn it is.
    """
    each = facts.seconds / rounds - facts.seconds_per_round
    most = min(facts.users, facts.population // (facts.separation or 1))
    cohort = min(most, math.floor(reading.users_per_second * each))
    return cohort if cohort >= min(SMALLEST_COHORT, facts.users) else 0


def _with_cohort(facts: Facts, reading: Reading, rounds: int, cohort: int) -> Choice:
    terms = Terms(facts.population, cohort, rounds, facts.epsilon, facts.delta)
    if facts.asks_for_noise:
        noise = noises.asked_for(terms, facts.noise, facts.separation)
    else:
        noise = noises.best(terms)
    length = noise.error * math.sqrt(facts.parameters) / (cohort * facts.weight)
    return Choice(rounds, cohort, noise, length, reading, facts.gain)


def _with_fewest_users(facts: Facts, choice: Choice) -> Choice:
    """A fourth of the cohort less, as often as that gets nearly as far."""
    least, fewest = _GOOD_ENOUGH * choice.fall, choice
    while (cohort := fewest.cohort * 3 // 4) >= SMALLEST_COHORT:
        fewer = _with_cohort(facts, choice.reading, choice.rounds, cohort)
        if fewer.fall < least:
            break
        fewest = fewer
    return fewest


def noise_over_clip_norm(plan: RoundPlan, weights: int, rounds: int) -> float:
    """The norm of the noise on an average, over the norm that clipping bounds that average by.

    sigma sqrt(d) / S, which is z sqrt(d) / (qW) with the fixed denominator.  Of correlated noise it
    is that of independent noise which leaves the running sum as noisy.
    """
    if plan.noise is None:
        return 0.0
    norm = plan.initial_clip_state().total_norm
    independent = plan.noise_stddev() * math.sqrt(weights) / norm
    return independent * plan.noise.relative_error(rounds)
