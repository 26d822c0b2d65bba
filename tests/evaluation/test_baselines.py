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


def logs(probs):
    """Natural logarithms; -inf of 0."""
    return [math.log(value) if value else -math.inf for value in probs.tolist()]


def test_unigram_counted_by_hand():
    unigram = Unigram.fit([[BOS, 3, 3, 4, EOS], [BOS, 3, EOS]], 5, bos=BOS, add=0.5)
    # Targets: 3 three times, EOS twice, 4 once; and a half for each of 1, 2, 3, 4.
    expected = [0, 2.5 / 8, 0.5 / 8, 3.5 / 8, 1.5 / 8]
    assert np.allclose(unigram.probs, expected, rtol=1e-12)


def test_bigram_counted_by_hand():
    bigram = Bigram.fit([[BOS, 3, 3, 4, EOS], [BOS, 3, EOS]], 5, bos=BOS, add=0.5)
    # Pairs: 0-3 twice; 3-3, 3-4, 4-1, 3-1 once: n1 = 4, n2 = 1, so D = 4 / 6.
    discount = 2 / 3
    after_3 = [discount * 3 / 3 * p for p in (0, 2.5 / 8, 0.5 / 8, 3.5 / 8, 1.5 / 8)]
    for successor in (3, 4, EOS):
        after_3[successor] += (1 - discount) / 3
    assert np.allclose(bigram.probs_after(3), after_3, rtol=1e-12)
    after_bos = (2 - discount) / 2 + discount / 2 * 3.5 / 8
    assert bigram.probs_after(BOS)[3] == pytest.approx(after_bos)


@given(SEQUENCES, st.sampled_from([0.1, 1.0, 3.0]))
def test_probabilities_equal_the_formula_and_sum_to_one(training, add):
    bigram = Bigram.fit(training, SIZE, bos=BOS, add=add)
    pairs = [v * SIZE + w for text in training for v, w in itertools.pairwise(text) if w != BOS]
    discount = _discount(np.unique(pairs, return_counts=True)[1])
    expected = scoring.bigram(training, SIZE, BOS, add, discount)
    for before in range(SIZE):
        probs = bigram.probs_after(before)
        assert probs.sum() == pytest.approx(1, abs=1e-12)
        assert np.allclose(probs, [expected(before, w) for w in range(SIZE)], rtol=1e-10)
    unigram = bigram.unigram.probs
    assert np.allclose(unigram, [expected(-1, w) for w in range(SIZE)], rtol=1e-10)


@given(SEQUENCES, SEQUENCES)
def test_baselines_are_scored_as_brute_force_scores_them(training, texts):
    bigram = Bigram.fit(training, SIZE, bos=BOS)
    oracles = (
        (bigram, lambda prefix: logs(bigram.probs_after(prefix[-1]))),
        (bigram.unigram, lambda _: logs(bigram.unigram.probs)),
    )
    for predictor, distribution in oracles:
        found = evaluate(predictor, texts, bos=BOS, unk=UNK)
        expected = scoring.metrics(distribution, texts, BOS, UNK)
        for name in scoring.COUNTS:
            assert getattr(found, name) == expected[name], name
        assert found.log_prob == pytest.approx(expected["log_prob"], abs=1e-9)


@pytest.mark.parametrize("never", [None, UNK, 150])
@pytest.mark.parametrize("seed", [0, 1])
def test_sparse_scores_are_those_of_whole_distributions(never, seed):
    """Words that are common, rare, tied and never seen, as in a text of a large vocabulary."""
    generator = np.random.default_rng(seed)
    size = 200
    texts = [np.minimum(generator.zipf(1.3, 40), size - 1) for _ in range(60)]
    held_out = np.concatenate([*texts[:10], generator.integers(0, size, 600)])
    bigram = Bigram.fit(texts, size, bos=BOS)
    for predictor, probs_after in (
        (bigram, bigram.probs_after),
        (bigram.unigram, lambda _: bigram.unigram.probs),
    ):
        contexts, targets = held_out[:-1], held_out[1:]
        log_probs, ranks, of_all = predictor.score_targets(contexts, targets, never)
        expected = scoring.scored_by_sorting(probs_after, contexts, targets, never)
        assert np.allclose(log_probs, expected[0], rtol=1e-13)
        assert ranks.tolist() == expected[1].tolist()
        assert of_all.tolist() == expected[2].tolist()


def test_texts_are_counted_alike_in_blocks_of_any_size(monkeypatch):
    texts = [[BOS, 3, 4, 3, EOS], [BOS, 4, 4, EOS], [], [BOS, 3, 4, EOS]]
    whole = Bigram.fit(texts, SIZE, bos=BOS)
    monkeypatch.setattr("tacit.evaluation.pair_counts._TOKENS_AT_ONCE", 1)
    by_text = Bigram.fit(iter(texts), SIZE, bos=BOS)
    for name in ("successors", "discounted", "backed_off", "row_starts"):
        assert np.array_equal(getattr(whole, name), getattr(by_text, name)), name
    assert np.array_equal(whole.unigram.probs, by_text.unigram.probs)


def test_an_unseen_context_falls_back_to_the_unigram():
    bigram = Bigram.fit([[BOS, 3, EOS]], SIZE, bos=BOS)
    assert np.allclose(bigram.probs_after(5), bigram.unigram.probs)


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


def noisy(tokens, pairs, *, token_noise=1.0, pair_noise=1.0):
    """A bigram of noisy counts, the pairs given as (before, after, count)."""
    before, after, counts = (np.array(column) for column in zip(*pairs, strict=True))
    return Bigram.of_noisy_counts(
        np.array(tokens),
        before,
        after,
        counts.astype(float),
        bos=BOS,
        token_noise=token_noise,
        pair_noise=pair_noise,
    )


def test_noisy_counts_give_shares_by_hand():
    # 4 and 5 are lost in the noise: their mean is 0.5.  BOS began 10 texts.
    bigram = noisy([10.0, 20.0, 5.0, 30.0, 1.5, -0.5], [(3, 1, 11.0), (3, 0, 9.0)])
    total = 20 + 5 + 30 + 0.5 + 0.5
    assert np.allclose(bigram.unigram.probs, np.array([0, 20, 5, 30, 0.5, 0.5]) / total, atol=1e-3)
    after_3 = bigram.probs_after(3)
    assert after_3[1] == pytest.approx(10 / 30 + 20 / 30 * 20 / total, rel=1e-3)
    assert np.allclose(bigram.probs_after(2), bigram.unigram.probs)


@given(
    st.lists(st.floats(-100, 100), min_size=SIZE, max_size=SIZE),
    st.dictionaries(
        st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)),
        st.floats(4.5, 1000),
        min_size=1,
    ),
)
def test_whatever_the_noise_did_probabilities_sum_to_one_and_none_but_bos_is_zero(tokens, pairs):
    bigram = noisy(tokens, [(*pair, pairs[pair]) for pair in sorted(pairs)])
    for before in range(SIZE):
        probs = bigram.probs_after(before)
        assert probs.sum() == pytest.approx(1)
        assert probs[BOS] == 0
        assert (np.delete(probs, BOS) > 0).all()
