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
from tacit.privacy.accountant import Accountant
from tacit.privacy.accountants import accountant_named, default_accountant, sound_accountants
from tacit.privacy.events import Composition, Event
from tacit.privacy.guarantee import default_delta
from tacit.privacy.projection import SmallExperiment

SAMPLINGS = ("poisson", "truncated", "fixed")
ESTIMATORS = ("fixed", "clipped")


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
        planned = self.plan.guarantee(
            self.epsilon, self.delta, self.accountant, self.rounds, projected=self.projected
        )
        return planned.claim


def solve(
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
        Composition.of([plan_for(known).event()]), precise=precise
    )
    if asked == "noise_multiplier":
        assert question.rounds is not None

        def event_at_noise(z: float) -> Event:
            return plan_for(replace(known, noise_multiplier=z)).event()

        found = calibration.noise_for_epsilon(
            event_at_noise,
            rounds=question.rounds,
            delta=delta,
            target_epsilon=target,
            accountant=by,
        )
        return replace(known, noise_multiplier=found)
    if asked == "rounds":
        rounds = calibration.rounds_for_epsilon(
            plan_for(known).event(), delta=delta, target_epsilon=target, accountant=by
        )
        if rounds == 0:
            first = by.epsilon(Composition.of([plan_for(known).event()]), delta)
            raise ValueError(
                f"target_epsilon of {target} allows no round at all: the first one costs"
                f" {first:.4g} already; use more noise or a smaller cohort"
            )
        return replace(known, rounds=rounds)
    assert question.rounds is not None
    cohort = calibration.cohort_for_epsilon(
        lambda c: plan_for(replace(known, cohort=c)).event(),
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
    solved = solve(question, by, precise=precise)
    event = plan_for(solved).event()
    chosen, refused = _choose(event, by, every=accountant == "all", precise=precise)
    found = [_answer(solved, a, projected=solved.experiment is not None) for a in chosen]
    if solved.experiment is not None:
        run = solved.experiment
        actual = replace(
            solved,
            cohort=round(run.cohort),
            population=run.population or solved.population,
            rounds=run.rounds or solved.rounds,
        )
        found += [_answer(actual, a, projected=False) for a in chosen]
    return found, refused


def _choose(
    event: Event, by: Accountant | None, *, every: bool, precise: bool
) -> tuple[Sequence[Accountant], dict[str, str]]:
    if by is not None:
        return [by], {}
    sound, refused = sound_accountants(Composition.of([event]), precise=precise)
    return (sound, refused) if every else (sound[:1], {})


def _answer(question: Question, accountant: Accountant, *, projected: bool) -> Answer:
    assert question.rounds is not None
    plan, delta = plan_for(question), question.chosen_delta
    epsilon = accountant.epsilon(plan.releases(question.rounds), delta)
    return Answer(plan, question.rounds, delta, epsilon, accountant.name, projected)


def plan_for(question: Question) -> RoundPlan:
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
    population = checks.whole("population", question.population, at_least=2)
    if question.cohort is not None:
        checks.whole("cohort", question.cohort, at_least=1)
        if question.cohort > population:
            raise ValueError(
                f"cohort must be at most the population of {population:,}, got {question.cohort:,}"
            )
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
    if question.sampling not in SAMPLINGS:
        raise ValueError(
            f"sampling must be one of {', '.join(SAMPLINGS)}, got {question.sampling!r}"
        )
    if question.estimator not in ESTIMATORS:
        raise ValueError(
            f"estimator must be one of {', '.join(ESTIMATORS)}, got {question.estimator!r}"
        )
    if question.max_cohort is not None:
        _check_max_cohort(question)
    _check_what_is_asked(question)


def _check_max_cohort(question: Question) -> None:
    if question.sampling != "truncated":
        raise ValueError(
            f"max_cohort applies to truncated Poisson sampling only, got {question.max_cohort} with"
            f" {question.sampling} sampling; add --sampling truncated or drop it"
        )
    assert question.max_cohort is not None
    checks.whole("max_cohort", question.max_cohort, at_least=1)
    if question.cohort is not None and question.max_cohort < question.cohort:
        raise ValueError(
            f"max_cohort must be at least the expected cohort of {question.cohort}, got"
            f" {question.max_cohort}"
        )


def _check_what_is_asked(question: Question) -> None:
    """Exactly one of epsilon, noise, rounds and cohort is unknown."""
    if question.experiment is not None and question.noise_multiplier is not None:
        raise ValueError(
            "noise_multiplier and from_experiment contradict each other, because the experiment"
            " sets the noise; give one of them"
        )
    if question.experiment is not None and question.estimator != "fixed":
        raise ValueError("from_experiment needs the fixed estimator, whose sensitivity is S/cohort")
    if question.experiment is not None:
        its_population = question.experiment.population or question.population
        if question.experiment.cohort > its_population:
            raise ValueError(
                f"the experiment's cohort must be at most the population of {its_population:,},"
                f" got {question.experiment.cohort:g}"
            )
    has_noise = question.noise_multiplier is not None or question.experiment is not None
    missing = [
        name
        for name, known in (
            ("noise_multiplier", has_noise),
            ("rounds", question.rounds is not None),
            ("cohort", question.cohort is not None),
        )
        if not known
    ]
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
