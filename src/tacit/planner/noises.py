"""Which kind of noise a plan gets: the one that leaves the least of it in the model.

The model is a running sum of what the rounds release, so kinds of noise are compared by the error
of that sum, at the same epsilon (`mechanisms.noise_comparison`).  Independent noise with Poisson
sampling, banded noise with cyclic Poisson sampling, and buffered noise that rests on no sampling at
all: which is best depends on people, cohort, rounds and epsilon.  Where the last is as good as any,
it is preferred: it claims as much and assumes less.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

from tacit.mechanisms.noise import NOISES
from tacit.mechanisms.noise_comparison import CYCLIC, POISSON, TURNS, Compared, compare
from tacit.mechanisms.planning import Question, answers
from tacit.privacy.records import Positive, Record, at_least

_AS_GOOD = 1.02  # times the least error: nobody would see the difference


@dataclass(frozen=True)
class PlannedNoise(Record):
    """A kind of noise, and how much of it there is."""

    kind: str
    sampling: str
    separation: Annotated[int, at_least(1)] | None
    noise_multiplier: Positive  # of a single round
    error: Positive  # of the running sum: the multiplier of independent noise that is as bad


@dataclass(frozen=True)
class Terms(Record):
    """Whom the noise has to hide, in how many rounds, and how well."""

    population: Annotated[int, at_least(2)]
    cohort: Annotated[int, at_least(1)]
    rounds: Annotated[int, at_least(1)]
    epsilon: Positive
    delta: Positive

    def question(self, kind: str, sampling: str, separation: int | None = None) -> Question:
        """How much noise of this kind it takes."""
        return Question(
            population=self.population,
            cohort=self.cohort,
            rounds=self.rounds,
            noise_multiplier=None,
            target_epsilon=self.epsilon,
            delta=self.delta,
            noise=kind,
            sampling=sampling,
            separation=separation,
        )


@functools.lru_cache(maxsize=1024)
def independent(terms: Terms) -> PlannedNoise:
    """The least independent noise, with Poisson sampling."""
    return _planned(_solved(terms.question("independent", POISSON)))


@functools.lru_cache(maxsize=1024)
def without_sampling(terms: Terms, kind: str, separation: int | None) -> PlannedNoise:
    """The least noise of a kind where users take turns, and no sampling is claimed."""
    return _planned(_solved(terms.question(kind, TURNS, separation)))


def asked_for(terms: Terms, kind: str | None, separation: int | None) -> PlannedNoise:
    """What a person asked for by its name, by a separation, or by both."""
    if separation is None and kind in NOISES:
        return independent(terms)
    return without_sampling(terms, kind or "blt", separation)


@functools.lru_cache(maxsize=256)
def best(terms: Terms) -> PlannedNoise:
    """The noise that leaves the least in the model, or one as good that assumes less."""
    question = terms.question("independent", POISSON)
    [answer], _ = answers(question)
    compared = compare(question, answer, kinds=(("banded", CYCLIC), ("blt", TURNS)))
    least = min(one.error for one in compared)
    unassuming = [one for one in compared if one.answer.question.sampling == TURNS]
    as_good = [one for one in unassuming if one.error <= _AS_GOOD * least]
    return _planned(min(as_good or compared, key=lambda one: one.error))


def _solved(question: Question) -> Compared:
    [answer], _ = answers(question)
    return Compared.of(answer)


def _planned(one: Compared) -> PlannedNoise:
    question, z = one.answer.question, one.answer.plan.noise_multiplier
    assert z is not None, "every epsilon needs noise"
    separation = getattr(one.answer.plan.sampler, "separation", None)
    return PlannedNoise(
        question.noise or "independent", question.sampling, separation, z, one.error
    )
