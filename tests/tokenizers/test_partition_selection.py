"""Partition selection: no word of one person alone gets out, and sums are as private as said."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.privacy.accountants import NAMES, accountant_named
from tacit.privacy.events import Composition, Gaussian, Lapse
from tacit.privacy.pld import _gaussian_delta
from tacit.tokenizers.partition_selection import PartitionSelection, _noise
from tests.tokenizers.fakes import FakeSource, Named

KEY = b"s" * 32


def people(*texts: str, times: int = 1) -> FakeSource:
    return FakeSource(tuple((text,) for text in texts) * times)


# The threshold: exact probabilities


@pytest.mark.parametrize("z", [0.5, 1.0, 2.068, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 5e-6, 0.3])
@pytest.mark.parametrize("most", [1, 3, 300])
def test_a_persons_own_words_get_out_with_the_stated_probability_at_most(z, delta, most):
    selection = PartitionSelection(z, delta, most)
    rho = selection.threshold
    words = np.arange(1, most + 1)
    one = stats.norm.sf((rho - 1 / np.sqrt(words)) / z)
    some = -np.expm1(words * np.log1p(-one))
    assert np.all(some <= delta * (1 + 1e-9))
    assert some.max() == pytest.approx(delta, rel=1e-9)  # and no higher a threshold than that


@pytest.mark.parametrize("z", [0.3, 1.0, 2.068, 100.0, 1e6])
@pytest.mark.parametrize("words", [1, 2, 300])
def test_on_the_grid_too(z, words):
    """In steps: weight + round(noise) > ceil(rho) needs noise of at least ceil(rho) - w + 1/2."""
    selection = PartitionSelection(z, 1e-5, 300)
    scale = 2**selection.grid_bits
    least = math.ceil(selection.threshold * scale) - selection.weight(words) + 0.5
    one = stats.norm.sf(least / (z * scale))
    assert -math.expm1(words * math.log1p(-one)) <= 1e-5


def test_a_singleton_survives_as_often_as_computed_and_not_more():
    """Lapses at a large delta, over 600 keys and a person with 1 and with 4 words."""
    for most, text in ((1, "a"), (4, "a b c d")):
        selection = PartitionSelection(1.0, 0.2, most)
        lapses = sum(
            bool(selection.learn(people(text), 10, i.to_bytes(32, "big")).counts)
            for i in range(600)
        )
        words = len(text.split())
        one = stats.norm.sf((selection.threshold - 1 / math.sqrt(words)) / 1.0)
        expected = 1 - (1 - one) ** words
        assert expected <= 0.2 + 1e-12
        test = stats.binomtest(lapses, 600, expected)
        assert test.pvalue > 1e-4
        assert stats.binomtest(lapses, 600, 2 * expected).pvalue < 1e-4
    # The naive threshold that forgets that a person may have several words lets more out.
    naive = PartitionSelection(1.0, 0.2, 1).threshold
    one = stats.norm.sf(naive - 0.5)
    assert 1 - (1 - one) ** 4 > 0.05


# Sensitivity: exact, in integers


@given(words=st.integers(1, 100_000), z=st.floats(1e-3, 2.0**20))
def test_a_users_weights_have_a_norm_of_one_at_most_exactly(words, z):
    selection = PartitionSelection(z, 1e-6)
    weight, one = selection.weight(words), 2**selection.grid_bits
    assert words * weight**2 <= one**2
    assert words * (weight + 1) ** 2 > one**2  # and could not be larger
    assert z * one <= 2**28
    assert 8 <= selection.grid_bits <= 24


def test_one_user_moves_the_sums_by_norm_one_and_not_less_than_nearly():
    selection = PartitionSelection(1.0, 1e-6, words_per_user=3)
    others = Named((("a b",), ("b c d e",)), names=("x", "y"))
    one = Fraction(2**selection.grid_bits)
    for text, words in (("a", 1), ("a b", 2), ("a b c d e f g", 3), ("a a a a", 1)):
        more = Named((*others.users, (text,)), names=("x", "y", "new"))
        before, after = selection._totals(others, KEY), selection._totals(more, KEY)
        moved = {w: after[w] - before[w] for w in after if after[w] != before[w]}
        assert len(moved) == words
        square = sum(Fraction(m) ** 2 for m in moved.values()) / one**2
        assert Fraction(999_999, 1_000_000) < square <= 1


def test_users_without_words_add_nothing():
    selection = PartitionSelection(1.0, 1e-6)
    assert selection._totals(FakeSource(((), ("",), ("  ",))), KEY) == Counter()
    assert selection.learn(FakeSource(()), 5, KEY).counts == {}


# The cost


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-5), (8.0, 1e-6), (0.5, 1e-9)])
def test_a_budget_is_kept_and_used(epsilon, delta):
    selection = PartitionSelection.for_budget(epsilon, delta, 50)
    assert selection.events == (Gaussian(selection.noise_multiplier), Lapse(delta / 2))
    assert selection.words_per_user == 50
    pld = accountant_named("pld")
    composition = Composition.of(selection.events)
    assert epsilon * 0.998 <= pld.epsilon(composition, delta) <= epsilon
    by_hand = _gaussian_delta(1 / selection.noise_multiplier, epsilon) + delta / 2
    assert pld.delta(composition, epsilon) == pytest.approx(by_hand, rel=1e-12)
    assert by_hand <= delta
    for name in NAMES:
        assert accountant_named(name).epsilon(composition, delta) >= epsilon * 0.998
        assert accountant_named(name).epsilon(composition, delta / 2) == math.inf


def test_the_pair_of_events_bounds_the_exact_profile_of_a_small_release():
    """One user with one word of weight 1 that others have, and one user whose word is new.

    With the word in U, the release is max(noise + sum, rho): never above the Gaussian's delta.
    With a new word the two laws are {none: 1} and {none: 1 - p, rest: p}, at every epsilon.
    """
    selection = PartitionSelection.for_budget(1.0, 1e-3, 1)
    z, rho = selection.noise_multiplier, selection.threshold
    pld = accountant_named("pld")
    composition = Composition.of(selection.events)
    p = stats.norm.sf((rho - 1) / z)
    for epsilon in (0.0, 0.5, 1.0, 3.0):
        charged = pld.delta(composition, epsilon)
        with_user = p  # all that is not "none" is impossible without the user
        without_user = max(0.0, 1 - math.exp(epsilon) * (1 - p))
        assert max(with_user, without_user) <= charged
        grid = np.linspace(rho, 60, 40_001)
        for one, other in ((9.0, 8.0), (8.0, 9.0)):
            density = stats.norm.pdf(grid, one, z) - math.exp(epsilon) * stats.norm.pdf(
                grid, other, z
            )
            kept = np.trapezoid(np.maximum(density, 0), grid)
            below = stats.norm.cdf((rho - one) / z)
            below -= math.exp(epsilon) * stats.norm.cdf((rho - other) / z)
            assert kept + max(below, 0.0) <= charged + 1e-9


# The algorithm


def literal(selection: PartitionSelection, users, key: bytes) -> dict[str, float]:
    """Steps 1 to 3 in floating point, word by word, with the same choices and noise."""
    sums: dict[str, float] = {}
    for user in range(len(users)):
        texts = " ".join(users.texts(user)).split()
        words = selection._choose(texts, users.user_id(user), key)
        for word in words:
            sums[word] = sums.get(word, 0.0) + 1 / math.sqrt(len(words))
    noisy = {
        word: total + selection.noise_multiplier * float(_noise([word], key)[0])
        for word, total in sums.items()
    }
    return {word: value for word, value in noisy.items() if value > selection.threshold}


def test_the_release_is_the_literal_algorithms():
    texts = [" ".join(f"w{j}" for j in range(i % 7 + 1)) for i in range(300)]
    selection = PartitionSelection(1.5, 1e-4, words_per_user=5)
    users = people(*texts, *(f"alone{i}" for i in range(50)))
    found = selection.learn(users, 1000, KEY)
    expected = literal(selection, users, KEY)
    assert set(found.counts) == set(expected)
    assert found.counts == pytest.approx(expected, abs=1e-3)
    assert {"w0", "w1", "w2", "w3", "w4"} <= set(found.counts)
    assert list(found.counts.values()) == sorted(found.counts.values(), reverse=True)
    assert found.events == selection.events
    assert found.how == (
        "partition selection (noise multiplier 1.5, selection delta 0.0001, 5 words per user)"
    )


def test_a_users_words_are_a_uniform_choice_by_the_users_own_stream():
    text = " ".join("abcdefgh")
    selection = PartitionSelection(1.0, 1e-4, words_per_user=2)
    pairs = Counter()
    for i in range(560):
        chosen = selection._choose(text.split(), "me", i.to_bytes(32, "big"))
        assert len(set(chosen)) == 2
        pairs[frozenset(chosen)] += 1
    assert len(pairs) == 28
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-4
    every = PartitionSelection(1.0, 1e-4, words_per_user=8)
    assert every._choose(text.split(), "me", KEY) == list("abcdefgh")


def test_what_a_user_gives_depends_on_that_user_alone():
    text = " ".join("abcdefgh")
    selection = PartitionSelection(1.0, 1e-4, words_per_user=2)
    alone = Named(((text,),), names=("me",))
    others = Named((("x y", "z"), (text,)), names=("you", "me"))
    mine = selection._totals(alone, KEY)
    assert len(mine) == 2
    assert {word: selection._totals(others, KEY)[word] for word in mine} == mine
    renamed = [selection._totals(Named(((text,),), names=(n,)), KEY) for n in "abcdefgh"]
    assert any(other != mine for other in renamed)


def test_noise_depends_on_key_and_word_alone():
    words = [f"w{i}" for i in range(50)]
    noise = _noise(words, KEY)
    assert _noise(words[::-1], KEY).tolist() == noise[::-1].tolist()
    assert _noise(words[10:11], KEY)[0] == noise[10]
    assert not np.any(_noise(words, b"t" * 32) == noise)
    assert len(set(noise.tolist())) == 50
    assert _noise([], KEY).tolist() == []


def test_noise_is_standard_normal_and_no_other_width():
    noise = _noise([f"w{i}" for i in range(20_000)], KEY)
    assert stats.kstest(noise, "norm").pvalue > 1e-4
    assert stats.kstest(noise / 1.05, "norm").pvalue < 1e-4


def test_what_leaves_is_on_the_grid_and_in_an_order_of_its_own():
    selection = PartitionSelection(0.5, 0.01, words_per_user=4)
    users = people("b a", "a b c", "d c", times=60)
    found = selection.learn(users, 200, KEY)
    turned = selection.learn(people("d c", "c b a", "b a", times=60), 200, KEY)
    assert list(turned.counts.items()) == list(found.counts.items())
    for count in found.counts.values():
        assert (count * 2**selection.grid_bits).is_integer()


# Bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0.0, 0.1), "noise_multiplier must be a finite number above 0, got 0.0"),
        ((math.nan, 0.1), "noise_multiplier must be a finite number above 0, got nan"),
        ((2e6, 0.1), "noise_multiplier must be at most 1,048,576, got 2000000.0"),
        ((1.0, 0.0), "selection_delta must be strictly between 0 and 1, got 0.0"),
        ((1.0, 1.0), "selection_delta must be strictly between 0 and 1, got 1.0"),
        ((1.0, 0.1, 0), "words_per_user must be at least 1, got 0"),
        ((1.0, 0.1, 2.0), "words_per_user must be a whole number, got 2.0"),
        ((1.0, 0.1, 10**6), "words_per_user must be at most 100,000, got 1000000"),
    ],
)
def test_bad_parameters_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PartitionSelection(*fields)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0.0, 1e-5, "target_epsilon must be a finite number above 0, got 0.0"),
        (1.0, 0.0, "delta must be strictly between 0 and 1, got 0.0"),
        (1.0, 1.0, "delta must be strictly between 0 and 1, got 1.0"),
    ],
)
def test_bad_budgets_are_refused(epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        PartitionSelection.for_budget(epsilon, delta)


@pytest.mark.parametrize(
    ("population", "key", "message"),
    [
        (2, KEY, "population must be at least the 3 users there are, got 2"),
        (2**50, KEY, "population must be smaller for sums in 64 bits"),
        (3, b"s" * 31, "key must be 32 secret bytes, got 31"),
        (3, None, "key must be 32 secret bytes, got NoneType"),
    ],
)
def test_bad_populations_and_keys_are_refused(population, key, message):
    with pytest.raises(ValueError, match=message):
        PartitionSelection(1.0, 0.1).learn(people("the", times=3), population, key)
