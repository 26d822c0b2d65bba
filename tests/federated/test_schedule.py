"""The server's learning rate over the rounds: its shape, its ends, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.federated.schedule import RateSchedule
from tacit.federated.server import ServerAdam, ServerMomentum, ServerSGD


def shares(schedule, rounds):
    return [schedule.share(round, rounds) for round in range(rounds)]


def test_without_settings_every_round_has_the_full_rate():
    assert shares(RateSchedule(), 5) == [1.0] * 5


def test_a_line_falls_in_equal_steps_and_would_end_after_the_last_round():
    assert shares(RateSchedule("linear"), 4) == [1.0, 0.75, 0.5, 0.25]
    assert shares(RateSchedule("linear", final_share=0.2), 4) == pytest.approx([1, 0.8, 0.6, 0.4])


def test_half_a_cosine_is_flat_at_its_ends_and_half_way_down_in_the_middle():
    found = shares(RateSchedule("cosine", final_share=0.1), 100)
    assert found == pytest.approx(
        [0.1 + 0.9 * (1 + math.cos(math.pi * t / 100)) / 2 for t in range(100)]
    )
    assert found[50] == pytest.approx(0.55)
    assert found[0] - found[1] < 0.001 < found[49] - found[50]


def test_a_warm_up_rises_in_equal_steps_and_leaves_the_rest_to_the_kind():
    assert shares(RateSchedule("linear", warmup_rounds=3), 7) == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25]
    )
    assert shares(RateSchedule(warmup_rounds=1), 3) == [0.5, 1.0, 1.0]


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(1, 200),
    st.floats(0, 1, exclude_max=True),
    st.data(),
)
def test_no_round_is_wasted_at_a_rate_of_zero(kind, rounds, final, data):
    warmup = data.draw(st.integers(0, rounds - 1))
    found = shares(RateSchedule(kind, warmup, final), rounds)
    assert all(0 < share <= 1 for share in found)
    assert found[warmup] == 1
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert min(found[warmup:]) >= final


@pytest.mark.parametrize("server", [ServerSGD(0.8), ServerMomentum(0.8), ServerAdam(0.8)])
def test_a_share_of_the_rate_moves_the_weights_by_that_share(server):
    weights, average = np.ones(3, np.float32), np.array([0.5, -2.0, 1.0])
    whole, state = server.apply(weights, average, server.initial(3))
    half, same = server.apply(weights, average, server.initial(3), 0.5)
    assert half - weights == pytest.approx((whole - weights) / 2, abs=1e-6)
    assert all(np.array_equal(state[name], same[name]) for name in state)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "step"}, "kind must be one of constant, cosine, linear, got 'step'"),
        ({"warmup_rounds": -1}, "warmup_rounds must be at least 0, got -1"),
        ({"final_share": 1.0}, "final_share must be at least 0 and below 1, got 1.0"),
        ({"final_share": math.nan}, "final_share must be at least 0 and below 1, got nan"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        RateSchedule(**fields)
