"""The baselines follow their formulas and are scored like models."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.baselines import Bigram, Unigram, _discount
from tests.oracles import scoring

BOS, EOS, UNK, SIZE = 0, 1, 2, 6
SEQUENCES = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=8), max_size=6)


def test_unigram_counted_by_hand():
    unigram = Unigram.fit([[BOS, 3, 3, 4, EOS], [BOS, 3, EOS]], 5, bos=BOS, add=0.5)
    # Targets: 3 three times, EOS twice, 4 once; and a half for each of 1, 2, 3, 4.
    expected = [0, 2.5 / 8, 0.5 / 8, 3.5 / 8, 1.5 / 8]
    assert np.allclose(unigram.log_probs.exp(), expected, rtol=1e-12)


def test_bigram_counted_by_hand():
    bigram = Bigram.fit([[BOS, 3, 3, 4, EOS], [BOS, 3, EOS]], 5, bos=BOS, add=0.5)
    # Pairs: 0-3 twice; 3-3, 3-4, 4-1, 3-1 once: n1 = 4, n2 = 1, so D = 4 / 6.
    discount = 2 / 3
    after_3 = [discount * 3 / 3 * p for p in (0, 2.5 / 8, 0.5 / 8, 3.5 / 8, 1.5 / 8)]
    for successor in (3, 4, EOS):
        after_3[successor] += (1 - discount) / 3
    assert np.allclose(bigram.log_probs_after(3).exp(), after_3, rtol=1e-12)
    after_bos = (2 - discount) / 2 + discount / 2 * 3.5 / 8
    assert bigram.log_probs_after(BOS).exp()[3] == pytest.approx(after_bos)


@given(SEQUENCES, st.sampled_from([0.1, 1.0, 3.0]))
def test_probabilities_equal_the_formula_and_sum_to_one(training, add):
    bigram = Bigram.fit(training, SIZE, bos=BOS, add=add)
    pairs = [v * SIZE + w for text in training for v, w in itertools.pairwise(text) if w != BOS]
    discount = _discount(np.unique(pairs, return_counts=True)[1])
    expected = scoring.bigram(training, SIZE, BOS, add, discount)
    for before in range(SIZE):
        probs = bigram.log_probs_after(before).exp()
        assert probs.sum().item() == pytest.approx(1, abs=1e-12)
        assert np.allclose(probs, [expected(before, w) for w in range(SIZE)], rtol=1e-10)
    unigram = bigram.unigram.log_probs.exp()
    assert np.allclose(unigram, [expected(-1, w) for w in range(SIZE)], rtol=1e-10)


@given(SEQUENCES, SEQUENCES)
def test_baselines_are_scored_as_brute_force_scores_them(training, texts):
    bigram = Bigram.fit(training, SIZE, bos=BOS)
    oracles = (
        (bigram, lambda prefix: bigram.log_probs_after(prefix[-1]).tolist()),
        (bigram.unigram, lambda _: bigram.unigram.log_probs.tolist()),
    )
    for predictor, distribution in oracles:
        found = evaluate(predictor, texts, bos=BOS, unk=UNK)
        expected = scoring.metrics(distribution, texts, BOS, UNK)
        for name in ("targets", "unknown", "top1", "top3", "top5"):
            assert getattr(found, name) == expected[name]
        assert found.log_prob == pytest.approx(expected["log_prob"], abs=1e-9)


def test_an_unseen_context_falls_back_to_the_unigram():
    bigram = Bigram.fit([[BOS, 3, EOS]], SIZE, bos=BOS)
    assert np.allclose(bigram.log_probs_after(5).exp(), bigram.unigram.log_probs.exp())


def test_on_a_text_with_order_the_bigram_beats_the_unigram():
    texts = [[BOS, *([3, 4, 5] * 10), EOS]] * 5
    bigram = Bigram.fit(texts, SIZE, bos=BOS)
    held_out = [[BOS, 3, 4, 5, 3, 4, 5, EOS]]
    by_bigram = evaluate(bigram, held_out, bos=BOS, unk=UNK)
    by_unigram = evaluate(bigram.unigram, held_out, bos=BOS, unk=UNK)
    assert by_bigram.perplexity < by_unigram.perplexity / 2
    assert by_bigram.accuracy_top1 > by_unigram.accuracy_top1


def test_the_discount_stays_usable_where_the_text_is_too_small_to_tell():
    assert _discount(np.array([], dtype=np.int64)) == 0.5
    assert _discount(np.array([1, 1, 1])) == 0.9  # else nothing would be left of what was seen
    assert _discount(np.array([2, 2, 7])) == 0.1  # else the unseen would be impossible
    assert _discount(np.array([1, 1, 2])) == 0.5


@pytest.mark.parametrize("add", [0.0, -1.0, math.nan, math.inf])
def test_smoothing_that_is_no_smoothing_is_refused(add):
    with pytest.raises(ValueError, match="add must be a finite number above 0"):
        Unigram.fit([[0, 1]], 3, bos=0, add=add)


def test_bos_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="bos must be a token below 3, got 3"):
        Unigram.fit([[0, 1]], 3, bos=3)
    with pytest.raises(ValueError, match="vocab_size must be at least 2"):
        Unigram.fit([[0]], 1, bos=0)
