"""What a model says of utterances: in their order, as it would say of each alone."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Labels, encode
from tacit.tasks.nlu.metrics import NLUMetrics, Prediction, compare
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.predictions import evaluate, predict, score
from tests.tasks.nlu.small_models import small_data, small_parts, trained


def is_known(labels, utterance):
    return utterance.intent in labels.intents and set(utterance.tags) <= set(labels.tags)


def spoken(utterances):
    return [utterance.tokens for utterance in utterances]


@pytest.fixture(scope="module")
def parts():
    """Model, encoder, labels and utterances; the model has learnt a little."""
    data = small_data(400)
    model, encoder, labels = small_parts(seed=1, data=data)
    return trained(model, encoder, labels, data, steps=25), encoder, labels, data


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_predictions_are_those_of_each_utterance_alone_in_the_given_order(parts, batch_size):
    model, encoder, labels, data = parts
    utterances = data.test[:30]
    found = predict(NluModel(model, encoder, labels), spoken(utterances), batch_size)
    model.eval()
    for utterance, prediction in zip(utterances, found, strict=True):
        inputs, mask = encoder.prepare([utterance.tokens]).batch(np.arange(1))
        intent, [tags] = model.decode(inputs, mask)
        assert prediction.intent == labels.intents[int(intent)]
        assert list(prediction.tags) == [labels.tags[tag] for tag in tags]


def test_evaluation_is_the_comparison_of_the_predictions(parts):
    model, encoder, labels, data = parts
    found = evaluate(NluModel(model, encoder, labels), data.test)
    answers = predict(NluModel(model, encoder, labels), spoken(data.test), batch_size=5)
    assert found == sum(map(compare, data.test, answers), NLUMetrics())
    assert found.utterances == len(data.test)
    untrained, *_ = small_parts(seed=1, data=data)
    before = evaluate(NluModel(untrained, encoder, labels), data.test)
    assert found.semantic_error_rate < before.semantic_error_rate  # it is this model's


def test_intents_that_the_model_does_not_know_count_as_errors(parts):
    model, encoder, labels, data = parts
    strange = [Utterance(each.tokens, each.tags, "unheard of") for each in data.test[:5]]
    assert evaluate(NluModel(model, encoder, labels), strange).intent_errors == 5


def test_scores_are_the_definitions_one_utterance_at_a_time(parts):
    model, encoder, labels, data = parts
    utterances = [each for each in data.test if is_known(labels, each)][:12]
    found = score(NluModel(model, encoder, labels), utterances, batch_size=5)
    losses = encode(encoder, labels, utterances)
    model.eval()
    with torch.no_grad():
        for place, utterance in enumerate(utterances):
            one = losses.batch([place])
            assert found.log_likelihood[place] == pytest.approx(-model(one).item(), abs=1e-4)
            scores = model.scores(one.inputs, one.mask)
            torch.testing.assert_close(
                torch.from_numpy(found.intents[place]),
                scores.intents[0].double().softmax(0),
                atol=1e-5,
                rtol=1e-4,
            )
            largest = model.crf.marginals(scores.emissions, one.mask)[0].amax(1)
            assert len(found.tokens[place]) == len(utterance.tokens)
            np.testing.assert_allclose(found.tokens[place], largest.numpy(), atol=1e-4)


def test_likelihoods_of_all_labels_of_a_word_add_up_to_1(parts):
    model, encoder, labels, _ = parts
    every = [  # no `Utterance` begins with an I- tag, and a model may well say so
        SimpleNamespace(tokens=("jazz",), tags=(tag,), intent=intent)
        for intent in labels.intents
        for tag in labels.tags
    ]
    found = np.exp(score(NluModel(model, encoder, labels), every, 512).log_likelihood)
    assert found.sum() == pytest.approx(1, abs=1e-4)


def test_an_unknown_label_has_no_likelihood_and_all_else(parts):
    model, encoder, labels, data = parts
    known = next(each for each in data.test if is_known(labels, each))
    intent = Utterance(known.tokens, known.tags, "unheard of")
    tag = Utterance(known.tokens, ("B-unheard_of",) * len(known.tokens), known.intent)
    found = score(NluModel(model, encoder, labels), [intent, known, tag])
    assert found.known.tolist() == [False, True, False]
    assert math.isnan(found.log_likelihood[0])
    np.testing.assert_allclose(found.intents[0], found.intents[1], atol=1e-6)
    np.testing.assert_allclose(found.tokens[2], found.tokens[1], atol=1e-5)


def test_the_model_is_left_as_it_was_and_dropout_is_off(parts):
    model, encoder, labels, data = parts
    model.train()
    first = score(NluModel(model, encoder, labels), data.test[:9])
    assert model.training
    assert not any(values.grad_fn for values in model.parameters())
    model.eval()
    second = score(NluModel(model, encoder, labels), data.test[:9])
    assert not model.training
    assert np.array_equal(first.log_likelihood, second.log_likelihood)


def test_progress_ends_with_all_utterances(parts):
    model, encoder, labels, data = parts
    seen = []
    predict(
        NluModel(model, encoder, labels), spoken(data.test[:10]), 4, lambda *done: seen.append(done)
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_tokens_alone_are_enough_to_predict(parts):
    model, encoder, labels, _ = parts
    [answer] = predict(NluModel(model, encoder, labels), [("play", "some", "jazz")])
    assert isinstance(answer, Prediction)
    assert len(answer.tags) == 3


def test_nothing_is_said_of_no_utterances(parts):
    model, encoder, labels, _ = parts
    assert predict(NluModel(model, encoder, labels), []) == []
    assert len(score(NluModel(model, encoder, labels), [])) == 0


def test_labels_of_another_model_and_empty_batches_are_refused(parts):
    model, encoder, labels, data = parts
    with pytest.raises(ValueError, match=r"the model has .* tags, and 2 are listed"):
        predict(
            NluModel(model, encoder, Labels(labels.intents, labels.tags[:2])), spoken(data.test[:2])
        )
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        predict(NluModel(model, encoder, labels), spoken(data.test[:2]), batch_size=0)
