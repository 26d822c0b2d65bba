"""Scores are checked when they are made, so that no attack meets numbers that mean nothing."""

import numpy as np
import pytest

from tacit.tasks.nlu.predictions import Scored

GOOD = {
    "intents": np.array([[0.7, 0.3], [0.2, 0.8]]),
    "tokens": (np.array([0.9]), np.array([0.8, 1.0])),
    "log_likelihood": np.array([-0.5, np.nan]),
}


def test_some_of_the_utterances_in_the_order_asked_for():
    scored = Scored(**GOOD)
    assert len(scored) == 2
    assert scored.known.tolist() == [True, False]
    turned = scored.only([1, 0])
    assert turned.intents.tolist() == [[0.2, 0.8], [0.7, 0.3]]
    assert [each.tolist() for each in turned.tokens] == [[0.8, 1.0], [0.9]]
    assert turned.known.tolist() == [False, True]
    for none in ([], np.array([], dtype=np.int64), np.array([False, False])):
        assert len(scored.only(none)) == 0
    assert len(scored.only(scored.known)) == 1


def test_what_was_checked_does_not_change_afterwards():
    given = GOOD["intents"].copy()
    scored = Scored(given, GOOD["tokens"], GOOD["log_likelihood"])
    given[:] = np.nan
    assert scored.intents.tolist() == GOOD["intents"].tolist()


def test_single_precision_probabilities_pass():
    logits = np.random.default_rng(0).normal(0, 8, size=(200, 150)).astype(np.float32)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    tokens = (np.array([1.0000001], dtype=np.float32),) * 200
    assert len(Scored(probabilities, tokens, np.full(200, 1e-7))) == 200


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"intents": np.ones((1, 1))}, r"each of the 2 utterances, .* \(1, 1\)"),
        ({"intents": np.ones((2, 0))}, "utterance 0 must be prob"),
        ({"intents": np.array([0.5, 0.5])}, r"got the shapes \(2,\)"),
        ({"intents": np.full((2, 2), 0.6)}, "utterance 0 must be prob"),
        ({"intents": np.array([[1, 0], [np.nan, 1]])}, "utterance 1 must be prob"),
        ({"intents": np.array([[1.5, -0.5], [1, 0]])}, "utterance 0 must be prob"),
        ({"tokens": (np.array([]), np.array([1.0]))}, "utterance 0 must be prob"),
        (
            {"tokens": (np.array([0.5]), np.array([0.5, np.nan]))},
            "utterance 1 must be prob",
        ),
        ({"tokens": (np.array([-3.0]), np.array([0.5]))}, "utterance 0 must be prob"),
        ({"log_likelihood": np.array([-1.0])}, r"each of the 2 utterances, .* and \(1,\)"),
        ({"log_likelihood": np.array([-1.0, -np.inf])}, "utterance 1 must be prob"),
        ({"log_likelihood": np.array([0.5, -1.0])}, "utterance 0 must be prob"),
    ],
)
def test_scores_that_mean_nothing_are_refused_in_one_sentence(changed, message):
    with pytest.raises(ValueError, match=message) as refused:
        Scored(**{**GOOD, **changed})
    assert "\n" not in str(refused.value)
