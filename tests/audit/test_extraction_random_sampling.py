"""Random Sampling equals the scoring of every suffix by itself."""

import math

import numpy as np
import pytest
import torch

from tacit.audit.random_sampling import judge, random_sampling
from tacit.audit.suffix_scores import SuffixScorer, log_perplexity
from tacit.audit.suffix_tree import random_suffixes, tree_of
from tacit.models.registry import build
from tests.audit.extraction_oracle import (
    BOS,
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    VOCABULARY,
    brute_force_rank,
    log_perplexities,
    model_of,
    one_log_perplexity,
)

SAMPLES = 3_000


def sampled(model, canaries, seed=0, **options):
    rng = np.random.default_rng(seed)
    options = {"bos": BOS, "candidates": CANDIDATES, "samples": SAMPLES} | options
    return random_sampling(model, canaries, rng=rng, **options)


def the_samples(length, seed=0):
    """The suffixes that `sampled` draws, repeated ones as often as they came."""
    tree = random_suffixes(SAMPLES, length, CANDIDATES, np.random.default_rng(seed))
    return np.repeat(tree.suffixes, tree.times, axis=0)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_oracle_in_batches_is_the_oracle_one_at_a_time(kind, is_peaked):
    model, suffixes = model_of(kind, is_peaked), the_samples(3)[:100]
    one_by_one = [one_log_perplexity(model, (4, 7), tuple(row)) for row in suffixes]
    np.testing.assert_allclose(log_perplexities(model, (4, 7), suffixes), one_by_one, atol=1e-10)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize("prefix_words", [0, 2, 3, 4])
def test_ranks_equal_brute_force(kind, is_peaked, prefix_words):
    model = model_of(kind, is_peaked)
    suffixes = the_samples(5 - prefix_words)
    for result in sampled(model, CANARIES, ranks=True, prefix_words=prefix_words):
        prefix, suffix = result.tokens[:prefix_words], result.tokens[prefix_words:]
        assert result.rank == brute_force_rank(model, prefix, suffix, suffixes)
        assert result.memorized == (result.rank == 1)
        own = one_log_perplexity(model, prefix, suffix)
        assert result.log_perplexity == pytest.approx(own, abs=1e-9)
        assert log_perplexity(model, prefix, suffix, bos=BOS) == pytest.approx(own, abs=1e-9)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_verdict_alone_is_that_of_the_rank(kind, is_peaked):
    model = model_of(kind, is_peaked)
    ranked = sampled(model, CANARIES, ranks=True)
    assert [result.memorized for result in sampled(model, CANARIES)] == [
        result.memorized for result in ranked
    ]
    assert ranked[0].memorized == is_peaked  # so both verdicts occur


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize("place", [0, 1, 2, 5, 300])
def test_verdict_and_rank_of_every_place_from_the_first_to_the_middle(kind, is_peaked, place):
    """Of the suffixes themselves, the one at each place; those near the first are the hard ones."""
    model, prefix = model_of(kind, is_peaked), (11, 30)
    tree = random_suffixes(3_000, 3, CANDIDATES, np.random.default_rng(5))
    costs = log_perplexities(model, prefix, tree.suffixes)
    order = np.argsort(costs)
    own = tuple(tree.suffixes[order[place]].tolist())
    scorer = SuffixScorer(model, bos=BOS, candidates=CANDIDATES)
    assert judge(scorer, tree, prefix, own).memorized == (place == 0)
    ahead = 1 + tree.times[order[:place]].sum()
    assert judge(scorer, tree, prefix, own, rank=True).rank == ahead


def test_pruned_search_of_a_large_vocabulary_equals_brute_force_in_float32():
    """Large enough that the bound over the likeliest 512 words leaves out others."""
    words = 3_000
    model = build("lstm", words, seed=3, embedding_size=8, cells=12, output_bias=True)
    with torch.no_grad():
        model.embedding.weight.mul_(6)
        model.embedding.output_bias.copy_(-2 * torch.log(torch.arange(1, words + 1)))
    tree = random_suffixes(4_000, 3, np.arange(3, words), np.random.default_rng(0))
    costs = log_perplexities(model, (9, 400), tree.suffixes)
    scorer = SuffixScorer(model, bos=BOS, candidates=np.arange(3, words))
    order = np.argsort(costs)
    for place in (0, 3, 40, 400, 2000):
        own = tuple(tree.suffixes[order[place]].tolist())
        gaps = np.abs(costs - costs[order[place]])
        assert (gaps < 1e-4).sum() == 1, "not a tie up to rounding, or this test would mean nothing"
        assert judge(scorer, tree, (9, 400), own, rank=True).rank == place + 1
        assert judge(scorer, tree, (9, 400), own).memorized == (place == 0)


def test_same_canary_among_others_has_the_same_result():
    model = model_of("lstm", True)
    [alone] = sampled(model, CANARIES[:1], ranks=True)
    assert sampled(model, CANARIES, ranks=True)[0] == alone


def test_own_suffix_is_no_competitor_but_a_tie_is():
    model = model_of("lstm", False)
    scorer = SuffixScorer(model, bos=BOS, candidates=CANDIDATES)
    own = (9, 14, 20)
    only_itself = tree_of(np.array([own] * 3, np.int32))
    assert judge(scorer, only_itself, (3, 4), own).memorized
    assert judge(scorer, only_itself, (3, 4), own, rank=True).rank == 1
    indifferent = build("lstm", VOCABULARY)
    for values in indifferent.parameters():
        torch.nn.init.zeros_(values)
    [result] = sampled(indifferent, [PEAKED_ON], ranks=True)
    others = int((the_samples(3) != PEAKED_ON[2:]).any(1).sum())
    assert result.rank == 1 + others
    assert not result.memorized
    assert result.log_perplexity == pytest.approx(3 * math.log(VOCABULARY), abs=1e-5)
    assert not sampled(indifferent, [PEAKED_ON])[0].memorized


def test_exposure_of_a_memorized_canary_is_all_bits_of_the_samples():
    first, *_ = sampled(model_of("gru", True), CANARIES, ranks=True)
    assert first.exposure == math.log2(SAMPLES)
    assert sampled(model_of("gru", True), CANARIES)[0].exposure is None


def test_samples_are_uniform_over_the_candidates_and_counted_with_replacement():
    tree = random_suffixes(50_000, 2, np.array([4, 9, 10]), np.random.default_rng(1))
    assert tree.drawn == 50_000
    assert tree.suffixes.tolist() == [[a, b] for a in (4, 9, 10) for b in (4, 9, 10)]
    deviations = (tree.times - 50_000 / 9) / math.sqrt(50_000 / 9 * 8 / 9)
    assert 1e-3 < (deviations**2).sum() < 26  # chi-squared, 8 degrees of freedom: 99.9%


def test_tree_gives_back_its_suffixes():
    suffixes = np.random.default_rng(2).integers(0, 5, (200, 4), dtype=np.int32)
    tree = tree_of(suffixes)
    again = np.repeat(tree.suffixes, tree.times, axis=0)
    assert sorted(map(tuple, suffixes.tolist())) == list(map(tuple, again.tolist()))
    nodes, words = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    for depth in range(4):
        nodes, rows = tree.children(depth, nodes)
        words = np.column_stack([words[rows], tree.words(depth + 1, nodes)])
    assert words.tolist() == tree.suffixes.tolist()
    assert [tree.leaf(tuple(row)) for row in words.tolist()] == list(range(len(words)))
    assert tree.leaf((0, 0, 0, 7)) == -1


def test_training_mode_and_weights_are_left_as_they_were():
    model = model_of("transformer-14m", False)
    model.train()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    sampled(model, CANARIES)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


def test_progress_is_told_after_each_canary():
    told = []
    sampled(model_of("lstm", False), CANARIES, progress=lambda *values: told.append(values))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["lstm", "transformer-14m"])
def test_model_that_is_broken_is_refused(kind, value):
    model = build(kind, VOCABULARY)
    with torch.no_grad():
        model.embedding.weight[17, 2] = value
    with pytest.raises(ValueError, match="not finite numbers, which would rank every canary first"):
        sampled(model, CANARIES)


def test_model_whose_logits_overflow_is_refused():
    model = build("lstm", VOCABULARY)
    with torch.no_grad():
        model.projection.bias.fill_(3e38)
        model.embedding.weight.fill_(3e38)
    with pytest.raises(ValueError, match="logits are not finite numbers, which would rank every"):
        sampled(model, CANARIES)


@pytest.mark.parametrize(
    ("canaries", "options", "message"),
    [
        ([], {}, "canaries must not be empty"),
        ([(3, 4, 40, 5, 6)], {}, "token 40, which is outside the model's vocabulary of 40"),
        ([(3, 4, -1, 5, 6)], {}, "token -1, which is outside the model's vocabulary of 40"),
        ([(3, 4, 2, 5, 6)], {}, "token 2, which is no word of the vocabulary"),
        ([(3, 4)], {}, "a prefix of 2 words for a canary of 2"),
        ([PEAKED_ON], {"prefix_words": 5}, "a prefix of 5 words for a canary of 5"),
        ([PEAKED_ON], {"prefix_words": -1}, "a prefix of -1 words"),
        ([PEAKED_ON], {"samples": 0}, "samples must be at least 1, got 0"),
        ([PEAKED_ON], {"candidates": []}, "candidates must name at least one"),
        ([PEAKED_ON], {"candidates": [3, 40]}, "candidates must be tokens of the model's 40"),
        ([PEAKED_ON], {"bos": 40}, "bos must be a token of the model's 40, got 40"),
    ],
    ids=range(11),
)
def test_bad_input_is_one_clear_sentence(canaries, options, message):
    with pytest.raises(ValueError, match=message):
        sampled(model_of("lstm", False), canaries, **options)


def test_log_perplexity_of_nothing_is_refused():
    with pytest.raises(ValueError, match="suffix must have at least one token"):
        log_perplexity(model_of("lstm", False), (3,), (), bos=BOS)
