"""A softmax over sampled words: E Z' = Z, and a model trained with it is as good as with all."""

import numpy as np
import pytest
import torch

from tacit.evaluation.accuracy import evaluate
from tacit.models.registry import build
from tacit.public.pretrain import LanguageSettings, begin_with_frequencies_, pretrain
from tacit.public.sampled_words import WordSampler

VOCABULARY, BOS, EOS = 300, 0, 1


def tied(seed=0, **sizes):
    sizes = {"embedding_size": 16, "cells": 24, "unit_norm": False, "output_bias": True} | sizes
    return build("lstm", VOCABULARY, seed=seed, **sizes)


def zipf(generator, count):
    law = 1 / np.arange(1, VOCABULARY - 1)
    return 2 + generator.choice(VOCABULARY - 2, size=count, p=law / law.sum())


def chained_texts(count, seed):
    """Each word is followed by one of two of its kind's, or by any by Zipf's law."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        words = [int(zipf(generator, 1)[0])]
        for other in zipf(generator, 11):
            follows = 2 + 14 * (words[-1] % 20) + int(generator.integers(2))
            words.append(follows if generator.random() < 0.7 else int(other))
        texts.append([BOS, *words, EOS])
    return texts


def estimates(sampler, outputs, targets, embedding, count, seed=0):
    """Z' of every position, `count` times."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        losses = [
            [sampler.loss(outputs[i : i + 1], targets[i : i + 1], embedding) for i in range(2)]
            for _ in range(count)
        ]
    scores = embedding.score(outputs).gather(1, targets[:, None])[:, 0]
    return torch.exp(torch.tensor(losses).double() + scores.double())


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_corrected_sum_is_an_unbiased_estimate_of_z(has_bias):
    embedding = tied(output_bias=has_bias).embedding
    generator = np.random.default_rng(1)
    counts = np.bincount(zipf(generator, 5000), minlength=VOCABULARY)
    with torch.no_grad():
        embedding.weight.mul_(3)
        if has_bias:
            embedding.output_bias.normal_(generator=torch.Generator().manual_seed(2))
    outputs = torch.randn(2, 16, generator=torch.Generator().manual_seed(3))
    targets = torch.tensor([5, 250])
    with torch.no_grad():
        exact = torch.exp(embedding.score(outputs).double()).sum(dim=1)
    drawn = estimates(WordSampler(counts, 60), outputs, targets, embedding, 1500)
    error = drawn.std(dim=0) / np.sqrt(len(drawn))
    assert ((drawn.mean(dim=0) - exact).abs() < 5 * error).all()
    assert (error < 0.05 * exact).all()

    class Uncorrected(WordSampler):
        """Words that are drawn as often, and count as if they were certain."""

        def loss(self, outputs, targets, embedding):
            pi = self.probabilities(torch.arange(VOCABULARY) == targets[0])
            words = torch.rand(VOCABULARY, dtype=torch.float64) < pi
            scores = embedding.score(outputs)[0]
            return scores[words].logsumexp(0) - scores[targets[0]]

    wrong = estimates(Uncorrected(counts, 60), outputs, targets, embedding, 500)
    assert ((wrong.mean(dim=0) - exact).abs() > 5 * wrong.std(dim=0) / np.sqrt(500)).all()


def test_with_as_many_as_there_are_the_loss_is_exact():
    embedding = tied().embedding
    outputs = torch.randn(7, 16, generator=torch.Generator().manual_seed(3))
    targets = torch.arange(10, 17)
    sampler = WordSampler(np.zeros(VOCABULARY, np.int64), 10 * VOCABULARY)
    exact = torch.nn.functional.cross_entropy(embedding.score(outputs), targets)
    assert torch.allclose(sampler.loss(outputs, targets, embedding), exact, atol=1e-6)


def test_the_sample_has_the_size_asked_for_and_all_of_the_batch_s_words():
    counts = np.bincount(zipf(np.random.default_rng(1), 5000), minlength=VOCABULARY)
    is_own = torch.zeros(VOCABULARY, dtype=torch.bool)
    is_own[[3, 200]] = True
    pi = WordSampler(counts, 40).probabilities(is_own)
    assert (pi[is_own] == 1).all()
    assert (pi > 0).all()
    assert pi[~is_own].sum() == pytest.approx(40, rel=0.2)  # at most one each
    assert pi[2] > 5 * pi[250]


@pytest.mark.slow
def test_a_model_trained_so_is_as_good_as_one_trained_on_all_words():
    """Perplexity, which is never sampled, within a few percent; and the gain is not luck."""
    train, held_out = chained_texts(250, 0), chained_texts(40, 1)
    found = {}
    for words in (None, 60, 1):
        model = tied()
        settings = LanguageSettings(
            sampled_words=words,
            dropout=0.0,
            batch=8,
            unroll=12,
            epochs=4,
            warmup_steps=5,
            learning_rate=1e-2,
        )
        begin_with_frequencies_(model, train, BOS)
        pretrain(model, train, settings, bos=BOS)
        found[words] = evaluate(model, held_out, bos=BOS, unk=None).perplexity
    assert found[60] < 1.05 * found[None]
    assert found[1] > 1.05 * found[None]  # one word is too few: the comparison can fail


def test_the_bias_begins_with_the_frequencies_of_the_text():
    model = tied()
    begin_with_frequencies_(model, [[BOS, 5, 5, 5, 7, EOS]], BOS)
    chances = model.embedding.output_bias.detach().softmax(0)
    assert chances[5] / chances[9] == pytest.approx(4, rel=1e-5)
    assert chances[7] / chances[9] == pytest.approx(2, rel=1e-5)
    assert chances[BOS] == pytest.approx(float(chances[9]), rel=1e-5)
    before = tied(output_bias=False)
    begin_with_frequencies_(before, [[BOS, 5, EOS]], BOS)  # nothing to set


def test_dropout_follows_the_seed_and_is_not_there_when_measuring():
    train = chained_texts(40, 0)
    settings = LanguageSettings(dropout=0.5, sampled_words=None, batch=8, unroll=12)
    runs = {}
    for name, chosen in (
        ("a", settings),
        ("b", settings),
        ("none", LanguageSettings(dropout=0.0, sampled_words=None, batch=8, unroll=12)),
    ):
        model = tied()
        pretrain(model, train, chosen, bos=BOS)
        runs[name] = model.embedding.weight.detach().clone()
    assert torch.equal(runs["a"], runs["b"])
    assert not torch.equal(runs["a"], runs["none"])
    tokens = torch.tensor([[0, 5, 6]])
    assert torch.equal(model(tokens)[0], model(tokens)[0])


def test_half_precision_trains_nearly_the_same_model_with_weights_in_whole_precision():
    train = chained_texts(60, 0)
    losses = {}
    for half in (False, True):
        model = tied()
        settings = LanguageSettings(bfloat16=half, batch=16, unroll=12, epochs=4, warmup_steps=5)
        losses[half] = pretrain(model, train, settings, bos=BOS).loss
        assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
        LanguageSettings(dropout=1.0)
    with pytest.raises(ValueError, match="sampled_words must be at least 1"):
        LanguageSettings(sampled_words=0)
