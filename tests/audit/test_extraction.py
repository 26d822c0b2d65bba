"""The front door: both methods on many canaries."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.audit.extraction import CanaryResult, Extraction, _search_beams
from tacit.audit.random_sampling import memorized_by_sampling
from tacit.audit.suffix_rank import rank_among_all
from tacit.models.base import LanguageModel, ModelConfig
from tacit.models.registry import build
from tests.audit.extraction_oracle import (
    BOS,
    CANARIES,
    CANDIDATES,
    MODELS,
    PEAKED_ON,
    VOCABULARY,
    all_suffixes,
    brute_force_rank,
    model_of,
    scorer_of,
)


def extracted(model, canaries=CANARIES, seed=0, progress=None, **settings):
    return Extraction(**{"samples": 2_000} | settings).extract(
        model,
        canaries,
        bos=BOS,
        candidates=CANDIDATES,
        rng=np.random.default_rng(seed),
        progress=progress,
    )


@pytest.mark.parametrize(("kind", "is_peaked"), MODELS)
def test_everything_about_each_canary_in_one_call(kind, is_peaked):
    model = model_of(kind, is_peaked)
    results = extracted(model, ranks=True)
    assert [result.tokens for result in results] == list(CANARIES)
    assert (results[0].memorized_rs, results[0].memorized_bs) == (is_peaked, is_peaked)
    scorer, rng = scorer_of(model), np.random.default_rng(0)
    splits = [scorer.split(canary, 2) for canary in CANARIES]
    told = []
    sampled = memorized_by_sampling(
        scorer, splits, samples=2_000, rng=rng.spawn(2)[0], progress=told.append
    )
    assert told == [1, 2, 3]
    assert [result.memorized_rs for result in results] == sampled
    beams = _search_beams(scorer, [scorer.split(canary, 1) for canary in CANARIES], 5)
    for result, split, beam in zip(results, splits, beams, strict=True):
        assert result.beam == beam
        assert result.memorized_bs == (result.tokens[1:] in beam)
        assert result.log_perplexity == scorer.log_perplexity(split)
        alone = rank_among_all(scorer, split, rng=rng)
        assert (result.rank, result.exposure) == (alone.rank, alone.exposure)
        assert (result.rank_method, result.rank_standard_error) == ("exact", 0)


def test_asking_for_ranks_changes_no_verdict_and_a_seed_repeats_everything():
    model = model_of("lstm", True)
    ranked = extracted(model, ranks=True, rank_budget=50)
    assert ranked == extracted(model, ranks=True, rank_budget=50)
    plain = extracted(model)
    assert plain == [
        dataclasses.replace(
            result, rank=None, rank_standard_error=None, rank_method=None, exposure=None
        )
        for result in ranked
    ]


def test_defaults_are_those_of_the_paper():
    assert dataclasses.asdict(Extraction()) | {"rank_budget": 0} == {
        "samples": 2_000_000,
        "prefix_words": 2,
        "beam_prefix_words": 1,
        "beam_width": 5,
        "top": 5,
        "shorten_prefix": False,
        "ranks": False,
        "rank_budget": 0,
    }


def test_phrases_of_any_length_are_searched_for_behind_a_shorter_prefix():
    phrases = [PEAKED_ON[:2], PEAKED_ON[:3], PEAKED_ON, (3, 4, 5, 6, 7, 8, 9)]
    results = extracted(model_of("gru", True), phrases, shorten_prefix=True)
    assert [result.prefix_words for result in results] == [1, 2, 2, 2]
    assert [result.memorized_rs for result in results] == [True, True, True, False]
    assert [result.memorized_bs for result in results] == [True, True, True, False]


@pytest.mark.parametrize("ranks", [False, True])
def test_progress_ends_with_all_done(ranks):
    told = []
    extracted(
        model_of("lstm", False), ranks=ranks, progress=lambda done, of: told.append((done, of))
    )
    assert told == [(done, 3 + 3 * ranks) for done in range(1, 4 + 3 * ranks)]


class Own(LanguageModel):
    """A model from elsewhere, of which nothing is known but the interface."""

    def __init__(self) -> None:
        super().__init__(ModelConfig(VOCABULARY))
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(table)

    def forward(self, tokens, state=None, context=None):
        return self.table[tokens], None


def test_model_of_ones_own_is_searched_through_its_logits():
    [result] = extracted(Own(), [(3, 4, 5, 6, 7)], ranks=True)
    assert result.rank == brute_force_rank(Own(), (3, 4), (5, 6, 7), all_suffixes(3))
    assert isinstance(result, CanaryResult)


@pytest.mark.parametrize("kind", ["lstm", "transformer-14m"])
def test_training_mode_and_weights_are_left_as_they_were(kind):
    model = model_of(kind, False)
    model.train()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    extracted(model)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


def test_infinite_logits_of_a_model_of_ones_own_are_refused():
    model = Own()
    model.forward = lambda tokens, state=None, context=None: (
        torch.full((*tokens.shape, VOCABULARY), torch.inf),
        None,
    )
    with pytest.raises(ValueError, match="logits are not finite numbers, which would rank every"):
        extracted(model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"samples": 1.5}, "samples must be a whole number"),
        ({"prefix_words": -1}, "prefix_words must be at least 0, got -1"),
        ({"beam_prefix_words": -1}, "beam_prefix_words must be at least 0, got -1"),
        ({"beam_width": 0}, "beam_width must be at least 1, got 0"),
        ({"top": 6}, "top must be at most beam_width, which is 5, got 6"),
        ({"rank_budget": 0}, "rank_budget must be at least 1, got 0"),
    ],
    ids=range(7),
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Extraction(**settings)


@pytest.mark.parametrize(
    ("canaries", "message"),
    [
        ([], "canaries must not be empty"),
        ([(5, 6)], "a prefix of 2 words for a canary of 2"),
        ([(5, 6, 7), (5, 6, 99)], "token 99, which is outside the model's vocabulary of 40"),
        ([(3, 4, -1, 5, 6)], "token -1, which is outside the model's vocabulary of 40"),
        ([(5, 6, 2)], "token 2, which is no word of the vocabulary"),
    ],
    ids=range(5),
)
def test_bad_canaries_are_refused(canaries, message):
    with pytest.raises(ValueError, match=message):
        extracted(model_of("lstm", False), canaries)


@pytest.mark.parametrize("phrase", [(), (5,)])
def test_phrase_without_a_suffix_is_refused_or_has_no_prefix(phrase):
    model = model_of("lstm", False)
    if phrase:
        [result] = extracted(model, [phrase], shorten_prefix=True)
        assert result.prefix_words == 0
    else:
        with pytest.raises(ValueError, match="a prefix of 0 words for a canary of 0"):
            extracted(model, [phrase], shorten_prefix=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": []}, "candidates must name at least one"),
        ({"candidates": [3, 40]}, "candidates must be tokens of the model's 40"),
        ({"bos": 40}, "bos must be a token of the model's 40, got 40"),
    ],
    ids=range(3),
)
def test_bad_vocabularies_are_refused(options, message):
    arguments = {"bos": BOS, "candidates": CANDIDATES, "rng": np.random.default_rng(0)} | options
    with pytest.raises(ValueError, match=message):
        Extraction(samples=100).extract(model_of("lstm", False), CANARIES, **arguments)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["lstm", "transformer-14m"])
def test_model_that_is_broken_is_refused(kind, value):
    model = build(kind, VOCABULARY)
    with torch.no_grad():
        model.embedding.weight[17, 2] = value
    with pytest.raises(ValueError, match="not finite numbers, which would rank every canary first"):
        extracted(model)


def test_model_whose_logits_overflow_is_refused():
    model = build("lstm", VOCABULARY)
    with torch.no_grad():
        model.projection.bias.fill_(3e38)
        model.embedding.weight.fill_(3e38)
    with pytest.raises(ValueError, match="logits are not finite numbers, which would rank every"):
        extracted(model)
