"""Pre-training learns, is repeatable, stops when it should, and says what is wrong."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.baselines import Bigram
from tacit.models.registry import build
from tacit.public.pretrain import Settings, _learning_rate, pretrain

BOS, EOS, SIZE = 0, 1, 12
SMALL = {
    "lstm": {"embedding_size": 12, "cells": 24},
    "gru": {"embedding_size": 12, "cells": 24},
    "transformer-14m": {"embedding_size": 16, "heads": 2, "feed_forward": 32, "layers": 1},
}


def counting_texts(count: int, seed: int) -> list[list[int]]:
    """Each text counts up in steps of its own, which two tokens tell and one does not."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        start, step = generator.integers(0, 10), generator.integers(1, 4)
        texts.append([BOS, *(2 + (start + step * np.arange(9)) % 10).tolist(), EOS])
    return texts


def model_of(kind: str):
    return build(kind, SIZE, seed=1, **SMALL[kind])


@pytest.mark.parametrize("kind", list(SMALL))
def test_the_loss_falls_and_the_model_beats_unigram_and_bigram(kind):
    train, held_out = counting_texts(300, 0), counting_texts(30, 1)
    model = model_of(kind)
    settings = Settings(learning_rate=1e-2, batch=16, unroll=10, epochs=12, warmup_steps=5)
    losses = []
    last = pretrain(model, train, settings, bos=BOS, progress=lambda now: losses.append(now.loss))
    assert np.mean(losses[-50:]) < np.mean(losses[:50])
    bigram = Bigram.fit(train, SIZE, bos=BOS)
    found = evaluate(model, held_out, bos=BOS, unk=None).perplexity
    assert found < 0.8 * evaluate(bigram, held_out, bos=BOS, unk=None).perplexity
    assert found < 0.5 * evaluate(bigram.unigram, held_out, bos=BOS, unk=None).perplexity
    assert not last.ran_out_of_time
    assert last.tokens == 12 * sum(len(text) - 1 for text in train)


def test_sgd_learns_too():
    model = model_of("lstm")
    settings = Settings(optimizer="sgd", learning_rate=4.0, batch=8, epochs=8, warmup_steps=0)
    losses = []
    pretrain(
        model,
        counting_texts(100, 0),
        settings,
        bos=BOS,
        progress=lambda now: losses.append(now.loss),
    )
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.1


def test_the_same_seed_gives_the_same_model_and_another_gives_another():
    def weights(seed):
        model = model_of("lstm")
        pretrain(model, counting_texts(60, 0), Settings(batch=8, seed=seed), bos=BOS)
        return torch.cat([value.flatten() for value in model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_dropout_too_follows_the_seed_and_leaves_the_global_generator_alone():
    def weights():
        model = build("transformer-14m", SIZE, dropout=0.5, **SMALL["transformer-14m"])
        pretrain(model, counting_texts(30, 0), Settings(batch=8), bos=BOS)
        return torch.cat([value.flatten() for value in model.parameters()])

    torch.manual_seed(1)
    one, next_draw = weights(), torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == next_draw
    torch.manual_seed(2)
    assert torch.equal(weights(), one)


def test_measuring_does_not_change_the_training():
    texts = counting_texts(5, 2)

    def weights(measured):
        model = model_of("lstm")
        settings = Settings(batch=8)
        measure = lambda _: evaluate(model, texts, bos=BOS, unk=None)  # noqa: E731
        options = {"progress": measure} if measured else {}
        pretrain(model, counting_texts(60, 0), settings, bos=BOS, **options)
        return torch.cat([value.flatten() for value in model.parameters()])

    assert torch.equal(weights(measured=False), weights(measured=True))


def test_unit_norm_embeddings_stay_so():
    model = model_of("lstm")
    pretrain(model, counting_texts(60, 0), Settings(batch=8), bos=BOS)
    norms = model.embedding.weight.norm(dim=1)
    assert torch.allclose(norms, torch.ones(SIZE), atol=1e-6)


def test_a_text_begins_without_a_state_and_goes_on_with_one():
    model = model_of("lstm")
    given = []
    model.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    pretrain(model, [[BOS, *[3] * 11, EOS]] * 4, Settings(batch=2, unroll=5), bos=BOS)
    assert [state is None for _, state in given] == [True, False, False] * 2
    assert all(not part.requires_grad for _, state in given if state is not None for part in state)


def test_time_that_is_up_ends_the_training():
    ticks = itertools.count()
    model = model_of("lstm")
    seen = []
    outcome = pretrain(
        model,
        counting_texts(400, 0),
        Settings(batch=4, epochs=50, minutes=0.5),
        bos=BOS,
        progress=seen.append,
        clock=lambda: float(next(ticks)),
    )
    assert outcome.ran_out_of_time
    assert outcome.seconds == 30
    assert outcome.step == 30
    assert seen[-1] == outcome
    assert outcome.share == 1
    assert [now.step for now in seen] == list(range(1, 31))


def test_measuring_is_not_training_time():
    now = [0.0]

    def measure(_):
        now[0] += 1000

    def clock():
        now[0] += 0.5
        return now[0]

    outcome = pretrain(
        model_of("lstm"),
        counting_texts(40, 0),
        Settings(batch=4),
        bos=BOS,
        progress=measure,
        clock=clock,
    )
    assert outcome.seconds < 1000
    assert not outcome.ran_out_of_time


def test_a_fraction_of_an_epoch_is_a_fraction():
    texts = counting_texts(100, 0)
    outcome = pretrain(model_of("lstm"), texts, Settings(batch=4, unroll=5, epochs=0.25), bos=BOS)
    wanted = 0.25 * sum(len(text) - 1 for text in texts)
    assert wanted <= outcome.tokens < wanted + 4 * 5


def test_every_step_is_told_with_its_own_targets():
    steps = []
    texts, settings = counting_texts(50, 0), Settings(batch=8)
    last = pretrain(model_of("lstm"), texts, settings, bos=BOS, progress=steps.append)
    assert [now.step for now in steps] == list(range(1, last.step + 1))
    assert np.cumsum([now.targets for now in steps]).tolist() == [now.tokens for now in steps]
    assert last.tokens == sum(len(text) - 1 for text in texts)


def test_the_learning_rate_warms_up_and_then_falls_to_a_twentieth():
    settings = Settings(learning_rate=1.0, warmup_steps=9)
    assert _learning_rate(settings, 0, 0.0) == pytest.approx(0.1)
    assert _learning_rate(settings, 9, 0.0) == pytest.approx(1.0)
    assert _learning_rate(settings, 99, 0.5) == pytest.approx(0.525)
    assert _learning_rate(settings, 99, 1.0) == pytest.approx(0.05)
    constant = Settings(learning_rate=1.0, warmup_steps=0, schedule="constant")
    assert _learning_rate(constant, 0, 0.9) == 1.0


def test_a_gradient_is_clipped_to_its_norm():
    plain, clipped = model_of("lstm"), model_of("lstm")
    texts = counting_texts(8, 0)
    before = [value.detach().clone() for value in plain.parameters()]
    for model, clip in ((plain, 1e9), (clipped, 1e-6)):
        settings = Settings(
            optimizer="sgd", learning_rate=1.0, clip_norm=clip, batch=8, unroll=20, warmup_steps=0,
            schedule="constant",
        )  # fmt: skip
        pretrain(model, texts, settings, bos=BOS)

    def moved(model):
        pairs = zip(before, model.parameters(), strict=True)
        return math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))

    assert moved(clipped) <= 2e-6
    assert moved(plain) > 1e-3


def test_a_training_that_diverges_says_so():
    model = model_of("transformer-14m")
    settings = Settings(
        optimizer="sgd", learning_rate=1e30, clip_norm=1e30, batch=8, warmup_steps=0
    )
    with pytest.raises(ValueError, match="lower the learning rate"):
        pretrain(model, counting_texts(100, 0), settings, bos=BOS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer must be one of adam, sgd, got 'adamw'"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number above 0, got nan"),
        ({"epochs": math.inf}, "epochs must be a finite number above 0"),
        ({"minutes": -1.0}, "minutes must be a finite number above 0"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"unroll": 0}, "unroll must be at least 1"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


@pytest.mark.parametrize("kind", ["lstm", "transformer-14m"])
def test_a_model_that_reads_a_vector_about_the_user_is_not_trained_on_zeros(kind):
    model = build(kind, SIZE, **SMALL[kind], context_size=2)
    with pytest.raises(ValueError, match="context_size must be 0 in a training, got 2"):
        pretrain(model, [[0, 1, 2]], Settings(), bos=0)
