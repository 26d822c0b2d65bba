"""The divergence of word counts: by hand, its limits, and a literal twin."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from tacit_papers.bagdasaryan2022.fit import TOP_WORDS, kl_divergence

counts = st.dictionaries(
    st.text(min_size=1, max_size=3), st.integers(1, 10**6), min_size=1, max_size=30
)


def test_by_hand():
    # p = (4/6, 2/6), q = (1/4, 3/4): one word of the other text is none of the reference's.
    found = kl_divergence({"a": 3, "b": 1}, {"b": 2, "zebra": 100})
    assert found == pytest.approx(4 / 6 * math.log(16 / 6) + 2 / 6 * math.log(4 / 9), rel=1e-14)


def test_only_the_top_words_of_the_reference_count_and_ties_go_by_code_point():
    reference = {"z": 2, "b": 5, "y": 2, "a": 1}
    # b and y: p = (6/9, 3/9), q = (8/9, 1/9).
    expected = 6 / 9 * math.log(6 / 8) + 3 / 9 * math.log(3)
    assert kl_divergence(reference, {"b": 7, "z": 50}, top=2) == pytest.approx(expected, rel=1e-14)


def test_the_papers_ten_thousand_words_are_the_default():
    reference = {f"{n:06}": 20_000 - n for n in range(TOP_WORDS)}
    rare = reference | {"one more": 1}
    other = {word: 1.0 for word in rare}
    assert TOP_WORDS == 10_000
    assert kl_divergence(rare, other) == kl_divergence(reference, other)
    assert kl_divergence(rare, other, top=10_001) != kl_divergence(reference, other)


def test_words_that_do_not_occur_are_no_words():
    other = {"a": 1, "b": 4}
    assert kl_divergence({"a": 2, "b": 3, "c": 0}, other) == kl_divergence({"a": 2, "b": 3}, other)


@given(counts)
def test_counts_are_at_zero_from_themselves(own):
    assert kl_divergence(own, dict(reversed(own.items()))) == 0.0


@given(counts, counts, st.integers(1, 40))
def test_it_is_what_scipy_gives_for_the_smoothed_counts(reference, other, top):
    words = sorted(reference, key=lambda word: (-reference[word], word))[:top]
    p = np.array([reference[word] + 1 for word in words])
    q = np.array([other.get(word, 0) + 1 for word in words])
    expected = float(entropy(p, q))  # normalises both
    found = kl_divergence(reference, other, top)
    assert found >= 0
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_larger_sample_of_the_same_words_is_nearer_and_another_source_is_not():
    draw = np.random.default_rng(0)
    words = [f"w{n}" for n in range(200)]
    zipf = 1 / np.arange(1, 201)
    zipf /= zipf.sum()

    def sample(size, shares):
        return Counter(draw.choice(words, size=size, p=shares).tolist())

    reference = sample(200_000, zipf)
    small, large = sample(500, zipf), sample(50_000, zipf)
    another = sample(50_000, zipf[::-1])
    near = kl_divergence(reference, large)
    # 100,000 times the divergence is about 1.25 times a chi-squared of 199 degrees of freedom, the
    # quarter for the reference's own noise: 0.0025 on average, and 0.004 is six deviations away.
    assert 0.001 < near < 0.004
    assert near < kl_divergence(reference, small) < kl_divergence(reference, another)
    assert kl_divergence(reference, another) > 1


@pytest.mark.parametrize(
    ("reference", "other", "top", "message"),
    [
        ({}, {"a": 1}, 5, "reference has no words"),
        ({"a": 0}, {"a": 1}, 5, "reference has no words"),
        ({"a": 1}, {}, 5, "other has no words"),
        ({"a": 1}, {"a": -0.5}, 5, "the counts of other must be finite and at least 0, got -0.5"),
        ({"a": math.nan}, {"a": 1}, 5, "the counts of reference must be finite"),
        ({"a": 1}, {"a": math.inf}, 5, "the counts of other must be finite"),
        ({"a": 1}, {"a": 1}, 0, "top must be at least 1, got 0"),
        ({"a": 1}, {"a": 1}, 2.5, "top must be a whole number"),
    ],
    ids=["empty", "zeros", "empty other", "negative", "nan", "infinite", "top 0", "top 2.5"],
)
def test_mistakes_are_named(reference, other, top, message):
    with pytest.raises(ValueError, match=message):
        kl_divergence(reference, other, top)


def test_no_message_quotes_what_may_be_a_users_word():
    with pytest.raises(ValueError, match="counts") as caught:
        kl_divergence({"secret": -1}, {"secret": 1})
    assert "secret" not in str(caught.value)
