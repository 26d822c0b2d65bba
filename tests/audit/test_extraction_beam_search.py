"""Beam Search equals a beam search that scores every continuation by itself."""

import numpy as np
import pytest
import torch

from tacit.audit.beam_search import beam_search
from tacit.models.registry import build
from tests.audit.extraction_oracle import (
    BOS,
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    VOCABULARY,
    all_suffixes,
    brute_force_beam,
    log_perplexities,
    model_of,
)


def searched(model, canaries, **options):
    return beam_search(model, canaries, **{"bos": BOS, "candidates": CANDIDATES} | options)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
@pytest.mark.parametrize(
    ("prefix_words", "width", "top"), [(1, 5, 5), (1, 1, 1), (3, 50, 7), (0, 3, 2)]
)
def test_beams_equal_brute_force(kind, is_peaked, prefix_words, width, top):
    model = model_of(kind, is_peaked)
    results = searched(model, CANARIES, prefix_words=prefix_words, width=width, top=top)
    for canary, result in zip(CANARIES, results, strict=True):
        prefix, suffix = canary[:prefix_words], canary[prefix_words:]
        beams = brute_force_beam(model, prefix, len(suffix), width)[:top]
        assert list(result.found) == beams
        costs = log_perplexities(model, prefix, np.array(beams))
        np.testing.assert_allclose(result.log_perplexities, costs, atol=1e-9)
        assert result.memorized == (suffix in beams)
        assert (result.tokens, result.width, result.top) == (canary, width, top)


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_canary_that_was_trained_on_is_told_from_its_first_word(kind, is_peaked):
    [result] = searched(model_of(kind, is_peaked), [PEAKED_ON])
    assert result.memorized == is_peaked
    assert (result.found[0] == PEAKED_ON[1:]) == is_peaked


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_beam_as_wide_as_the_vocabulary_finds_the_best_of_all_pairs(kind, is_peaked):
    model, pairs = model_of(kind, is_peaked), all_suffixes(2)
    [result] = searched(model, [(8, 9, 10)], width=len(CANDIDATES))
    best = np.argsort(log_perplexities(model, (8,), pairs))[:5]
    assert list(result.found) == [tuple(row) for row in pairs[best].tolist()]


def test_specials_never_continue_a_text():
    model = build("lstm", VOCABULARY, output_bias=True)
    with torch.no_grad():
        model.embedding.output_bias[:3] = 50  # BOS, EOS and UNK are by far the likeliest
    [result] = searched(model, [PEAKED_ON])
    assert min(min(words) for words in result.found) >= 3


def test_ties_go_to_the_better_beam_and_the_smaller_token():
    indifferent = build("lstm", VOCABULARY)
    for values in indifferent.parameters():
        torch.nn.init.zeros_(values)
    [result] = searched(indifferent, [(9, 3, 3, 3)], width=4, top=4)
    assert result.found == ((3, 3, 3), (3, 3, 4), (3, 3, 5), (3, 3, 6))


def test_canaries_of_all_lengths_side_by_side_are_as_each_alone():
    model = model_of("lstm", True)
    mixed = [PEAKED_ON, (7, 21), (4, 5, 6), *CANARIES, *([(9, 8, 7)] * 60)]
    together = searched(model, mixed)
    assert [result.tokens for result in together] == mixed
    for result in together[:6]:
        [alone] = searched(model, [result.tokens])
        assert alone.found == result.found


@pytest.mark.parametrize(
    ("canaries", "options", "message"),
    [
        ([], {}, "canaries must not be empty"),
        ([(3,)], {}, "a prefix of 1 words for a canary of 1"),
        ([(3, 1)], {}, "token 1, which is no word"),
        ([PEAKED_ON], {"width": 0}, "beam_width must be at least 1, got 0"),
        ([PEAKED_ON], {"top": 6}, "top must be between 1 and beam_width, which is 5, got 6"),
        ([PEAKED_ON], {"top": 0}, "top must be between 1 and beam_width, which is 5, got 0"),
    ],
    ids=range(6),
)
def test_bad_input_is_one_clear_sentence(canaries, options, message):
    with pytest.raises(ValueError, match=message):
        searched(model_of("lstm", False), canaries, **options)


def test_broken_model_is_refused():
    model = build("gru", VOCABULARY)
    with torch.no_grad():
        model.projection.bias[0] = torch.nan
    with pytest.raises(ValueError, match="would rank every canary first"):
        searched(model, [PEAKED_ON])
