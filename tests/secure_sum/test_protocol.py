"""The sum is exact whoever drops out, and below the threshold there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secure_sum import RefusedError, RoundFailedError, SumRules, width_for
from tests.secure_sum.parties import LIMIT, Group, rules_for

PHASES = ["advertise", "share", "mask", "confirm", "reveal"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_the_sum_is_that_of_all_whose_input_came_whoever_drops_out_and_when(phase, share):
    group = Group(rules_for(10))
    gone = set(list(group.ids)[:: 10 // max(1, round(10 * share))][: round(10 * share)])
    total = group.run(*[()] * phase, gone)
    has_input = phase > PHASES.index("mask")
    there = set(group.ids) if has_input else set(group.ids) - gone
    assert group.server.survivors == there
    assert np.array_equal(total, group.sum_of(there))


def test_some_dropping_out_in_each_phase_is_recovered():
    group = Group(rules_for(16, threshold=9, survivors=10))
    total = group.run({1}, {2, 16}, {3, 8}, {4}, {5})
    assert np.array_equal(total, group.sum_of(set(group.ids) - {1, 2, 16, 3, 8}))


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_one_too_few_in_any_phase_fails_the_round_and_gives_no_sum(phase):
    group = Group(rules_for(10))  # 7 have to be there
    with pytest.raises(RoundFailedError, match=r"at least 7 clients must have sent .*, got 6"):
        group.run(*[()] * phase, {2, 4, 6, 8})
    with pytest.raises(RefusedError, match="the sum is not known"):
        _ = group.server.total


@given(
    st.integers(2, 8),
    st.sampled_from([16, 24, 32, 40, 56, 64]),
    st.integers(0, 2**32),
    st.integers(1, 50),
)
def test_sums_of_random_vectors_at_their_limit_are_exact(clients, width, seed, size):
    limit = (2 ** (width - 1) - 1) // clients
    group = Group(rules_for(clients, width=width, limit=limit, size=size))
    random = np.random.default_rng(seed)
    group.vectors = {one: random.choice([-limit, 0, limit], size) for one in group.ids}
    assert np.array_equal(group.run(), group.sum_of(group.ids))


@pytest.mark.parametrize("width", [16, 24, 32, 40, 64])
def test_without_a_limit_the_sum_is_right_modulo_two_to_the_width(width):
    group = Group(rules_for(5, width=width, limit=None))
    half = 2 ** (width - 1)
    exact = [sum(int(v[i]) for v in group.vectors.values()) for i in range(group.rules.size)]
    assert group.run().tolist() == [(value + half) % 2**width - half for value in exact]


def test_ids_of_any_size_take_part():
    group = Group(rules_for(3), ids=(1, 7, 40))
    assert np.array_equal(group.run(), group.sum_of(group.ids))


@pytest.mark.parametrize("width", [16, 40])
def test_a_masked_input_is_as_many_bytes_as_its_width_asks_for_and_48(width):
    group = Group(rules_for(4, width=width, limit=1000))
    group.run()
    assert {len(sent) for sent in group.sent.values()} == {48 + width // 8 * group.rules.size}


def test_one_wrong_share_among_more_than_enough_does_no_harm():
    group = Group(rules_for(10))
    inbox = group.mask(group.share(group.advertise()), {3})
    inbox = group.confirm(inbox)
    for one, message in inbox.items():
        answer = bytearray(group.clients[one].reveal(message))
        if one == 5:
            answer[-1] ^= 1  # client 10's seed
            answer[48 + 2 * 42 + 20] ^= 1  # client 3's key
        group.server.receive(bytes(answer))
    group.server.advance()
    assert np.array_equal(group.server.total, group.sum_of(set(group.ids) - {3}))


def test_wrong_shares_beyond_the_threshold_fail_the_round():
    group = Group(rules_for(4))
    inbox = group.confirm(group.mask(group.share(group.advertise())))
    for one, message in inbox.items():
        answer = bytearray(group.clients[one].reveal(message))
        answer[-1] ^= {1: 1, 2: 2}.get(one, 0)
        group.server.receive(bytes(answer))
    with pytest.raises(RoundFailedError, match="the seed of client 4 cannot be recovered"):
        group.server.advance()
    with pytest.raises(RefusedError, match="the sum is not known"):
        _ = group.server.total


def test_shares_spoilt_on_the_way_count_as_missing():
    group = Group(rules_for(6, threshold=4, survivors=4))
    inbox = group.share(group.advertise())
    spoilt = bytearray(inbox[2])
    spoilt[-1] ^= 1  # what client 6 sent to client 2
    inbox[2] = bytes(spoilt)
    inbox = group.confirm(group.mask(inbox))
    revealed = {one: len(group.clients[one].reveal(message)) for one, message in inbox.items()}
    assert revealed[1] - revealed[2] == 42  # one share less


# Rules


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"threshold": 5}, "threshold must be above 5, half of the 10 clients"),
        ({"threshold": 6, "colluding": 2}, "threshold must be above 6"),
        ({"threshold": 8, "survivors": 8, "colluding": 3}, "must be at most 7"),
        ({"survivors": 6}, "survivors must be between the threshold of 7 and the 10 clients"),
        ({"survivors": 11}, "survivors must be between"),
        ({"width": 45}, "width must be a multiple of 8 from 16 to 64, got 45"),
        ({"width": 72}, "width must be a multiple of 8 from 16 to 64, got 72"),
        ({"width": 40}, "cannot wrap, got 40"),
        ({"limit": 2**60}, "width must be above 64 bits"),
        ({"size": 0}, "size must be at least 1"),
        ({"threshold": 7.0}, "threshold must be a whole number"),
        ({"colluding": -1}, "colluding must be at least 0"),
    ],
)
def test_rules_that_would_not_protect_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        rules_for(10, **changed)


def test_a_larger_group_than_the_protocol_is_meant_for_is_refused():
    with pytest.raises(ValueError, match="clients must be at most 10,000, got 10,001"):
        rules_for(10_001)


@given(st.integers(2, 10_000), st.integers(1, 2**45))
def test_the_rules_for_a_lying_server_hold_and_their_width_is_the_least(clients, limit):
    rules = SumRules.against_a_lying_server(clients, 10, limit)
    assert 2 * rules.threshold > clients + rules.colluding
    assert rules.colluding >= (clients - 1) // 3 - 1
    assert clients * limit < 2 ** (rules.width - 1)
    assert rules.width == 16 or clients * limit >= 2 ** (rules.width - 9)


def test_a_sum_that_no_word_can_hold_is_refused():
    with pytest.raises(ValueError, match="fits in 64 bits"):
        width_for(1000, 2**54)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(39, np.int64), "vector must be 40 values of int64"),
        (np.zeros((40, 1), np.int64), "vector must be 40 values of int64"),
        (np.zeros(40), "got float64"),
        (np.full(40, LIMIT + 1), f"vector must be within {LIMIT} in magnitude, got {LIMIT + 1}"),
        (np.full(40, -(2**63)), "in magnitude, got 9223372036854775808"),
    ],
)
def test_a_vector_of_another_shape_or_beyond_the_limit_is_refused_before_it_is_masked(
    vector, message
):
    group = Group(rules_for(3))
    inbox = group.share(group.advertise())
    with pytest.raises(ValueError, match=message):
        group.clients[1].mask(inbox[1], vector)
