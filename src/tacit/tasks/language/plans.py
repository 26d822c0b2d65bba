"""From an experiment to its round plans, with every value filled in that the guarantee rests on.

Whatever contradicts the number of users, or would void the guarantee that the experiment asks for,
is refused here, before anything is written.  The plans themselves are made by the one factory in
`mechanisms.planning`, which `tacit plan` uses as well: what is planned is what is trained.
"""

from __future__ import annotations

from tacit.config.experiment import Experiment, Plan
from tacit.mechanisms.clipping import ClipSchedule, GeometricClip, LinearClip, QuantileClip
from tacit.mechanisms.noise import NOISES, CorrelatedNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.planning import PlanSettings, round_plan
from tacit.mechanisms.strategies import Strategy
from tacit.privacy import calibration
from tacit.privacy.accountants import accountant_named, default_accountant
from tacit.privacy.events import Composition, PoissonGaussian
from tacit.privacy.guarantee import default_delta
from tacit.tasks.task import Inherited


def resolved(
    experiment: Experiment,
    users: int,
    layers: tuple[int, ...],
    inherited: Inherited | None = None,
) -> Experiment:
    """The experiment with every value filled in that the guarantee depends on.

    A target epsilon becomes the noise that meets it, together with what was inherited.
    """
    experiment = declared(experiment, users)
    experiment = _with_strategy(experiment, layers)
    if experiment.privacy.target_epsilon is not None:
        experiment = _calibrated(experiment, layers, inherited)
    elif experiment.noise_target is not None:
        experiment = _calibrated_to_projection(experiment, layers)
    for plan in round_plans(experiment, layers):
        if plan.shared_noise is not None:
            plan.shared_noise.refuse_coarse()
    composition = _releases(experiment, layers)
    composition.adjacency  # noqa: B018  (raises when phases mix adjacencies)
    name = experiment.privacy.accountant or default_accountant(composition).name
    return experiment.changed(privacy={"accountant": name})


def _with_strategy(experiment: Experiment, layers: tuple[int, ...]) -> Experiment:
    """The experiment with what its noise's correlation was found to be best as.

    It is written down, since another machine might find it with other last digits.
    """
    plan = experiment.plan
    if plan.noise is None or plan.noise in NOISES or plan.strategy is not None:
        return experiment
    noise = round_plans(with_any_noise(experiment), layers)[0].noise
    if not isinstance(noise, CorrelatedNoise):
        return experiment  # there is to be none
    return experiment.changed(plan={"strategy": noise.strategy.to_json()})


def with_any_noise(experiment: Experiment) -> Experiment:
    """The experiment with noise of some size, if its size is still to be solved for."""
    plan = experiment.plan
    if experiment.noise_target is None or plan.noise_multiplier or plan.noise_stddev:
        return experiment
    return experiment.changed(plan={"noise_multiplier": 1.0})


def declared(experiment: Experiment, users: int) -> Experiment:
    """The experiment with population and delta filled in; what contradicts them is refused.

    A population that is not declared is the number of training users: to train without naming one
    declares that number public, and the claim says so.  None of this takes any time, so that it
    comes before all that does.
    """
    refuse_unsaid_noise(experiment)
    K = experiment.plan.population or users
    if users == 0:
        raise ValueError("the corpus has no training users")
    if users > K:
        raise ValueError(
            f"plan.population of {K:,} is less than the {users:,} training users; declare a"
            " number that they cannot exceed"
        )
    refuse_large_cohort(experiment, users)
    delta = experiment.privacy.delta or default_delta(K)
    _refuse_large_delta(experiment, "privacy", delta, K)
    if experiment.projection is not None:
        larger = experiment.projection.as_projection(experiment.plan.cohort)
        _refuse_large_delta(experiment, "projection", larger.delta or 0.0, larger.population)
        _refuse_unprojectable(experiment)
    is_counted = experiment.plan.population is None or experiment.plan.population_is_counted
    return experiment.changed(
        plan={"population": K, "population_is_counted": is_counted}, privacy={"delta": delta}
    )


def _refuse_large_delta(experiment: Experiment, table: str, delta: float, population: int) -> None:
    """Refuse a delta that allows somebody to be given away whole, unless it is asked for."""
    if experiment.privacy.accept_large_delta or delta < 1 / population:
        return
    raise ValueError(
        f"{table}.delta must be below 1/population = {1 / population:.3g}, or one user in the"
        f" population may be given away whole; got {delta:g} (privacy.accept_large_delta = true"
        " takes it all the same, and the claim says so)"
    )


def _refuse_unprojectable(experiment: Experiment) -> None:
    """Refuse a projection of noise that cannot be projected, before anything is trained."""
    for number in range(max(len(experiment.phases), 1)):
        plan = experiment.phase_plan(number)
        is_independent = plan.noise is None or plan.noise in NOISES
        if (plan.sampling, plan.estimator, plan.adaptive) != ("poisson", "fixed", None) or (
            not is_independent
        ):
            raise ValueError(
                "projection needs Poisson sampling, the fixed estimator, independent noise and a"
                f" clip norm that does not adapt; {experiment.name} has another plan, so leave"
                " projection out"
            )


def refuse_unsaid_noise(experiment: Experiment) -> None:
    """Refuse to train without noise, unless the experiment says in so many words that it does."""
    if experiment.noise_target is not None:
        return
    for number in range(max(len(experiment.phases), 1)):
        plan = experiment.phase_plan(number)
        is_said = plan.noise_multiplier is not None or plan.noise_stddev is not None
        if not is_said and plan.clipping != "none":
            raise ValueError(
                f"{experiment.name} says nothing about noise, without which nobody in"
                f" {experiment.source} is protected: give --epsilon 8"
                " (privacy.target_epsilon) or plan.noise_multiplier; to train without privacy, say"
                " --no-privacy (plan.noise_multiplier = 0)"
            )


def refuse_large_cohort(experiment: Experiment, users: int) -> None:
    """Refuse cohorts that are larger, on average, than the number of training users."""
    if experiment.plan.cohort > users:
        raise ValueError(
            f"{experiment.name}: plan.cohort of {experiment.plan.cohort:g} users a round is more"
            f" than the {users:,} training users of {experiment.source}; lower it with --set"
            " plan.cohort=..."
        )


def _calibrated(
    experiment: Experiment, layers: tuple[int, ...], inherited: Inherited | None
) -> Experiment:
    """The experiment with the noise that meets its target over all rounds that are left."""
    target, delta = experiment.privacy.target_epsilon, experiment.privacy.delta
    assert target is not None
    assert delta is not None
    _refuse_other_phases(experiment, "privacy")

    def releases_at(z: float) -> Composition:
        return spent.followed_by(_releases(_with_noise(experiment, z), layers, first))

    spent, first = (inherited.spent, inherited.leg) if inherited else (Composition(), 0)
    name = experiment.privacy.accountant
    by = accountant_named(name) if name else default_accountant(releases_at(1.0))
    if not spent.is_private or (spent.costly() and by.epsilon(spent, delta) >= target):
        raise ValueError(
            f"privacy.target_epsilon of {target:g} cannot be met by a branch: the"
            f" {first} rounds before it have spent as much or more already"
        )
    z = calibration.noise_for_epsilon(
        releases_at, delta=delta, target_epsilon=target, accountant=by
    )
    return _with_noise(experiment, z)


def _calibrated_to_projection(experiment: Experiment, layers: tuple[int, ...]) -> Experiment:
    """The experiment with the noise that would meet a target in the training it is projected to.

    The run's own epsilon is what that noise costs its own users, and is claimed as such.
    """
    larger, K = experiment.projection, experiment.plan.population
    assert larger is not None
    assert larger.target_epsilon is not None
    assert K is not None
    _refuse_other_phases(experiment, "projection")
    cohort, to = experiment.plan.cohort, larger.as_projection(experiment.plan.cohort)
    own_delta = experiment.privacy.delta if to.population == K else None
    delta = to.delta or own_delta or default_delta(to.population)
    larger_by = to.cohort / cohort  # as much as z is in the larger training

    def releases_at(z: float) -> Composition:
        event = round_plans(_with_noise(experiment, z / larger_by), layers)[0].event()
        assert isinstance(event, PoissonGaussian)  # what else there is was refused
        return Composition.of([(to.enlarge(event, cohort, K), to.rounds or experiment.rounds)])

    name = experiment.privacy.accountant
    z = calibration.noise_for_epsilon(
        releases_at,
        delta=delta,
        target_epsilon=larger.target_epsilon,
        accountant=accountant_named(name) if name else default_accountant(releases_at(1.0)),
    )
    return _with_noise(experiment, z / larger_by)


def _with_noise(experiment: Experiment, z: float) -> Experiment:
    return experiment.changed(plan={"noise_stddev": None, "noise_multiplier": z})


def _refuse_other_phases(experiment: Experiment, table: str) -> None:
    """Refuse phases that differ in what a target epsilon solves for."""
    if any({"noise_stddev", "noise_multiplier", "cohort"} & set(p.plan) for p in experiment.phases):
        raise ValueError(
            f"{table}.target_epsilon solves for one noise multiplier, and the phases set their own"
            " noise or cohort; leave one of them out"
        )


def _releases(experiment: Experiment, layers: tuple[int, ...], first: int = 0) -> Composition:
    """All that the rounds from `first` on release, phase by phase, from public numbers alone."""
    lengths = [phase.rounds for phase in experiment.phases] or [experiment.rounds]
    composition, start = Composition(), 0
    for plan, length in zip(round_plans(experiment, layers), lengths, strict=True):
        end = start + length
        composition = composition.followed_by(plan.releases(max(0, end - max(start, first))))
        start = end
    return composition


def round_plans(experiment: Experiment, layers: tuple[int, ...] | None) -> tuple[RoundPlan, ...]:
    """One plan per phase; a plan that is only read can do without the model's layers."""
    count = max(len(experiment.phases), 1)
    return tuple(_round_plan(experiment, number, layers) for number in range(count))


def _round_plan(experiment: Experiment, number: int, layers: tuple[int, ...] | None) -> RoundPlan:
    plan, K, delta = (
        experiment.phase_plan(number),
        experiment.plan.population,
        experiment.privacy.delta,
    )
    assert K is not None, "the experiment is not resolved"
    assert delta is not None, "the experiment is not resolved"
    settings = plan.model_dump(exclude={"population_is_counted", "clip_norm_from"})
    settings |= {
        "population": K,
        "schedule": _schedule(plan),
        "adaptive": QuantileClip(**plan.adaptive.model_dump()) if plan.adaptive else None,
        "strategy": Strategy.from_json(plan.strategy) if plan.strategy else None,
    }
    return round_plan(
        PlanSettings(**settings, layers=layers), delta=delta, rounds=experiment.rounds
    )


def _schedule(plan: Plan) -> ClipSchedule | None:
    schedule = plan.schedule
    if schedule is None:
        return None
    if schedule.kind == "geometric":
        if schedule.factor is None:
            raise ValueError("plan.schedule of kind geometric needs a factor")
        return GeometricClip(schedule.factor, schedule.final_norm)
    if schedule.final_round is None:
        raise ValueError("plan.schedule of kind linear needs a final_round")
    return LinearClip(schedule.final_round, schedule.final_norm)
