"""What the server has seen is uniform but for the sum, unless a mask is missing or reused.

The server's view is what it received, and all that it can make of that with the secrets that were
revealed to it: a survivor's input without its own mask; the late input of one who dropped out
without the masks of pairs; sums and differences of those, within a round and between two.  Each has
to be uniform on words, unless it is the sum of all survivors.

Every vector is judged by a chi-square test of its bytes and a Kolmogorov-Smirnov test of its words,
and all together raise a false alarm for one set of keys in 10^5 (keys are random, so this is once
in 10^5 runs).  A view that is not uniform holds a vector whose words are all below 2^45: 2 of their
8 bytes are then constant, and the chi-square of 16,000 bytes is beyond any table.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from tacit.secure_sum import client as client_module
from tacit.secure_sum import keys, masks
from tacit.secure_sum.masks import add_masks_
from tacit.secure_sum.messages import HEADER_SIZE, ShareOf
from tests.secure_sum.parties import SESSION, Group, rules_for

FALSE_ALARM = 1e-5
CLIENTS, WORDS = 6, 2000
SURVIVORS, LATE = range(1, 6), 6  # whose input came in time, and after the end of the phase
Words = NDArray[np.uint64]


def is_uniform(vectors: list[Words]) -> bool:
    """Whether no vector of the list is far from uniform words."""
    p_values = []
    for words in vectors:
        p_values.append(stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue)
        p_values.append(stats.kstest(words * 2.0**-64, "uniform").pvalue)
    return bool(min(p_values) > FALSE_ALARM / len(p_values))


def a_round(number: int) -> tuple[Group, dict[int, Words]]:
    """A round in which one client's input comes too late, and what the server makes of each."""
    rules = rules_for(CLIENTS, size=WORDS)
    group = Group(rules, session=replace(SESSION, round=number))
    group.run((), (), {LATE})
    return group, dict(unmasked(group))


def unmasked(group: Group) -> Iterator[tuple[int, Words]]:
    """Each input as far as the server can unmask it by what was revealed."""
    server = group.server
    context = group.session.context(group.rules)
    assert np.array_equal(server.total, group.sum_of(SURVIVORS))
    private = server._secret(LATE, ShareOf.KEY)
    with_late = {
        one: keys.mask_key(private, LATE, one, server._adverts[one].masking, context)
        for one in SURVIVORS
    }
    for one, message in group.sent.items():
        words = received(message)
        if one == LATE:
            add_masks_(words, [(key, peer < LATE) for peer, key in with_late.items()])
        else:
            own = keys.self_mask_key(server._secret(one, ShareOf.SEED), one, context)
            add_masks_(words, [(own, False), (with_late[one], one > LATE)])
        yield one, words


def received(message: bytes) -> Words:
    """The words of a masked input."""
    return np.frombuffer(message, np.uint64, offset=HEADER_SIZE).copy()


def views(rounds: list[tuple[Group, dict[int, Words]]]) -> list[Words]:
    """All vectors that have to be uniform."""
    seen: list[Words] = []
    for group, inputs in rounds:
        seen += map(received, group.sent.values())
        seen.append(inputs[LATE])
        for size in range(1, len(SURVIVORS)):
            for some in itertools.combinations(SURVIVORS, size):
                seen.append(np.sum([inputs[one] for one in some], axis=0, dtype=np.uint64))
        for one, other in itertools.combinations(inputs, 2):
            seen.append(inputs[one] - inputs[other])
    for (_, first), (_, second) in itertools.combinations(rounds, 2):
        seen += [first[one] - second[one] for one in first]
    return seen


def test_what_the_server_knows_is_uniform():
    assert is_uniform(views([a_round(1), a_round(2)]))


def test_a_test_of_uniformity_takes_uniform_words_and_not_small_ones():
    random = np.random.default_rng(0)
    uniform = [random.integers(0, 2**64, WORDS, np.uint64) for _ in range(50)]
    assert is_uniform(uniform)
    small = random.integers(-(2**42), 2**42, WORDS).view(np.uint64)
    assert not is_uniform([*uniform, small])


def test_it_is_not_uniform_if_all_pairs_have_the_same_mask(monkeypatch):
    monkeypatch.setattr(keys, "mask_key", lambda *_: bytes(32))
    assert not is_uniform(views([a_round(1)]))


def test_it_is_not_uniform_without_the_self_mask(monkeypatch):
    """A server that calls a late client gone learns its key, and would have its input."""
    keystream, no_key = masks._keystream, bytes(32)

    class Silence:
        def update_into(self, zeros: memoryview, room: memoryview) -> None:
            room[: len(zeros)] = zeros

    monkeypatch.setattr(keys, "self_mask_key", lambda *_: no_key)
    monkeypatch.setattr(
        masks, "_keystream", lambda key: Silence() if key == no_key else keystream(key)
    )
    group, inputs = a_round(1)
    assert not is_uniform(views([(group, inputs)]))
    assert np.array_equal(inputs[LATE].view(np.int64), group.vectors[LATE])


@pytest.fixture
def _keys_that_come_again(monkeypatch):
    """A client whose random numbers repeat, as those of a machine that was restored from a copy."""
    counts = itertools.count()

    def token_bytes(size: int) -> bytes:
        return hashlib.sha256(bytes([next(counts) % (3 * CLIENTS)])).digest()[:size]

    monkeypatch.setattr(client_module.secrets, "token_bytes", token_bytes)


@pytest.mark.usefixtures("_keys_that_come_again")
def test_masks_of_two_rounds_differ_even_if_the_keys_are_the_same():
    first, second = a_round(1), a_round(2)
    keys_of = [group.server._adverts[1].masking for group, _ in (first, second)]
    assert keys_of[0] == keys_of[1]
    assert is_uniform(views([first, second]))


@pytest.mark.usefixtures("_keys_that_come_again")
def test_the_same_keys_without_the_round_in_their_masks_are_found_out(monkeypatch):
    derive = keys.derive

    def of_any_round(secret: bytes, use: str, _: bytes, *facts: bytes) -> bytes:
        return derive(secret, use, bytes(32), *facts)

    monkeypatch.setattr(keys, "derive", of_any_round)
    first, second = a_round(1), a_round(2)
    assert is_uniform(views([first]))
    assert is_uniform(views([second]))
    assert not is_uniform(views([first, second]))
