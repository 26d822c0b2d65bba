"""Noisy counts: what one user can change, how much noise there is, and on how many coordinates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from tacit.mechanisms import noisy_counts as subject
from tacit.mechanisms.noisy_counts import NoisyCounts
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, Gaussian
from tacit.privacy.stream import Stream

SIZE, BOS = 7, 0
USER = st.lists(st.integers(0, SIZE - 1), max_size=60).map(np.array)
USERS = st.lists(USER, max_size=6)


def mechanism(noise_multiplier=1.0, size=SIZE, population=100):
    return NoisyCounts(noise_multiplier, population, size, BOS)


def dense(total, size=SIZE):
    vector = np.zeros(size + size**2, np.int64)
    vector[total.index] = total.values
    return vector


def stream(number=0):
    return Stream(bytes([number]) * 32)


def squares(vector):
    return sum(int(value) ** 2 for value in vector)  # exact, whatever its size


@given(USER, st.sampled_from([1e-3, 1.0, 50.0]))
def test_nobody_contributes_more_than_norm_1_exactly(tokens, noise):
    one = mechanism(noise)
    limit = round(subject.CLIP_NORM / one.grid.step)
    total = squares(one.contribution(tokens).values)
    assert total <= limit**2
    has_pairs = any(token != BOS for token in tokens[1:])
    assert (total > 0.999 * limit**2) == has_pairs  # everybody has the same say


@given(USERS, USER)
def test_a_user_who_comes_or_goes_moves_the_sum_by_that_contribution(users, user):
    one = mechanism()
    without = dense(one.total(users))
    with_user = dense(one.total([*users[:2], user, *users[2:]]))
    assert np.array_equal(with_user - without, dense(one.contribution(user)))


@given(USERS)
def test_the_sum_does_not_depend_on_order_or_blocks(users):
    one = mechanism()
    total = one.total(users)
    assert np.all(np.diff(total.index) > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "_ENTRIES_AT_ONCE", 1)
        assert np.array_equal(dense(one.total(users[::-1])), dense(total))


def test_a_contribution_counted_by_hand():
    one = mechanism()
    found = dense(one.contribution(np.array([BOS, 3, 4, 3, 4, BOS, 3]))) * one.grid.step
    counts = np.zeros(SIZE + SIZE**2)
    counts[[3, 4]] = 3 / 8, 2 / 8
    counts[BOS] = 2 / 8  # two texts begin
    for before, after, count in ((BOS, 3, 2), (3, 4, 2), (4, 3, 1)):  # never a pair before BOS
        counts[SIZE + before * SIZE + after] = count
    assert np.allclose(found, counts / np.linalg.norm(counts), atol=1e-6)


def noise_of(one, number, monkeypatch):
    """The noise on every pair, of a release of nobody."""
    monkeypatch.setattr(subject, "_THRESHOLD", -100.0)
    released = one.release(one.total([]), stream(number))
    assert len(released.pairs) == one.vocab_size**2
    return released


def fits(values, stddev):
    """Whether values may be normal with this standard deviation: a two-sided test at 1e-6."""
    statistic = float(np.sum((values / stddev) ** 2))
    return 1e-6 < chi2.cdf(statistic, len(values)) < 1 - 1e-6


@pytest.mark.parametrize("z", [0.5, 3.0])
def test_every_coordinate_has_noise_of_the_stated_scale_and_no_other(z, monkeypatch):
    released = noise_of(mechanism(z, size=300), 1, monkeypatch)
    assert (released.pair_noise, released.token_noise) == (z, 8 * z)
    assert fits(released.pairs, z)
    assert not fits(released.pairs, 0.97 * z)
    assert not fits(released.pairs, 1.03 * z)
    assert fits(released.tokens, 8 * z)
    assert not fits(released.tokens, 8 * z / 1.5)
    assert abs(released.pairs.mean()) < 5 * z / 300


def test_pieces_of_any_size_have_the_same_noise(monkeypatch):
    whole = noise_of(mechanism(), 2, monkeypatch)
    monkeypatch.setattr(subject, "_COORDINATES_AT_ONCE", 5)
    assert np.array_equal(noise_of(mechanism(), 2, monkeypatch).pairs, whole.pairs)


def test_pairs_above_the_threshold_are_kept_whoever_used_them():
    """Nobody has used a pair, and some are kept all the same: that is what hides the others."""
    one = mechanism(1.0, size=1200)
    released = one.release(one.total([]), stream(3))
    assert 0 < len(released.pairs) < 20  # 1.44 million times 3.4e-6 is 4.9
    assert (released.pairs > 4.5).all()
    often = [np.array([BOS, *[3, 4] * 20])] * 60
    kept = one.release(one.total(often), stream(3))
    assert {(3, 4), (4, 3)} <= set(zip(kept.before.tolist(), kept.after.tolist(), strict=True))


def test_the_event_is_the_noise_over_the_sensitivity():
    assert mechanism(1.25).event == Gaussian(1.25)
    one = NoisyCounts.for_epsilon(2.0, 1e-5, population=100, vocab_size=SIZE, bos=BOS)
    epsilon = accountant_named("pld").epsilon(Composition.of([one.event]), 1e-5)
    assert 1.99 < epsilon <= 2.0


def test_other_parameters_have_another_hash():
    hashes = {mechanism(1.0).hash(), mechanism(2.0).hash(), mechanism(1.0, population=9).hash()}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mechanism(0.0), "noise_multiplier"),
        (lambda: mechanism(size=70_000), "vocab_size must be at most 65,536"),
        (lambda: NoisyCounts(1.0, 10, 5, 5), "bos must be a token below 5"),
        (lambda: mechanism(population=1).total([np.array([0, 1])] * 2), "more users than the 1"),
        (lambda: mechanism().contribution(np.array([0, SIZE])), "tokens must be below 7"),
        (lambda: mechanism().contribution(np.array([0, -1])), "tokens must be below 7"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
