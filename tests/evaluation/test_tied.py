"""Models with tied word vectors are scored as any other model is."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from tacit.evaluation import scoring as subject
from tacit.evaluation.accuracy import evaluate
from tacit.kernels import scoring as kernel
from tacit.models.registry import build
from tests.evaluation.tiny import SIZES

WORDS = 1003


def texts(count=60):
    generator = np.random.default_rng(0)
    return [generator.integers(0, WORDS, generator.integers(1, 30)) for _ in range(count)]


def model_of(kind, *, scale=2.0, **options):
    """A model with opinions: the untrained one's are all alike."""
    model = build(kind, WORDS, **SIZES[kind], **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
        if model.embedding.output_bias is not None:
            model.embedding.output_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


def in_the_general_way(call):
    """The model's own logits, scored by torch."""
    with (
        mock.patch.object(subject, "_as_tied", return_value=None),
        mock.patch.object(kernel, "_in_cpp", return_value=None),
    ):
        return call()


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("never", [None, 2])
@pytest.mark.parametrize("kind", SIZES)
def test_scores_are_those_of_the_models_own_logits(kind, never, output_bias):
    model = model_of(kind, output_bias=output_bias)
    found = subject.score(model, texts(), never=never)
    expected = in_the_general_way(lambda: subject.score(model, texts(), never=never))
    np.testing.assert_array_equal(found.ranks, expected.ranks)
    np.testing.assert_array_equal(found.ranks_of_all, expected.ranks_of_all)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-5)


def test_accuracies_are_equal_at_the_papers_size():
    model = build("lstm", 10_000)
    generator = np.random.default_rng(1)
    sequences = [np.minimum(generator.zipf(1.2, 12) + 2, 9_999) for _ in range(60)]
    found = evaluate(model, sequences, bos=0, unk=2)
    expected = in_the_general_way(lambda: evaluate(model, sequences, bos=0, unk=2))
    assert found.log_prob == pytest.approx(expected.log_prob, rel=1e-5)
    assert replace(found, log_prob=expected.log_prob) == expected


def test_words_of_equal_vectors_keep_their_order():
    model = model_of("lstm")
    with torch.no_grad():
        model.embedding.weight.copy_(model.embedding.weight[:1].expand(WORDS, -1))
    scores = subject.score(model, texts(), never=2)
    np.testing.assert_array_equal(scores.ranks, scores.targets - (scores.targets > 2))
    np.testing.assert_array_equal(scores.ranks_of_all, scores.targets)


def test_a_model_of_nan_predicts_nothing():
    model = model_of("lstm")
    with torch.no_grad():
        model.embedding.weight[5, 0] = torch.nan
    scores = subject.score(model, texts())
    assert (scores.log_probs == -np.inf).all()
    assert (scores.ranks == WORDS - 1).all()


def test_a_model_that_changes_its_logits_is_asked_for_them():
    model = model_of("lstm")
    assert subject._as_tied(model) is model
    forward = model.forward

    def backwards(tokens, state=None, context=None):
        logits, after = forward(tokens, state, context)
        return -logits, after

    model.forward = backwards
    assert subject._as_tied(model) is None
    changed = subject.score(model, texts())
    del model.forward
    plain = subject.score(model, texts())
    np.testing.assert_array_equal(changed.ranks, WORDS - 1 - plain.ranks)


def test_a_class_of_ones_own_is_asked_for_its_logits():
    model = model_of("lstm")

    class Own(type(model.embedding)):
        pass

    model.embedding.__class__ = Own
    assert subject._as_tied(model) is None
