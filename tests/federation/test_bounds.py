"""What a contribution must be: honest ones pass, and none that could move the sum by more."""

import numpy as np
import pytest

from tacit.federation.bounds import Bound, square
from tacit.mechanisms.clipping import FlatClip, NoClip, PerLayerClip, QuantileClip
from tacit.mechanisms.estimators import FixedDenominator, TrueAverage, UserWeighting
from tacit.mechanisms.fixed_point import HALF_CLIP_BIT, WHOLE_WEIGHT, Contribution
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import MinSeparationSampler

SIZE = 50


def plan(**changes) -> RoundPlan:
    parts = {
        "population": 100,
        "sampler": MinSeparationSampler(2, 1.0),
        "clipper": FlatClip(0.7),
        "estimator": FixedDenominator(100.0),
        "noise": IndependentNoise(1.0),
        "layers": (20, 30),
    }
    return RoundPlan(**parts | changes)


def bound(made: RoundPlan) -> Bound:
    return Bound(made, made.initial_clip_state(), SIZE)


def update(scale: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(SIZE) * scale).astype(np.float32)


PLANS = {
    "flat": plan(),
    "per layer": plan(clipper=PerLayerClip((0.3, 0.6))),
    "weighted": plan(weighting=UserWeighting(40.0)),
    "weight-aware": plan(weighting=UserWeighting(40.0), weight_aware=True),
    "adaptive": plan(adaptive=QuantileClip(), population=1000),
    "without a clip": plan(clipper=NoClip(), noise=None, estimator=TrueAverage()),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.05, 0.1, 1.0, 1e6, 1e30, np.nan])
def test_what_an_honest_client_contributes_is_within_the_bound(name, scale):
    made = PLANS[name]
    if name == "without a clip" and scale > 1:
        pytest.skip("the grid itself refuses it")
    state = made.initial_clip_state()
    for seed, examples in enumerate((0, 1, 17, 39, 40, 1000)):
        bound(made).check(made.contribution(update(scale, seed), examples, state))


def honest(made: RoundPlan = PLANS["flat"]) -> Contribution:
    return made.contribution(update(1.0), 50, made.initial_clip_state())


def test_a_norm_above_the_bound_by_a_few_steps_is_refused():
    """An honest update of the full norm, of which one coordinate is raised until it is too long."""
    made = PLANS["flat"]
    own = bound(made)
    contribution = honest()
    limit = 0.7 / own.grid.step
    contribution.update[:] = 0
    contribution.update[0] = int(limit)
    own.check(contribution)
    contribution.update[0] = int(limit) + 1
    with pytest.raises(ValueError, match="the norm of an update must be at most"):
        own.check(contribution)


def test_each_layer_has_its_own_bound():
    made = PLANS["per layer"]
    contribution = honest(made)
    contribution.update[:] = 0
    contribution.update[0] = int(0.5 / bound(made).grid.step)  # within S, and not within S_1
    with pytest.raises(ValueError, match="norm"):
        bound(made).check(contribution)
    contribution.update[0], contribution.update[30] = 0, contribution.update[0]
    bound(made).check(contribution)


def test_a_small_weight_allows_a_small_norm_only():
    made = PLANS["weighted"]
    contribution = made.contribution(update(1.0), 40, made.initial_clip_state())
    bound(made).check(contribution)
    contribution.weight //= 2
    with pytest.raises(ValueError, match="norm"):
        bound(made).check(contribution)
    aware = PLANS["weight-aware"]
    contribution = aware.contribution(update(1.0), 40, aware.initial_clip_state())
    contribution.weight //= 2
    bound(aware).check(contribution)  # there the weighted update is clipped to S


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c, "update", c.update[:-1]), "must be 50 values of int64"),
        (lambda c: setattr(c, "update", c.update.astype(np.float64)), "int64, got float64"),
        (lambda c: setattr(c, "update", c.update.reshape(5, 10)), "must be 50 values"),
        (lambda c: setattr(c, "bits", np.array([HALF_CLIP_BIT])), "bits must be 0 values"),
        (lambda c: setattr(c, "weight", WHOLE_WEIGHT - 1), "the weight must be 1073741824"),
        (lambda c: c.update.__setitem__(3, np.iinfo(np.int64).min), "a coordinate must be within"),
        (lambda c: c.update.__setitem__(3, 2**40), "a coordinate must be within"),
    ],
)
def test_what_no_honest_client_sends_is_refused(change, message):
    contribution = honest()
    change(contribution)
    with pytest.raises(ValueError, match=message):
        bound(PLANS["flat"]).check(contribution)


def test_clip_bits_are_plus_or_minus_one_half():
    made = PLANS["adaptive"]
    contribution = honest(made)
    bound(made).check(contribution)
    contribution.bits = contribution.bits * 2
    with pytest.raises(ValueError, match="clip bits"):
        bound(made).check(contribution)


def test_weights_beyond_one_are_refused():
    contribution = honest(PLANS["weighted"])
    for weight in (-1, WHOLE_WEIGHT + 1):
        contribution.weight = weight
        with pytest.raises(ValueError, match="the weight must be from 0"):
            bound(PLANS["weighted"]).check(contribution)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("people", [0, 1, 7])
def test_the_sum_of_a_silos_people_is_within_their_bound(name, people):
    """Seven people at most, all of whom are at the edge in the same direction."""
    made = PLANS[name]
    scale = 0.1 if name == "without a clip" else 1e6
    total = made.empty(SIZE)
    for examples in range(37, 37 + people):
        total += made.contribution(update(scale), examples, made.initial_clip_state())
    silo = Bound(made, made.initial_clip_state(), SIZE, people=7)
    silo.check(total)
    if name != "without a clip" and people == 7:
        total.update = total.update + total.update // 30
        with pytest.raises(ValueError, match="the norm of an update must be at most"):
            silo.check(total)


def test_a_silos_sum_is_bounded_by_its_people_in_every_part():
    made = PLANS["adaptive"]
    silo = Bound(made, made.initial_clip_state(), SIZE, people=3)

    def total(weight=3 * WHOLE_WEIGHT, bit=3 * HALF_CLIP_BIT, coordinate=0):
        values = np.zeros(SIZE, np.int64)
        values[0] = coordinate
        return Contribution(values, weight, np.array([bit], np.int64))

    silo.check(total())
    silo.check(total(bit=-HALF_CLIP_BIT))
    for wrong, said in (
        (total(weight=4 * WHOLE_WEIGHT), "the weight must be from 0"),
        (total(weight=WHOLE_WEIGHT + 1), "the weight must be a multiple"),
        (total(bit=4 * HALF_CLIP_BIT), "clip bits must be multiples"),
        (total(bit=HALF_CLIP_BIT + 1), "clip bits must be multiples"),
        (total(coordinate=3 * silo.grid.limit), "a coordinate must be within"),
        (total(weight=WHOLE_WEIGHT, coordinate=2 * int(0.7 / silo.grid.step)), "norm"),
    ):
        with pytest.raises(ValueError, match=said):
            silo.check(wrong)


def test_the_sum_of_squares_is_exact():
    ends = np.array([2**36 - 1, -(2**36) + 1, 2**18, -(2**18) - 1, -1, 0, 1], np.int64)
    wide = np.array([2**62 - 1, -(2**62) + 1, 2**54, -(2**55) - 3, 2**18 + 1, 5], np.int64)
    draws = np.random.default_rng(0).integers(-(2**36) + 1, 2**36, 1000)
    for values in (ends, wide, draws, np.empty(0, np.int64)):
        assert square(values) == sum(int(value) ** 2 for value in values)
