"""Sorted scores mean the same whatever a model's intents are called and however many there are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.audit.nlu_shadow import _sorted_scores
from tacit.tasks.nlu.predictions import Scored
from tests.tasks.nlu.attack_fakes import confident

SHAPES = st.fixed_dictionaries(
    {"intents": st.integers(1, 8), "least": st.integers(1, 14), "most": st.integers(0, 6)}
)  # with fewer and with more than there are


def log_odds(probability: float) -> float:
    inside = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(inside / (1 - inside))


def literal(shape: dict[str, int], intents: list[float], tokens: list[float]) -> list[float]:
    """The features of one utterance, written out."""
    first = sorted(intents, reverse=True) + [0.0] * shape["intents"]
    least = sorted(tokens)[: shape["least"]]
    most = sorted(tokens, reverse=True)[: shape["most"]]
    entropy = -sum(p * math.log(p) for p in intents if p > 0)
    return [
        *(log_odds(p) for p in first[: shape["intents"]]),
        entropy / math.log(len(intents)),
        *(log_odds(p) for p in least + [1.0] * (shape["least"] - len(least))),
        *(log_odds(p) for p in most + [1.0] * (shape["most"] - len(most))),
        log_odds(sum(tokens) / len(tokens)),
    ]


@given(SHAPES, st.integers(0, 999), st.integers(2, 9))
def test_they_are_those_written_out(shape, seed, intents):
    scored = confident(5, 1.0, np.random.default_rng(seed), intents)
    found = _sorted_scores(scored, **shape)
    assert found.shape == (5, sum(shape.values()) + 2)
    for row, one, tokens in zip(found, scored.intents, scored.tokens, strict=True):
        assert row == pytest.approx(literal(shape, one.tolist(), tokens.tolist()), rel=1e-9)


@given(SHAPES, st.integers(0, 999))
def test_names_and_places_of_intents_and_tokens_play_no_part(shape, seed):
    stream = np.random.default_rng(seed)
    scored = confident(4, 0.0, stream)
    mixed = Scored(
        scored.intents[:, stream.permutation(6)],
        tuple(stream.permutation(each) for each in scored.tokens),
        scored.log_likelihood,
    )
    np.testing.assert_allclose(
        _sorted_scores(mixed, **shape), _sorted_scores(scored, **shape), rtol=1e-12
    )


@given(st.integers(0, 999))
def test_intents_without_probability_and_certain_tokens_add_nothing_to_the_lists(seed):
    shape = {"intents": 8, "least": 14, "most": 0}
    scored = confident(4, 0.0, np.random.default_rng(seed))
    more = Scored(
        np.pad(scored.intents, ((0, 0), (0, 30))),
        tuple(np.append(each, 1.0) for each in scored.tokens),
        scored.log_likelihood,
    )
    lists = [*range(8), *range(9, 23)]  # not the entropy, nor the mean at the end
    assert (
        _sorted_scores(more, **shape)[:, lists] == _sorted_scores(scored, **shape)[:, lists]
    ).all()


def test_no_probability_is_too_extreme():
    scored = Scored(
        np.array([[1.0, 0.0], [0.0, 1.0]]),
        (np.array([0.0, 1.0]), np.array([1.0])),
        np.array([0.0, np.nan]),
    )
    assert np.isfinite(_sorted_scores(scored)).all()
    one_intent = Scored(np.ones((1, 1)), (np.array([0.5]),), np.array([0.0]))
    assert np.isfinite(_sorted_scores(one_intent)).all()
