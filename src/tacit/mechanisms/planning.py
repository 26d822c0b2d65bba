"""From settings to a `RoundPlan`, and planning: what would a training cost?

`tacit train` reads its settings from an experiment and `tacit plan` from its options.  Both build
their plans by `round_plan`, so what is planned is what would be trained, and it is accounted
exactly as the run would be.

A `Question` names all but one of noise multiplier, rounds and cohort.  With a target epsilon the
missing one is solved for, so that the training costs no more; without a target all three are given
and the epsilon is the answer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from tacit.mechanisms import clipping, estimators, samplers, strategy_search
from tacit.mechanisms.clipping import Clipper, ClipSchedule, QuantileClip
from tacit.mechanisms.distributed_noise import WIDTHS, DistributedNoise
from tacit.mechanisms.estimators import Estimator
from tacit.mechanisms.noise import NOISES, CorrelatedNoise, IndependentNoise, RoundNoise
from tacit.mechanisms.participation import Participation
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import Sampler, TurnSampler
from tacit.mechanisms.strategies import Strategy
from tacit.privacy import calibration, checks
from tacit.privacy.accountants import (
    Accountant,
    accountant_named,
    default_accountant,
    sound_accountants,
)
from tacit.privacy.events import Adjacency, Composition
from tacit.privacy.guarantee import default_delta
from tacit.privacy.projection import SmallExperiment
from tacit.privacy.records import Positive, Record, at_least

TURNS = (samplers.MinSeparationSampler.kind, samplers.CyclicPoissonSampler.kind)
"""Samplings in which users take turns."""

_BANDED = ("banded", "square-root")  # noises that `bands` is a setting of
BUFFERS = 4  # of blt noise, where nothing else is said
_SHARING = ("survivors", "colluding", "width")  # settings of distributed noise
_PAPERS_WEIGHTS = 1_350_000  # where no model is named; no printed digit of a cost depends on it
_MOST_BUFFERS = 32  # more lower no error that could be seen, and take long to be searched for


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The choices of a round under the names that an experiment's `[plan]` has for them.

    `population` is the declared K and `cohort` the expected users of a round, so q = cohort / K; it
    is None only where it is still to be solved for.
    `noise_multiplier` is z and `noise_stddev` is sigma on the average; at most one of them is
    given.  `noise` is a kind of `noise.NOISES`, "distributed", or a kind of strategy by which it is
    correlated; if it is not given, noise is independent.  `strategy` is that strategy where it was
    chosen before; else it is the best one of `bands` or `buffers`.  Of distributed noise,
    `survivors` are the fewest whose noise is in a sum, by default two thirds of those whose turn it
    is and one more; `colluding` of them may know their own (1), and a coordinate has `width` bits
    (16, or the fewest that do).  There everybody whose turn it is takes part, so a cohort that does
    not divide the population stands for the next larger one that does.
    `separation` is that of users who take turns; by default they do as rarely as the cohort allows.
    `replace_one` states their guarantee for it.  A `total_weight` or `min_weight` that is not given
    is K.  `layers` has the sizes of the model's layers.
    """

    population: int
    cohort: float | None
    sampling: str = "poisson"
    max_cohort: int | None = None
    clipping: str = "flat"
    clip_norm: float | None = None
    layer_clip_norms: tuple[float, ...] | None = None
    noise_multiplier: float | None = None
    noise_stddev: float | None = None
    noise: str | None = None
    strategy: Strategy | None = None
    bands: int | None = None
    buffers: int = BUFFERS
    survivors: int | None = None
    colluding: int | None = None
    width: int | None = None
    separation: int | None = None
    replace_one: bool = False
    estimator: str = "fixed"
    total_weight: float | None = None
    min_weight: float | None = None
    user_weight_cap: float | None = None
    weight_aware: bool = False
    schedule: ClipSchedule | None = None
    adaptive: QuantileClip | None = None
    layers: tuple[int, ...] | None = None
    unit: str = "user"


def round_plan(settings: PlanSettings, *, delta: float, rounds: int) -> RoundPlan:
    """The plan of these settings.

    `delta` and `rounds` matter only to truncated Poisson sampling without a `max_cohort`: its
    default cap is exceeded with probability below delta / (10 rounds) in a round.
    """
    sampler = _sampler(settings, delta, rounds)
    clipper = _clipper(settings)
    estimator = _estimator(settings)
    z = settings.noise_multiplier
    if settings.noise_stddev is not None:
        z = _noise_multiplier(settings.noise_stddev, sampler, clipper, estimator)
    return RoundPlan(
        population=settings.population,
        sampler=sampler,
        clipper=clipper,
        estimator=estimator,
        noise=_noise(settings, z, sampler, rounds) if z else None,
        weighting=estimators.UserWeighting(settings.user_weight_cap),
        schedule=settings.schedule or clipping.ConstantClip(),
        adaptive=settings.adaptive,
        layers=settings.layers,
        weight_aware=settings.weight_aware,
        unit=settings.unit,
    )


def _sampler(settings: PlanSettings, delta: float, rounds: int) -> Sampler:
    """The sampler by its name; q is the expected cohort over the declared population."""
    K, cohort, cap = settings.population, settings.cohort, settings.max_cohort
    assert cohort is not None, "the cohort is still to be solved for"
    _refuse_misplaced(settings)
    match settings.sampling:
        case "poisson":
            return samplers.PoissonSampler(cohort / K)
        case "truncated" if cap is not None:
            return samplers.TruncatedPoissonSampler(K, cohort / K, cap)
        case "truncated":
            return samplers.TruncatedPoissonSampler.with_default_cap(
                K, cohort / K, delta=delta, rounds=rounds
            )
        case "fixed":
            if not float(cohort).is_integer():
                raise ValueError(f"plan.cohort must be whole for fixed sampling: {cohort}")
            return samplers.FixedSizeSampler(K, int(cohort))
        case "min-separation" | "cyclic-poisson":
            return _turn_sampler(settings, cohort)
    raise ValueError(
        "sampling must be one of poisson, truncated, fixed, min-separation, cyclic-poisson, got"
        f" {settings.sampling!r}"
    )


def _refuse_misplaced(settings: PlanSettings) -> None:
    """Settings of another kind of sampling or noise would be read by nobody."""
    for name in ("separation", "bands", "buffers"):
        if (value := getattr(settings, name)) is not None:
            checks.whole(name, value, at_least=1)
    sampling, noise = settings.sampling, settings.noise or IndependentNoise.kind
    if settings.separation is not None and sampling not in TURNS:
        raise ValueError(
            f"a separation of {settings.separation} is for users who take turns, with"
            f" {' or '.join(TURNS)} sampling, got {sampling} sampling; leave one of them out"
        )
    if settings.replace_one and sampling != samplers.MinSeparationSampler.kind:
        raise ValueError(
            f"replace_one is for {samplers.MinSeparationSampler.kind} sampling, got {sampling}"
            " sampling, whose adjacency is its own; leave it out"
        )
    if settings.bands is not None and noise not in _BANDED:
        raise ValueError(
            f"bands are a setting of {' and '.join(_BANDED)} noise, got {settings.bands} with"
            f" {noise} noise; leave them out"
        )
    for name in _SHARING:
        if (value := getattr(settings, name)) is not None and noise != DistributedNoise.kind:
            raise ValueError(
                f"{name} is a setting of {DistributedNoise.kind} noise, got {value} with {noise}"
                " noise; leave it out"
            )
    if settings.buffers > _MOST_BUFFERS:
        raise ValueError(f"buffers must be at most {_MOST_BUFFERS}, got {settings.buffers}")
    if settings.buffers != BUFFERS and noise != "blt":
        raise ValueError(
            f"buffers are a setting of blt noise, got {settings.buffers} with {noise}"
            " noise; leave them out"
        )


def _turn_sampler(settings: PlanSettings, cohort: float) -> Sampler:
    """Users in as many groups as the separation; the cohort is a share of the group."""
    widest = widest_separation(settings.population, cohort)
    separation = widest if settings.separation is None else settings.separation
    if separation > widest:
        raise ValueError(
            f"a separation of {separation:,} rounds leaves turns of"
            f" {settings.population / separation:,.3g} users, and {cohort:,.6g} are to take part in"
            f" a round; it must be at most {widest:,}, the population over the cohort"
        )
    share = min(cohort * separation / settings.population, 1.0)
    if settings.noise == DistributedNoise.kind and separation == widest:
        share = 1.0  # everybody whose turn it is: the cohort says how many groups there are
    if settings.sampling == "cyclic-poisson":
        return samplers.CyclicPoissonSampler(separation, share)
    return samplers.MinSeparationSampler(separation, share, settings.replace_one)


def _noise(settings: PlanSettings, z: float, sampler: Sampler, rounds: int) -> RoundNoise:
    """The noise by its name; a strategy that is not given is the best one for so many rounds."""
    kind = settings.noise or IndependentNoise.kind
    if kind in NOISES:
        return NOISES[kind](z)
    if kind == DistributedNoise.kind:
        return _distributed_noise(settings, z, sampler)
    if kind not in strategy_search.KINDS:
        known = ", ".join([*NOISES, *strategy_search.KINDS, DistributedNoise.kind])
        raise ValueError(f"noise must be one of {known}, got {kind!r}")
    if not isinstance(sampler, TurnSampler):
        raise ValueError(
            f"{kind} noise needs users who take turns, since what it hides depends on how one"
            f" user's rounds line up, got {settings.sampling} sampling; use {' or '.join(TURNS)}"
        )
    if isinstance(sampler, samplers.CyclicPoissonSampler):
        _refuse_shared_noise(settings, kind, sampler.separation)
    if settings.strategy is not None:
        if settings.strategy.kind != kind:
            raise ValueError(
                f"plan.strategy is of the kind {settings.strategy.kind!r}, and plan.noise is"
                f" {kind!r}: leave plan.strategy out, and the best one is found"
            )
        return CorrelatedNoise(z, settings.strategy)
    return CorrelatedNoise(
        z, _best_strategy(kind, rounds, sampler.separation, settings.bands, settings.buffers)
    )


def _distributed_noise(settings: PlanSettings, z: float, sampler: Sampler) -> DistributedNoise:
    """The noise that users share, for groups of the size that they have on average.

    Groups follow from ids, so that some are larger, and their sums wrap a little more often.
    """
    if settings.noise_stddev is not None:
        raise ValueError(
            "plan.noise_stddev is the noise of a server, and that of users who share it depends on"
            " how many are there; use plan.noise_multiplier or privacy.target_epsilon"
        )
    group = settings.population * sampler.sampling_prob
    fewest = 2 * int(group + 1e-9) // 3 + 1
    noise = DistributedNoise(
        z,
        size=sum(settings.layers or (_PAPERS_WEIGHTS,)),
        clients=max(math.ceil(group - 1e-9), 2),
        survivors=fewest if settings.survivors is None else settings.survivors,
        colluding=1 if settings.colluding is None else settings.colluding,
        width=settings.width or WIDTHS[0],
    )
    if settings.width is not None:
        return noise
    wider = (replace(noise, width=width) for width in WIDTHS)
    return next((each for each in wider if not each.is_coarse), noise)


def _refuse_shared_noise(settings: PlanSettings, kind: str, separation: int) -> None:
    """Turns are amplified one by one, so that no two may share noise."""
    if kind not in _BANDED:
        raise ValueError(
            f"noise must be {' or '.join(_BANDED)} for cyclic-poisson sampling, since a user's"
            f" turns may not share any, got {kind}; use it with min-separation sampling"
        )
    if settings.bands is not None and settings.bands > separation:
        raise ValueError(
            f"bands must be at most the separation of {separation:,} for cyclic-poisson sampling,"
            f" since a user's turns may not share noise, got {settings.bands:,}"
        )


@functools.lru_cache(maxsize=256)
def _best_strategy(
    kind: str, rounds: int, separation: int, bands: int | None, buffers: int
) -> Strategy:
    """What the search finds; it takes seconds, and plans are made many times."""
    return strategy_search.best(
        kind, rounds, Participation(separation), bands=bands, buffers=buffers
    )


def widest_separation(population: int, cohort: float) -> int:
    """How rarely users take turns if everybody whose turn it is takes part."""
    return max(int(population / cohort), 1)


def _clipper(settings: PlanSettings) -> Clipper:
    """No clip, one norm per layer as given or even, or one norm for the whole update."""
    if settings.clipping == "none":
        return clipping.NoClip()
    if settings.layer_clip_norms is not None:
        return clipping.PerLayerClip(settings.layer_clip_norms)
    assert settings.clip_norm is not None, "only no clipping has no clip norm"
    if settings.clipping == "per-layer":
        return clipping.PerLayerClip.even(settings.clip_norm, len(settings.layers or ()))
    return clipping.FlatClip(settings.clip_norm)


def _estimator(settings: PlanSettings) -> Estimator:
    """The estimator by its name, with its declared weight, or K."""
    K = float(settings.population)
    match settings.estimator:
        case "fixed":
            return estimators.FixedDenominator(settings.total_weight or K)
        case "clipped":
            return estimators.ClippedDenominator(settings.min_weight or K)
        case "true-average":
            return estimators.TrueAverage()
    raise ValueError(
        f"estimator must be one of fixed, clipped, true-average, got {settings.estimator!r}"
    )


def _noise_multiplier(
    noise_stddev: float, sampler: Sampler, clipper: Clipper, estimator: Estimator
) -> float:
    """z for a sigma on the average: the inverse of sigma = zS/(qW), or of 2zS/(qW_min)."""
    if isinstance(estimator, estimators.TrueAverage) or isinstance(clipper, clipping.NoClip):
        raise ValueError(
            "plan.noise_stddev needs a clip norm and an estimator of bounded sensitivity"
        )
    sensitivity = estimator.sensitivity(
        clipper.total_norm, sampler.sampling_prob, Adjacency.ADD_REMOVE
    )
    return noise_stddev / sensitivity


@dataclass(frozen=True, kw_only=True)
class Question(PlanSettings, Record):
    """What is known, and (by being None) what is asked.

    The clip norm is 1 unless an experiment has one: the noise follows it, so no cost depends on it.
    With an `experiment` its noise on the average is kept, whatever the cohort.  A delta of 1/K or
    more, which may give somebody away whole, has to be accepted; the claim says so.
    """

    population: Annotated[int, at_least(2)]
    cohort: Annotated[int, at_least(1)] | None
    rounds: Annotated[int, at_least(1)] | None
    noise_multiplier: Positive | None
    clip_norm: float | None = 1.0
    target_epsilon: Positive | None = None
    delta: float | None = None
    accept_large_delta: bool = False
    experiment: SmallExperiment | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @property
    def chosen_delta(self) -> float:
        """The given delta, or the papers' K^-1.1."""
        return self.delta if self.delta is not None else default_delta(self.population)

    @property
    def unknowns(self) -> list[str]:
        """Which of noise, rounds and cohort are not given."""
        known = {
            "noise_multiplier": self.noise_multiplier or self.experiment,
            "rounds": self.rounds,
            "cohort": self.cohort,
        }
        return [name for name, value in known.items() if value is None]

    @property
    def asked(self) -> str:
        """The one quantity that is to be found: epsilon, or the unknown."""
        return "epsilon" if self.target_epsilon is None else self.unknowns[0]


@dataclass(frozen=True)
class Answer:
    """One accountant's figure for one fully determined plan, and what it is of."""

    question: Question
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
    if target is None:
        return question
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
        _refuse_turns(question, asked)
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
    _refuse_turns(question, asked)
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


def _refuse_turns(question: Question, asked: str) -> None:
    """Where users take turns, a round has no cost of its own to be counted in."""
    if question.sampling in TURNS:
        raise ValueError(
            f"{asked} cannot be solved for where users take turns: what a round costs depends on"
            " all others, and noise that is correlated is made for a number of rounds; give rounds"
            " and cohort, and leave noise_multiplier out"
        )


def _answer(question: Question, accountant: Accountant, *, projected: bool) -> Answer:
    """One accountant's epsilon for a question without unknowns."""
    assert question.rounds is not None
    plan, delta = _plan_for(question), question.chosen_delta
    if plan.shared_noise is not None:
        plan.shared_noise.refuse_coarse()
    epsilon = accountant.epsilon(plan.releases(question.rounds), delta)
    return Answer(question, plan, question.rounds, delta, epsilon, accountant.name, projected)


def _plan_for(question: Question) -> RoundPlan:
    """The plan of a question with cohort and noise known."""
    run = question.experiment
    if run is not None:
        assert question.cohort is not None
        z = run.noise_multiplier_at(question.cohort)
        question = replace(question, experiment=None, noise_multiplier=z, clip_norm=run.clip_norm)
    return round_plan(question, delta=question.chosen_delta, rounds=question.rounds or 1)


def _check(question: Question) -> None:
    """Refuse what no plan could be made of; the plan itself refuses the rest."""
    population, cohort, max_cohort = question.population, question.cohort, question.max_cohort
    if cohort is not None and cohort > population:
        raise ValueError(f"cohort must be at most the population of {population:,}, got {cohort:,}")
    if question.delta is not None:
        _check_delta(question.delta, population, accepted=question.accept_large_delta)
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
    missing = question.unknowns
    if len(missing) > (question.target_epsilon is not None):
        raise ValueError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give all of"
            " noise_multiplier, rounds and cohort, or leave one out and give target_epsilon"
        )
    if question.target_epsilon is not None and not missing:
        raise ValueError(
            f"target_epsilon of {question.target_epsilon:g} leaves nothing to solve for when"
            " noise_multiplier, rounds and cohort are all given; leave one of them out, or the"
            " target"
        )
    if missing == ["cohort"] and question.experiment is None:
        raise ValueError(
            "cohort can be solved for only at a fixed noise on the average; give from_experiment"
            " (cohort, sigma, clip) instead of noise_multiplier"
        )


def _check_delta(delta: float, population: int, *, accepted: bool) -> None:
    """Refuse a delta that allows somebody to be given away whole, unless that was accepted."""
    if not 0 < delta < (1.0 if accepted else 1 / population):
        raise ValueError(
            f"delta must be above 0 and below 1/population = {1 / population:.3g}, or one user in"
            f" the population may be given away whole; got {delta:g} (accept_large_delta takes one"
            " below 1 all the same, and the claim says so)"
        )


def _check_experiment(question: Question, experiment: SmallExperiment) -> None:
    """An experiment sets the noise, for the estimator whose sensitivity is S / cohort."""
    if question.sampling in TURNS or question.noise is not None:
        raise ValueError(
            "from_experiment keeps the noise that the experiment had on the average of a round, so"
            " it says nothing about kinds of noise or about turns; leave noise, separation and"
            f" {' or '.join(TURNS)} sampling out"
        )
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
