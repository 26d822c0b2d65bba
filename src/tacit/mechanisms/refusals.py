"""What a plan may not say.

Anything that would void a guarantee, or that no round could run, is refused when the plan is made:
the message names the field, the value, the bound, and what to use instead.
"""

from __future__ import annotations

import functools
import typing
from typing import TYPE_CHECKING

from tacit.mechanisms.clipping import ConstantClip, NoClip, PerLayerClip, split_noise_multiplier
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from tacit.mechanisms.fixed_point import CLIP_BITS, LARGEST_NOISE, LARGEST_POPULATION, grid_bits
from tacit.mechanisms.noise import CorrelatedNoise
from tacit.mechanisms.samplers import MinSeparationSampler, TurnSampler
from tacit.privacy import checks

if TYPE_CHECKING:
    from tacit.mechanisms.plan import RoundPlan

_hints = functools.cache(typing.get_type_hints)  # a search for the noise makes thousands of plans


def check_plan(plan: RoundPlan) -> None:
    """Raise `ValueError` unless the plan can be run and means what it says."""
    own: type = type(plan)
    hints = _hints(own)
    for name in ("sampler", "clipper", "estimator", "noise", "weighting", "schedule", "adaptive"):
        if not isinstance(getattr(plan, name), hints[name]):  # it may have been read from JSON
            raise ValueError(f"{name} cannot be {getattr(plan, name)!r}")
    _check_population(plan)
    _check_clipping(plan)
    _check_correlation(plan)
    _check_shares(plan)
    if plan.is_private:
        _check_private(plan)
    elif plan.adaptive is not None and plan.adaptive.bit_noise_stddev is not None:
        raise ValueError(
            f"bit_noise_stddev must be left out of a plan without noise, got"
            f" {plan.adaptive.bit_noise_stddev}; give noise_multiplier as well, or neither"
        )


def _check_population(plan: RoundPlan) -> None:
    """The declared K bounds all that is declared about the users."""
    K = plan.population
    if K > LARGEST_POPULATION:
        raise ValueError(
            f"population must be at most {LARGEST_POPULATION}, so that integer sums of weights"
            f" cannot overflow, got {K}"
        )
    slots = getattr(plan.sampler, "population", K)
    if slots != K:
        raise ValueError(
            f"the sampler's population must be the plan's population of {K}, got {slots}; declare"
            " one population for both"
        )
    match plan.estimator:
        case FixedDenominator(weight):
            name = "total_weight"
        case ClippedDenominator(weight):
            name = "min_weight"
        case _:
            return
    if weight > K:
        raise ValueError(
            f"{name} must be at most the population of {K}, because no user has a weight above 1,"
            f" got {weight}"
        )


def _check_clipping(plan: RoundPlan) -> None:
    """There is a norm for whatever changes norms, and one norm or one for each layer."""
    changes = plan.adaptive is not None or not isinstance(plan.schedule, ConstantClip)
    if isinstance(plan.clipper, NoClip) and changes:
        raise ValueError(
            "clipper must have a clip norm for a schedule or an adaptive clip to change, got"
            " NoClip; use FlatClip or PerLayerClip"
        )
    if plan.adaptive is not None and not isinstance(plan.schedule, ConstantClip):
        raise ValueError(
            f"schedule must be ConstantClip beside an adaptive clip, got {plan.schedule!r}; the"
            " clip norm follows either the rounds or the users' norms"
        )
    if plan.layers is None:
        return
    if not plan.layers:
        raise ValueError("layers must have at least one layer's size, got none")
    for layer, size in enumerate(plan.layers):
        checks.whole(f"layers[{layer}]", size, at_least=1)
    if isinstance(plan.clipper, PerLayerClip) and len(plan.layers) != len(plan.clipper.norms):
        raise ValueError(
            f"clip_norms must have one norm for each of the {len(plan.layers)} layers, got"
            f" {len(plan.clipper.norms)}"
        )


def _check_correlation(plan: RoundPlan) -> None:
    """What noise of other rounds takes back must be of the same scale, and its cost be bounded."""
    if not isinstance(plan.noise, CorrelatedNoise):
        return
    name = plan.noise.strategy.kind
    if not isinstance(plan.sampler, TurnSampler):
        raise ValueError(
            f'plan.noise = "{name}" needs users who take turns, got {plan.sampler.kind} sampling;'
            ' use plan.sampling = "min-separation" or "cyclic-poisson", with plan.separation'
        )
    if plan.adaptive is not None or not isinstance(plan.schedule, ConstantClip):
        raise ValueError(
            f'plan.noise = "{name}" needs a clip norm that stays the same: a round takes back noise'
            " of rounds before it, which was made for theirs; leave plan.schedule and plan.adaptive"
            " out"
        )


def _check_shares(plan: RoundPlan) -> None:
    """Noise that users add is in the sum of updates alone, and made for those whose turn it is."""
    noise = plan.noise
    if not isinstance(noise, DistributedNoise):
        return
    sampler = plan.sampler
    if not isinstance(sampler, MinSeparationSampler) or sampler.share != 1:
        raise ValueError(
            f'plan.noise = "{noise.kind}" needs everybody whose turn it is, since each adds a share'
            ' of the noise: use plan.sampling = "min-separation", with plan.cohort ='
            f" plan.population / plan.separation; got {sampler.describe()}"
        )
    if plan.bits or not isinstance(plan.estimator, FixedDenominator):
        raise ValueError(
            f'plan.noise = "{noise.kind}" needs plan.estimator = "fixed" and no plan.adaptive:'
            " weights and clip bits would be summed without noise"
        )
    if plan.layers is not None and noise.size != sum(plan.layers):
        raise ValueError(
            f"the noise must be for the {sum(plan.layers):,} weights of the layers, got"
            f" {noise.size:,}"
        )


def _check_private(plan: RoundPlan) -> None:
    """With noise, a plan claims a guarantee, so each of its parts must support one."""
    z = plan.noise_multiplier
    assert z is not None
    if isinstance(plan.clipper, NoClip):
        raise ValueError(
            f"noise_multiplier {z:g} needs clipped updates, because noise cannot hide a user"
            " without a bound, got NoClip; use FlatClip or PerLayerClip"
        )
    if isinstance(plan.estimator, TrueAverage):
        raise ValueError(
            f"noise_multiplier {z:g} needs an estimator of bounded sensitivity, got TrueAverage;"
            " use FixedDenominator or ClippedDenominator"
        )
    if plan.weight_aware and not isinstance(plan.estimator, FixedDenominator):
        raise ValueError(
            "weight_aware clipping needs the fixed denominator: with the clipped one a user of"
            " little weight and a large update could move the average further than the noise"
            " hides; use FixedDenominator, or clip the update itself"
        )
    if plan.bits:
        split_noise_multiplier(z, plan.bit_noise_stddev, plan.bits)  # raises if nothing is left
        largest = LARGEST_NOISE / 2**CLIP_BITS
        if not plan.bit_noise_stddev <= largest:
            raise ValueError(
                f"bit_noise_stddev must be at most {largest:.3g}, so that its grid is coarse"
                f" enough for float64 noise, got {plan.bit_noise_stddev:g}"
            )
    grid_bits(plan.population, plan.relative_noise)  # raises if no grid holds the noise
