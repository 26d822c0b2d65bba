"""Random Sampling equals the scoring of every suffix by itself."""

import math
import sys

import numpy as np
import pytest
import torch

from tacit.audit.random_sampling import SuffixTree, count_likelier, memorized_by_sampling
from tacit.audit.suffixes import Split
from tacit.models.registry import build
from tests.audit.extraction_oracle import (
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    VOCABULARY,
    brute_force_rank,
    log_perplexities,
    model_of,
    one_log_perplexity,
    scorer_of,
)

SAMPLES = 3_000


def sampled(model, canaries, prefix_words=2):
    scorer = scorer_of(model)
    splits = [scorer.split(canary, prefix_words) for canary in canaries]
    rng = np.random.default_rng(0)
    return memorized_by_sampling(
        scorer, splits, samples=SAMPLES, rng=rng, progress=lambda done: None
    )


def random_tree(length, samples=SAMPLES, candidates=CANDIDATES, seed=0):
    return SuffixTree.random(samples, length, candidates, np.random.default_rng(seed))


def rank(scorer, tree, split):
    """One more than the suffixes of the tree that are at least as likely."""
    return 1 + count_likelier(scorer, tree, split, enough=sys.maxsize)


def the_samples(length):
    """The suffixes that `sampled` draws, repeated ones as often as they came."""
    tree = random_tree(length)
    return np.repeat(tree.suffixes, tree.times, axis=0)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_oracle_in_batches_is_the_oracle_one_at_a_time(kind, is_peaked):
    model, suffixes = model_of(kind, is_peaked), the_samples(3)[:100]
    one_by_one = [one_log_perplexity(model, (4, 7), tuple(row)) for row in suffixes]
    np.testing.assert_allclose(log_perplexities(model, (4, 7), suffixes), one_by_one, atol=1e-10)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize("prefix_words", [0, 2, 3, 4])
def test_verdicts_and_ranks_equal_brute_force(kind, is_peaked, prefix_words):
    model = model_of(kind, is_peaked)
    scorer, tree = scorer_of(model), random_tree(5 - prefix_words)
    suffixes = the_samples(5 - prefix_words)
    verdicts = sampled(model, CANARIES, prefix_words)
    for canary, memorized in zip(CANARIES, verdicts, strict=True):
        split = scorer.split(canary, prefix_words)
        expected = brute_force_rank(model, *split, suffixes)
        assert rank(scorer, tree, split) == expected
        assert memorized == (expected == 1)
        own = one_log_perplexity(model, *split)
        assert scorer.log_perplexity(split) == pytest.approx(own, abs=1e-9)
    if prefix_words == 2:
        assert verdicts[0] == is_peaked  # so both verdicts occur


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize("index", [0, 1, 2, 5, 300])
def test_verdict_and_rank_of_suffixes_from_the_first_to_the_middle(kind, is_peaked, index):
    """Of the suffixes themselves, the one of each rank; those near the first are the hard ones."""
    model, prefix = model_of(kind, is_peaked), (11, 30)
    tree = random_tree(3, seed=5)
    order = np.argsort(log_perplexities(model, prefix, tree.suffixes))
    split = Split(prefix, tuple(tree.suffixes[order[index]].tolist()))
    scorer = scorer_of(model)
    assert (count_likelier(scorer, tree, split) == 0) == (index == 0)
    assert rank(scorer, tree, split) == 1 + tree.times[order[:index]].sum()


def test_pruned_search_of_a_large_vocabulary_equals_brute_force_in_float32():
    """Large enough that the bound over the likeliest 512 words leaves out others."""
    words = 3_000
    model = build("lstm", words, seed=3, embedding_size=8, cells=12, output_bias=True)
    with torch.no_grad():
        model.embedding.weight.mul_(6)
        model.embedding.output_bias.copy_(-2 * torch.log(torch.arange(1, words + 1)))
    tree = random_tree(3, 4_000, np.arange(3, words))
    costs = log_perplexities(model, (9, 400), tree.suffixes)
    scorer = scorer_of(model, np.arange(3, words))
    order = np.argsort(costs)
    for index in (0, 3, 40, 400, 2000):
        split = Split((9, 400), tuple(tree.suffixes[order[index]].tolist()))
        gaps = np.abs(costs - costs[order[index]])
        assert (gaps < 1e-4).sum() == 1, "not a tie up to rounding, or this test would mean nothing"
        assert rank(scorer, tree, split) == index + 1
        assert (count_likelier(scorer, tree, split) == 0) == (index == 0)


def test_same_canary_among_others_has_the_same_result():
    model = model_of("lstm", True)
    assert sampled(model, CANARIES[:1]) == sampled(model, CANARIES)[:1]


def test_own_suffix_is_no_competitor_but_a_tie_is():
    own = Split((3, 4), (9, 14, 20))
    only_itself = SuffixTree.of(np.array([own.suffix] * 3, np.int32))
    scorer = scorer_of(model_of("lstm", False))
    assert count_likelier(scorer, only_itself, own) == 0
    assert rank(scorer, only_itself, own) == 1
    indifferent = build("lstm", VOCABULARY)
    for values in indifferent.parameters():
        torch.nn.init.zeros_(values)
    scorer = scorer_of(indifferent)
    split = scorer.split(PEAKED_ON, 2)
    others = int((the_samples(3) != PEAKED_ON[2:]).any(1).sum())
    assert rank(scorer, random_tree(3), split) == 1 + others
    assert scorer.log_perplexity(split) == pytest.approx(3 * math.log(VOCABULARY), abs=1e-5)
    assert sampled(indifferent, [PEAKED_ON]) == [False]


def test_samples_are_uniform_over_the_candidates_and_counted_with_replacement():
    tree = random_tree(2, 50_000, np.array([4, 9, 10]), seed=1)
    assert tree.times.sum() == 50_000
    assert tree.suffixes.tolist() == [[a, b] for a in (4, 9, 10) for b in (4, 9, 10)]
    deviations = (tree.times - 50_000 / 9) / math.sqrt(50_000 / 9 * 8 / 9)
    assert 1e-3 < (deviations**2).sum() < 26  # chi-squared, 8 degrees of freedom: 99.9%


def test_tree_gives_back_its_suffixes():
    suffixes = np.random.default_rng(2).integers(0, 5, (200, 4), dtype=np.int32)
    tree = SuffixTree.of(suffixes)
    again = np.repeat(tree.suffixes, tree.times, axis=0)
    assert sorted(map(tuple, suffixes.tolist())) == list(map(tuple, again.tolist()))
    nodes, words = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    for depth in range(4):
        nodes, rows = tree.children(depth, nodes)
        words = np.column_stack([words[rows], tree.words(depth + 1, nodes)])
    assert words.tolist() == tree.suffixes.tolist()
    assert [tree.leaf(tuple(row)) for row in words.tolist()] == list(range(len(words)))
    assert tree.leaf((0, 0, 0, 7)) == -1
