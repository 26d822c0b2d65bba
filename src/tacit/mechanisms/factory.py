"""The one way from settings to a `RoundPlan`.

`tacit train` reads its settings from an experiment and `tacit plan` from its options.  Both build
their plans here, so what is planned is what would be trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.mechanisms import clipping, estimators, samplers
from tacit.mechanisms.clipping import Clipper, ClipSchedule, QuantileClip
from tacit.mechanisms.estimators import Estimator
from tacit.mechanisms.noise import NOISES, IndependentNoise, RoundNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import Sampler
from tacit.privacy.events import Adjacency


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The choices of a round under the names that an experiment's `[plan]` has for them.

    `population` is the declared K and `cohort` the expected users of a round, so q = cohort / K.
    `noise_multiplier` is z and `noise_stddev` is sigma on the average; at most one of them is
    given.  `noise` is a kind of `noise.NOISES`; if it is not given, noise is independent.  A
    `total_weight` or `min_weight` that is not given is K.  `layers` has the sizes of the model's
    layers.
    """

    population: int
    cohort: float
    sampling: str = "poisson"
    max_cohort: int | None = None
    clipping: str = "flat"
    clip_norm: float | None = None
    layer_clip_norms: tuple[float, ...] | None = None
    noise_multiplier: float | None = None
    noise_stddev: float | None = None
    noise: str | None = None
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
        noise=_noise(settings, z) if z else None,
        weighting=estimators.UserWeighting(settings.user_weight_cap),
        schedule=settings.schedule or clipping.ConstantClip(),
        adaptive=settings.adaptive,
        layers=settings.layers,
        weight_aware=settings.weight_aware,
        unit=settings.unit,
    )


def _sampler(settings: PlanSettings, delta: float, rounds: int) -> Sampler:
    """The sampler by its name; q is the expected cohort over the declared population."""
    K, q = settings.population, settings.cohort / settings.population
    match settings.sampling:
        case "poisson":
            return samplers.PoissonSampler(q)
        case "truncated" if settings.max_cohort is not None:
            return samplers.TruncatedPoissonSampler(K, q, settings.max_cohort)
        case "truncated":
            return samplers.TruncatedPoissonSampler.with_default_cap(
                K, q, delta=delta, rounds=rounds
            )
        case "fixed":
            return samplers.FixedSizeSampler(K, _whole_cohort(settings))
        case "with-replacement":
            return samplers.WithReplacementSampler(K, _whole_cohort(settings))
    raise ValueError(
        "sampling must be one of poisson, truncated, fixed, with-replacement, got"
        f" {settings.sampling!r}"
    )


def _whole_cohort(settings: PlanSettings) -> int:
    """The cohort as an integer, which sampling of an exact size needs."""
    if not float(settings.cohort).is_integer():
        raise ValueError(
            f"plan.cohort must be whole for {settings.sampling} sampling: {settings.cohort}"
        )
    return int(settings.cohort)


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


def _noise(settings: PlanSettings, z: float) -> RoundNoise:
    """The noise by its kind."""
    kind = settings.noise or IndependentNoise.kind
    if kind not in NOISES:
        raise ValueError(f"plan.noise must be one of {', '.join(NOISES)}, got {kind!r}")
    return NOISES[kind](z)


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
