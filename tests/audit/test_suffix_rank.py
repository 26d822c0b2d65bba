"""The rank among all suffixes: exact, and by a sample that knows its error."""

import numpy as np
import pytest

from tacit.audit.suffix_rank import _Rank, rank_among_all
from tests.audit.extraction_oracle import (
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    all_suffixes,
    brute_force_rank,
    model_of,
    scorer_of,
)

ALL = {length: all_suffixes(length) for length in (1, 2, 3)}


def ranked(model, prefix, suffix, seed=0, candidates=CANDIDATES, **options):
    scorer, rng = scorer_of(model, candidates), np.random.default_rng(seed)
    split = scorer.split([*prefix, *suffix], len(prefix))
    return rank_among_all(scorer, split, rng=rng, **options)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize("canary", CANARIES[:2], ids=range(2))
def test_exact_ranks_equal_brute_force(kind, is_peaked, canary):
    model = model_of(kind, is_peaked)
    for words in (1, 2, 3):
        prefix, suffix = canary[:-words], canary[-words:]
        found = ranked(model, prefix, suffix)
        assert found.rank == brute_force_rank(model, prefix, suffix, ALL[words])
        assert (found.method, found.standard_error) == ("exact", 0)
        assert found.possible == len(CANDIDATES) ** words
        assert found.exposure == pytest.approx(np.log2(found.possible / found.rank))


def test_canary_that_was_trained_on_is_first_of_all_after_few_expansions():
    found = ranked(model_of("lstm", True), PEAKED_ON[:2], PEAKED_ON[2:])
    assert found.rank == 1
    assert found.expanded < 1 + len(CANDIDATES) + len(CANDIDATES) ** 2


@pytest.mark.parametrize("budget", [60, 200])
def test_sampled_rank_is_unbiased_and_its_standard_error_is_true(budget):
    """Of 60 runs: the mean within 4 of its errors, and the errors as large as they claim to be."""
    model, prefix, suffix = model_of("lstm", False), (39, 3), (18, 27, 8)
    exact = brute_force_rank(model, prefix, suffix, ALL[3])
    found = [ranked(model, prefix, suffix, seed, budget=budget) for seed in range(60)]
    assert {one.method for one in found} == {"importance sampling"}
    values = np.array([one.rank for one in found])
    errors = np.array([one.standard_error for one in found])
    assert abs(values.mean() - exact) < 4 * values.std() / np.sqrt(60)
    assert 0.65 < np.sqrt((errors**2).mean()) / values.std() < 1.6
    assert errors.mean() < 0.25 * exact


@pytest.mark.parametrize("budget", [30, 300])
def test_sampled_rank_of_longer_suffixes_is_as_true(budget):
    model, candidates = model_of("gru", False), np.arange(3, 15)
    prefix, suffix = (5,), (9, 14, 4, 11)
    exact = ranked(model, prefix, suffix, candidates=candidates, budget=100_000)
    assert exact.method == "exact"
    found = [
        ranked(model, prefix, suffix, seed, candidates=candidates, budget=budget)
        for seed in range(60)
    ]
    values = np.array([one.rank for one in found])
    errors = np.array([one.standard_error for one in found])
    assert abs(values.mean() - exact.rank) < 4 * values.std() / np.sqrt(60)
    assert 0.65 < np.sqrt((errors**2).mean()) / values.std() < 1.6


def test_rank_of_a_longer_suffix_is_exact_within_the_budget():
    model, candidates = model_of("transformer-14m", False), np.arange(3, 13)
    suffix = (9, 12, 4, 11)
    suffixes = np.stack(np.meshgrid(*[candidates] * 4, indexing="ij"), -1).reshape(-1, 4)
    found = ranked(model, (5,), suffix, candidates=candidates)
    assert found.rank == brute_force_rank(model, (5,), suffix, suffixes)


def test_budget_bounds_the_work_once_for_the_search_and_once_for_the_sample():
    model = model_of("lstm", False)
    for budget in (1, 50, 500):
        found = ranked(model, (39, 3), (18, 27, 8), budget=budget)
        assert found.expanded <= 2 + budget + max(budget, 2 * 8)


def test_sample_that_dies_out_leaves_the_canary_alone():
    """Nearly all suffixes are worse: from so few drawn, none may have a good continuation."""
    model = model_of("gru", True)
    found = [ranked(model, (), PEAKED_ON, seed, budget=1) for seed in range(5)]
    assert all(one.rank >= 1 for one in found)


def test_suffix_too_long_to_count_its_alternatives_is_refused():
    with pytest.raises(ValueError, match="at most 32 words can be ranked"):
        ranked(model_of("lstm", False), (3,), (4,) * 40)


def test_empty_suffix_is_refused():
    with pytest.raises(ValueError, match="a prefix of 2 words for a canary of 2"):
        ranked(model_of("lstm", False), (3, 4), ())


@pytest.mark.parametrize(
    ("rank", "possible", "bits"),
    [(1, 1e12, 39.863137), (1e12, 1e12, 0), (4, 16, 2), (17, 16, 0)],
)
def test_exposure_is_the_logarithm_of_the_share_that_is_as_likely(rank, possible, bits):
    assert _Rank(rank, 0.0, "exact", possible, 0).exposure == pytest.approx(bits, abs=1e-6)
