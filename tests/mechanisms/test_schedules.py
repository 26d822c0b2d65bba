import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.clipping import (
    ConstantClip,
    FlatClip,
    GeometricClip,
    LinearClip,
    PerLayerClip,
)
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy.randomness import RunKey

SCHEDULES = [ConstantClip(), GeometricClip(0.99, 5.0), LinearClip(100, 3.0)]


def plan_with(schedule, clipper=None):
    return RoundPlan(
        population=763_430,
        sampler=PoissonSampler(1667 / 763_430),
        clipper=clipper or FlatClip(20.0),
        estimator=FixedDenominator(763_430.0),
        noise=IndependentNoise(1.0),
        schedule=schedule,
    )


def test_a_schedule_lowers_clip_and_noise_together_as_the_paper_does():
    """McMahan et al. 2018, section 3: S = 20 and sigma = 0.012, then S = 7.9."""
    schedule = LinearClip(1, 7.9)
    plan = plan_with(schedule)
    before, after = (schedule.state((20.0,), round) for round in (0, 1))
    assert (before.total_norm, after.total_norm) == (20.0, 7.9)
    assert plan.noise_stddev(before) == pytest.approx(0.012, abs=5e-5)
    assert plan.noise_stddev(after) == pytest.approx(0.0048, abs=1e-4)
    assert plan.noise_stddev(after) / 7.9 == pytest.approx(plan.noise_stddev(before) / 20.0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_schedule_does_not_change_the_event(schedule):
    assert plan_with(schedule).event() == plan_with(ConstantClip()).event()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_release_moves_to_the_clip_state_of_the_next_round(schedule):
    plan = plan_with(schedule)
    key, state = RunKey.from_seed(1), plan.initial_clip_state()
    assert state == schedule.state((20.0,), 0)
    for t in range(3):
        release = plan.release(
            plan.empty(2),
            state,
            lambda purpose, t=t: key.stream(branch="a", round=t, attempt=0, purpose=purpose),
        )
        state = release.clip_state
        assert state == schedule.state((20.0,), t + 1)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
@given(round=st.integers(0, 10**6))
def test_clip_norm_never_rises_above_the_first(schedule, round):
    assert 3.0 - 1e-12 <= schedule.norm(20.0, round) <= 20.0


def test_layers_keep_their_proportions():
    clipper = PerLayerClip((3.0, 4.0))
    state = LinearClip(1, 1.0).state(clipper.norms, 1)
    assert state.norms == pytest.approx((0.6, 0.8))
    assert plan_with(ConstantClip(), clipper).initial_clip_state().norms == (3.0, 4.0)


def test_decays_follow_their_formulas_and_stop_at_the_end():
    geometric, linear = GeometricClip(0.5, 3.0), LinearClip(4, 8.0)
    assert [geometric.norm(16.0, t) for t in range(5)] == [16, 8, 4, 3, 3]
    assert [linear.norm(16.0, t) for t in range(6)] == [16, 14, 12, 10, 8, 8]
    assert geometric.norm(2.0, 7) == 2.0, "an S that starts below the end stays"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeometricClip(1.5, 1.0), "factor must be above 0 and at most 1"),
        (lambda: GeometricClip(0.0, 1.0), "factor must be above 0"),
        (lambda: GeometricClip(0.9, -1.0), "final_norm"),
        (lambda: LinearClip(0, 1.0), "final_round must be at least 1"),
        (lambda: LinearClip(10, math.inf), "final_norm"),
        (lambda: ConstantClip().state((1.0,), -1), "round must be at least 0"),
    ],
)
def test_bad_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
