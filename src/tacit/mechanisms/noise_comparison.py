"""The kinds of noise side by side, for the same people, cohort and rounds.

A learner adds up what rounds release, so noise is judged by the error of the running sum: its
standard deviation, as a root mean square over the rounds.  Two kinds are compared at the same
epsilon, by their errors, or at the same error, by their epsilons.  Where a sampling claim holds,
independent noise is amplified in every round, and banded noise in every turn of a user: more bands
take back more noise, and leave less to amplify.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.mechanisms.noise import CorrelatedNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.planning import (
    BUFFERS,
    Answer,
    Question,
    answers,
    round_plan,
    widest_separation,
)
from tacit.mechanisms.strategies import INDEPENDENT, Strategy
from tacit.privacy.events import Adjacency

POISSON, CYCLIC, TURNS = "poisson", "cyclic-poisson", "min-separation"

# Every kind of noise, with the sampling that its guarantee rests on.
ALL = (
    ("independent", POISSON),
    ("banded", CYCLIC),
    ("independent", TURNS),
    ("square-root", TURNS),
    ("banded", TURNS),
    ("blt", TURNS),
    ("tree", TURNS),
)
Kinds = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Compared:
    """One kind of noise, what it costs, and how well it lets the model be seen."""

    answer: Answer
    error: float  # of the running sum, as the multiplier of independent noise that is as bad

    @classmethod
    def of(cls, answer: Answer) -> Compared:
        """An answer, with the error of its noise."""
        return cls(answer, running_sum_error(answer.plan, answer.rounds))

    @property
    def noise(self) -> str:
        """How the noise is correlated, or that users add it."""
        plan = self.answer.plan
        return strategy_of(plan).name if plan.shared_noise is None else plan.shared_noise.kind

    @property
    def vectors(self) -> int:
        """How many vectors of the model's size a training keeps in memory for it."""
        noise = self.answer.plan.noise
        return noise.vectors(self.answer.rounds) if noise else 0


def strategy_of(plan: RoundPlan) -> Strategy:
    """By what matrix a plan's noise is correlated."""
    return plan.noise.strategy if isinstance(plan.noise, CorrelatedNoise) else INDEPENDENT


def running_sum_error(plan: RoundPlan, rounds: int) -> float:
    """The error of the running sum, as the multiplier of independent noise that is as bad."""
    if plan.noise is None:
        return 0.0
    return plan.noise.noise_multiplier * plan.noise.relative_error(rounds)


def compare(
    asked: Question,
    answer: Answer,
    kinds: Kinds = ALL,
    tell: Callable[[str], object] = lambda _: None,
) -> list[Compared]:
    """Kinds of noise at the epsilon that was asked for, or else at the error of the answer.

    Args:
        asked: the question as it was put, with or without a target epsilon.
        answer: its answer, which is the first of the list.
        kinds: what to compare it with; of replace-one adjacency only what can be stated for it.
        tell: hears which kind is being looked at.
    """
    first = Compared.of(answer)
    rows = [first]
    is_replaced = answer.plan.adjacency is Adjacency.REPLACE
    for noise, sampling in kinds:
        if is_replaced and sampling != TURNS:
            continue
        tell(f"{noise} noise, {sampling} sampling")
        tried = [
            _at_same(
                asked,
                first,
                noise=noise,
                sampling=sampling,
                separation=separation,
                replace_one=is_replaced,
            )
            for separation in _separations(answer.question, sampling)
        ]
        at_epsilon = asked.target_epsilon is not None
        best = min(tried, key=lambda one: one.error if at_epsilon else one.answer.epsilon)
        if best.answer.plan.hash() != answer.plan.hash():
            rows.append(best)
    return rows


def _separations(question: Question, sampling: str) -> list[int | None]:
    """The separations to choose among."""
    assert question.cohort is not None
    widest = widest_separation(question.population, question.cohort)
    if sampling == POISSON:
        return [None]
    if sampling == CYCLIC:
        return [*separations_up_to(widest)]
    return [question.separation or widest]


def separations_up_to(widest: int) -> list[int]:
    """1, 2, 4, 8, ... and the widest: enough to choose among, as the exact one matters little."""
    powers = (2**power for power in range(widest.bit_length()))
    return sorted({*powers, widest})


def _at_same(asked: Question, first: Compared, **kind: Any) -> Compared:
    """Another kind of noise, as private or as exact as the first."""
    answer = first.answer
    unsolved: dict[str, Any] = {"strategy": None, "bands": None, "max_cohort": None}
    unsolved |= {"survivors": None, "colluding": None, "width": None}
    if kind["noise"] != answer.question.noise:
        unsolved["buffers"] = BUFFERS
    other = replace(answer.question, **unsolved, **kind)
    if asked.target_epsilon is not None:
        other = replace(other, noise_multiplier=None, target_epsilon=asked.target_epsilon)
    else:
        unit = replace(other, noise_multiplier=1.0)
        plan = round_plan(unit, delta=answer.delta, rounds=answer.rounds)
        z = first.error / running_sum_error(plan, answer.rounds)
        other = replace(other, noise_multiplier=z)
    [found], _ = answers(other)
    return Compared.of(found)
