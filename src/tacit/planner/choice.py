"""How many people a round, how many rounds, how much noise: chosen from public facts alone.

A time allows a number of users' updates, N = users a second x seconds, to be spent on T rounds of
C = N / T users each.  More rounds let the model move further; larger cohorts have less noise on
the average, whose stddev is z S / C for each of d trained parameters.  What harms a model is the
noise's length beside the clip norm,

    noise = z sqrt(d) / C        (in units of S: the length of one user's whole update is 1),

since the average of updates that point in different directions is itself shorter than S.  So the
choice is the largest number of rounds whose noise stays within what trials on public corpora have
shown a model to bear (docs/results/own-text.md).  Where even the fewest rounds have more noise than
that, the server takes shorter steps, in proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.planning import Question, answers
from tacit.privacy.records import NonNegative, OpenUnit, Positive, Record, at_least

ROUNDS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 100, 150, 200, 300)
BEARABLE_NOISE = 2.0  # of the clip norm, at the full learning rate of the server
SMALLEST_COHORT = 20  # fewer people a round are no average


@dataclass(frozen=True)
class Facts(Record):
    """What a plan is decided from.  None of it is computed from protected people's text."""

    population: Annotated[int, at_least(2)]
    users: Annotated[int, at_least(1)]  # there are: no cohort is larger
    epsilon: Positive
    delta: OpenUnit
    parameters: Annotated[int, at_least(1)]  # that are trained
    seconds: Positive  # for all rounds
    users_per_second: Positive
    seconds_per_round: NonNegative  # besides users' updates


@dataclass(frozen=True)
class Choice(Record):
    """A number of rounds and what follows from it."""

    rounds: int
    cohort: int
    noise_multiplier: Positive
    noise: Positive  # the length of the noise on the average, in units of the clip norm

    @property
    def rate_share(self) -> float:
        """The share of the server's full learning rate that the noise allows."""
        return min(1.0, BEARABLE_NOISE / self.noise)


def choose(facts: Facts) -> Choice:
    """The largest number of rounds whose noise is bearable; else the one with the least noise.

    Raises:
        ValueError: if the time is too short for the fewest rounds of the smallest cohort.
    """
    choices = list(filter(None, (_with_rounds(facts, rounds) for rounds in ROUNDS)))
    if not choices:
        needed = ROUNDS[0] * (SMALLEST_COHORT / facts.users_per_second + facts.seconds_per_round)
        raise ValueError(
            f"{ROUNDS[0]} rounds of {SMALLEST_COHORT} users take {math.ceil(needed / 60)} minutes"
            f" on this machine, and there are {facts.seconds / 60:.1f}; give --minutes more, or"
            " --set update.tokens_per_round less"
        )
    bearable = [choice for choice in choices if choice.noise <= BEARABLE_NOISE]
    return bearable[-1] if bearable else min(choices, key=lambda choice: choice.noise)


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


def _with_rounds(facts: Facts, rounds: int) -> Choice | None:
    """The largest cohort that so many rounds have time for; None if there is hardly anybody."""
    each = facts.seconds / rounds - facts.seconds_per_round
    cohort = min(facts.users, math.floor(facts.users_per_second * each))
    if cohort < min(SMALLEST_COHORT, facts.users):
        return None
    question = Question(
        population=facts.population,
        cohort=cohort,
        rounds=rounds,
        noise_multiplier=None,
        target_epsilon=facts.epsilon,
        delta=facts.delta,
    )
    [answer], _ = answers(question)
    z = answer.plan.noise_multiplier
    assert z is not None
    return Choice(rounds, cohort, z, noise_over_clip_norm(answer.plan, facts.parameters))


def noise_over_clip_norm(plan: RoundPlan, weights: int) -> float:
    """The norm of the noise on an average, over the norm that clipping bounds that average by.

    sigma sqrt(d) / S, which is z sqrt(d) / (qW) with the fixed denominator.
    """
    norm = plan.initial_clip_state().total_norm
    return plan.noise_stddev() * math.sqrt(weights) / norm if plan.is_private else 0.0
