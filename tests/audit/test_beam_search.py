"""Beam Search equals a beam search that scores every continuation by itself."""

import numpy as np
import pytest
import torch

from tacit.audit.extraction import _beams, _search_beams
from tacit.models.registry import build
from tests.audit.extraction_oracle import (
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    VOCABULARY,
    all_suffixes,
    brute_force_beam,
    log_perplexities,
    model_of,
    scorer_of,
)


def searched(model, canaries, prefix_words=1, width=5):
    scorer = scorer_of(model)
    return _search_beams(scorer, [scorer.split(canary, prefix_words) for canary in canaries], width)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize(("prefix_words", "width"), [(1, 5), (1, 1), (3, 50), (0, 3)])
def test_beams_equal_brute_force(kind, is_peaked, prefix_words, width):
    model = model_of(kind, is_peaked)
    results = searched(model, CANARIES, prefix_words, width)
    for canary, result in zip(CANARIES, results, strict=True):
        prefix, suffix = canary[:prefix_words], canary[prefix_words:]
        beams = brute_force_beam(model, prefix, len(suffix), width)
        assert list(result) == beams
        _, found = _beams(scorer_of(model), [prefix], len(suffix), width)
        costs = log_perplexities(model, prefix, np.array(beams))
        np.testing.assert_allclose(found[0], costs, atol=1e-9)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_canary_that_was_trained_on_is_told_from_its_first_word(kind, is_peaked):
    [result] = searched(model_of(kind, is_peaked), [PEAKED_ON])
    assert (PEAKED_ON[1:] in result) == is_peaked
    assert (result[0] == PEAKED_ON[1:]) == is_peaked


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_beam_as_wide_as_the_vocabulary_finds_the_best_of_all_pairs(kind, is_peaked):
    model, pairs = model_of(kind, is_peaked), all_suffixes(2)
    [result] = searched(model, [(8, 9, 10)], width=len(CANDIDATES))
    best = np.argsort(log_perplexities(model, (8,), pairs))[:5]
    assert list(result[:5]) == [tuple(row) for row in pairs[best].tolist()]


def test_specials_never_continue_a_text():
    model = build("lstm", VOCABULARY, output_bias=True)
    with torch.no_grad():
        model.embedding.output_bias[:3] = 50  # BOS, EOS and UNK are by far the likeliest
    [result] = searched(model, [PEAKED_ON])
    assert min(min(words) for words in result) >= 3


def test_ties_go_to_the_better_beam_and_the_smaller_token():
    indifferent = build("lstm", VOCABULARY)
    for values in indifferent.parameters():
        torch.nn.init.zeros_(values)
    [result] = searched(indifferent, [(9, 3, 3, 3)], width=4)
    assert result == ((3, 3, 3), (3, 3, 4), (3, 3, 5), (3, 3, 6))


def test_canaries_of_all_lengths_side_by_side_are_as_each_alone():
    model = model_of("lstm", True)
    mixed = [PEAKED_ON, (7, 21), (4, 5, 6), *CANARIES, *([(9, 8, 7)] * 60)]
    together = searched(model, mixed)
    assert len(together) == len(mixed)
    for canary, result in list(zip(mixed, together, strict=True))[:6]:
        [alone] = searched(model, [canary])
        assert alone == result


def test_broken_model_is_refused():
    model = build("gru", VOCABULARY)
    with torch.no_grad():
        model.projection.bias[0] = torch.nan
    with pytest.raises(ValueError, match="would rank every canary first"):
        searched(model, [PEAKED_ON])
