"""Planning: what would a training cost, or what must be chosen so that it costs no more?

A question names all but one of noise multiplier, rounds and cohort.  With a target epsilon the
missing one is solved for; without a target all three are given and the epsilon is the answer.
Every figure goes through a `RoundPlan`, so a plan is accounted exactly as the run would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tacit.mechanisms.factory import PlanSettings, round_plan
from tacit.mechanisms.plan import RoundPlan
from tacit.privacy import calibration, checks
from tacit.privacy.accountants import (
    Accountant,
    accountant_named,
    default_accountant,
    sound_accountants,
)
from tacit.privacy.events import Composition
from tacit.privacy.guarantee import default_delta
from tacit.privacy.projection import SmallExperiment


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known, and (by being None) what is asked."""

    population: int
    cohort: int | None
    rounds: int | None
    noise_multiplier: float | None
    target_epsilon: float | None = None
    delta: float | None = None
    sampling: str = "poisson"
    estimator: str = "fixed"
    max_cohort: int | None = None
    unit: str = "user"
    experiment: SmallExperiment | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def chosen_delta(self) -> float:
        """The given delta, or the papers' K^-1.1."""
        return self.delta if self.delta is not None else default_delta(self.population)

    @property
    def asked(self) -> Literal["epsilon", "noise_multiplier", "rounds", "cohort"]:
        """The one quantity that is to be found."""
        if self.target_epsilon is None:
            return "epsilon"
        if self.rounds is None:
            return "rounds"
        if self.cohort is None:
            return "cohort"
        return "noise_multiplier"


@dataclass(frozen=True)
class Answer:
    """One accountant's figure for one fully determined plan."""

    plan: RoundPlan
    rounds: int
    delta: float
    epsilon: float
    accountant: str
    projected: bool

    @property
    def claim(self) -> str:
        """The guarantee in words, as a training with this plan would state it."""
        planned = self.plan.guarantee(
            self.epsilon, self.delta, self.accountant, self.rounds, projected=self.projected
        )
        return planned.claim


def _solve(
    question: Question, accountant: Accountant | None = None, *, precise: bool = False
) -> Question:
    """The question with what it asks for filled in; the target is met, never exceeded."""
    asked, target, delta = question.asked, question.target_epsilon, question.chosen_delta
    if asked == "epsilon":
        return question
    assert target is not None
    # Which accountants are sound depends on the sampler alone, so any round may stand for all.
    known = replace(
        question,
        target_epsilon=None,
        rounds=question.rounds or 1,
        cohort=question.cohort or 1,
        noise_multiplier=None if question.experiment else question.noise_multiplier or 1.0,
    )
    by = accountant or default_accountant(
        Composition.of([_plan_for(known).event()]), precise=precise
    )
    if asked == "noise_multiplier":
        z = calibration.noise_for_epsilon(
            lambda z: _plan_for(replace(known, noise_multiplier=z)).releases(known.rounds or 1),
            delta=delta,
            target_epsilon=target,
            accountant=by,
        )
        return replace(known, noise_multiplier=z)
    if asked == "rounds":
        rounds = calibration.rounds_for_epsilon(
            _plan_for(known).event(), delta=delta, target_epsilon=target, accountant=by
        )
        if rounds == 0:
            first = by.epsilon(Composition.of([_plan_for(known).event()]), delta)
            raise ValueError(
                f"target_epsilon of {target} allows no round at all: the first one costs"
                f" {first:.4g} already; use more noise or a smaller cohort"
            )
        return replace(known, rounds=rounds)
    assert question.rounds is not None
    cohort = calibration.cohort_for_epsilon(
        lambda c: _plan_for(replace(known, cohort=c)).event(),
        population=min(question.population, question.max_cohort or question.population),
        rounds=question.rounds,
        delta=delta,
        target_epsilon=target,
        accountant=by,
    )
    return replace(known, cohort=cohort)


def answers(
    question: Question, accountant: str | None = None, *, precise: bool = False
) -> tuple[list[Answer], dict[str, str]]:
    """The figures, and why accountants that were not asked by name are left out.

    `accountant` is a name, "all" for every sound one, or None for the tightest sound one.  With a
    small experiment the projected figures come first, and the actual ones of the experiment as it
    was run stand beside them (design rule 10).
    """
    named = accountant if accountant not in (None, "all") else None
    by = accountant_named(named, precise=precise) if named else None
    solved = _solve(question, by, precise=precise)
    event = _plan_for(solved).event()
    chosen: Sequence[Accountant] = [by] if by else []
    refused: dict[str, str] = {}
    if by is None:
        chosen, refused = sound_accountants(Composition.of([event]), precise=precise)
        if accountant is None:
            chosen, refused = chosen[:1], {}
    rows = [_answer(solved, a, projected=solved.experiment is not None) for a in chosen]
    if solved.experiment is not None:
        run = solved.experiment
        actual = replace(
            solved,
            cohort=round(run.cohort),
            population=run.population or solved.population,
            rounds=run.rounds or solved.rounds,
        )
        rows += [_answer(actual, a, projected=False) for a in chosen]
    return rows, refused


def _answer(question: Question, accountant: Accountant, *, projected: bool) -> Answer:
    """One accountant's epsilon for a question without unknowns."""
    assert question.rounds is not None
    plan, delta = _plan_for(question), question.chosen_delta
    epsilon = accountant.epsilon(plan.releases(question.rounds), delta)
    return Answer(plan, question.rounds, delta, epsilon, accountant.name, projected)


def _plan_for(question: Question) -> RoundPlan:
    """The plan of a question with cohort and noise known.

    The clip norm is 1 unless an experiment has one: the noise follows it, so no cost depends on it.
    """
    cohort, z, clip_norm = question.cohort, question.noise_multiplier, 1.0
    assert cohort is not None
    if question.experiment is not None:
        z = question.experiment.noise_multiplier_at(cohort)
        clip_norm = question.experiment.clip_norm
    settings = PlanSettings(
        population=question.population,
        cohort=cohort,
        sampling=question.sampling,
        max_cohort=question.max_cohort,
        clip_norm=clip_norm,
        noise_multiplier=z,
        estimator=question.estimator,
        unit=question.unit,
    )
    return round_plan(settings, delta=question.chosen_delta, rounds=question.rounds or 1)


def _check(question: Question) -> None:
    """Refuse what no plan could be made of; the plan itself refuses the rest."""
    population = checks.whole("population", question.population, at_least=2)
    cohort, max_cohort = question.cohort, question.max_cohort
    if cohort is not None and checks.whole("cohort", cohort, at_least=1) > population:
        raise ValueError(f"cohort must be at most the population of {population:,}, got {cohort:,}")
    if question.rounds is not None:
        checks.whole("rounds", question.rounds, at_least=1)
    if question.noise_multiplier is not None:
        checks.positive("noise_multiplier", question.noise_multiplier)
    if question.target_epsilon is not None:
        checks.positive("target_epsilon", question.target_epsilon)
    if question.delta is not None and not 0 < question.delta < 1 / population:
        raise ValueError(
            f"delta must be above 0 and below 1/population = {1 / population:.3g}, or one user in"
            f" the population may be given away whole; got {question.delta:g}"
        )
    if max_cohort is not None and question.sampling != "truncated":
        raise ValueError(
            f"max_cohort applies to truncated Poisson sampling only, got {max_cohort} with"
            f" {question.sampling} sampling; add --sampling truncated or drop it"
        )
    if max_cohort is not None and cohort is not None and max_cohort < cohort:
        raise ValueError(
            f"max_cohort must be at least the expected cohort of {cohort}, got {max_cohort}"
        )
    if question.experiment is not None:
        _check_experiment(question, question.experiment)
    _check_unknowns(question)


def _check_experiment(question: Question, experiment: SmallExperiment) -> None:
    """An experiment sets the noise, for the estimator whose sensitivity is S / cohort."""
    if question.noise_multiplier is not None:
        raise ValueError(
            "noise_multiplier and from_experiment contradict each other, because the experiment"
            " sets the noise; give one of them"
        )
    if question.estimator != "fixed":
        raise ValueError("from_experiment needs the fixed estimator, whose sensitivity is S/cohort")
    population = experiment.population or question.population
    if experiment.cohort > population:
        raise ValueError(
            f"the experiment's cohort must be at most the population of {population:,},"
            f" got {experiment.cohort:g}"
        )


def _check_unknowns(question: Question) -> None:
    """Exactly one of epsilon, noise, rounds and cohort is unknown."""
    known = {
        "noise_multiplier": question.noise_multiplier or question.experiment,
        "rounds": question.rounds,
        "cohort": question.cohort,
    }
    missing = [name for name, value in known.items() if value is None]
    if question.target_epsilon is None and missing:
        raise ValueError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give all of"
            " noise_multiplier, rounds and cohort, or leave one out and give target_epsilon"
        )
    if question.target_epsilon is not None and not missing:
        raise ValueError(
            f"target_epsilon of {question.target_epsilon:g} leaves nothing to solve for when noise,"
            " rounds and cohort are all given; leave one of them out, or the target"
        )
    if len(missing) > 1:
        raise ValueError(
            f"target_epsilon solves for one unknown, and {' and '.join(missing)} are all missing"
        )
    if missing == ["cohort"] and question.experiment is None:
        raise ValueError(
            "cohort can be solved for only at a fixed noise on the average; give from_experiment"
            " (cohort, sigma, clip) instead of noise_multiplier"
        )
