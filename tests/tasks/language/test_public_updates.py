"""Updates of made-up users: how they are made, and what of their updates they share."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.config.experiment import Experiment
from tacit.models import registry
from tacit.models.base import to_vector
from tacit.tasks.language.public_updates import PublicUpdates, made_up_users, measure_updates
from tacit.tokenizers import build, provenance
from tests.runs.small import WORDS, texts_of

TEXTS = [text for user in range(200) for text in texts_of(user)]


def of_vectors(rows):
    return PublicUpdates(rows @ rows.T)


def test_users_have_exactly_so_many_tokens_and_are_spread_over_the_text():
    rows = [[0, number, 1] for number in range(100)]
    users = made_up_users(rows, list, 5, 10)
    assert [len(user) for user in users] == [5] * 10
    assert users[0].tolist() == [0, 0, 1, 0, 1]
    assert [user[1] for user in users] == list(range(0, 100, 10))


def test_only_what_users_need_is_tokenized():
    seen = []
    made_up_users(["a" * 10**6] * 40, lambda text: seen.append(len(text)) or [1] * 9, 8, 4)
    assert seen == [20 * 8] * 4


def test_no_text_is_in_two_users_and_too_little_text_is_refused():
    with pytest.raises(ValueError, match="of 3 users, 1 have 4 tokens; give more text"):
        made_up_users([[0, 5, 1]] * 4, list, 4, 3)


def test_the_average_of_clipped_updates_is_what_it_is_by_definition():
    rows = np.random.default_rng(0).normal(0.5, 1, (12, 7))
    found = of_vectors(rows)
    norms = np.linalg.norm(rows, axis=1)
    assert found.norms == pytest.approx(norms)
    assert found.average_norm() == pytest.approx(np.linalg.norm(rows.mean(0)))
    S = float(np.median(norms))
    clipped = rows * np.minimum(1, S / norms)[:, None]
    assert found.average_norm(S) == pytest.approx(np.linalg.norm(clipped.mean(0)))
    assert found.clip_norm == pytest.approx(S, rel=0.05)


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.3])
def test_the_signal_is_the_norm_of_the_mean_and_not_that_of_an_average_of_few(strength):
    draw, size, users = np.random.default_rng(1), 400, 40
    mean = np.full(size, strength)
    squares = [of_vectors(mean + draw.normal(0, 1, (users, size))).signal() ** 2 for _ in range(60)]
    # Of |mu|^2: 60 estimates with a deviation of at most 2.1 each, cut off at 0.
    assert np.mean(squares) == pytest.approx(size * strength**2, abs=1.0)
    average = of_vectors(mean + draw.normal(0, 1, (users, size))).average_norm() ** 2
    assert average > size * strength**2 + 5  # sampling error of |update|^2 / users = 10


@pytest.fixture(scope="module")
def tokenizer():
    return build.word_level(WORDS, provenance=provenance.public("a list in the tests"))


def experiment(**update):
    settings = {"batch_size": 2, "unroll": 5, "learning_rate": 0.5} | update
    return Experiment.from_data(
        {"corpus": {"max_tokens_per_user": 30}, "update": settings}, "the test"
    )


def test_an_experiment_s_updates_on_public_text(tokenizer):
    model = registry.build("lstm", tokenizer.vocab_size, embedding_size=6, cells=8, seed=1)
    before, told = to_vector(model), []
    found = measure_updates(
        experiment(), model, tokenizer, TEXTS, users=6, announce=lambda *now: told.append(now)
    )
    assert np.array_equal(to_vector(model), before)
    assert told[-1] == ("users' updates on public text", 6, 6)
    assert found.norms.shape == (6,)
    assert 0 < found.signal() < found.average_norm() < found.norms.max()
    faster = measure_updates(experiment(learning_rate=1.0), model, tokenizer, TEXTS, users=6)
    assert (faster.norms > found.norms).all()


def test_fewer_than_two_users_share_nothing(tokenizer):
    model = registry.build("lstm", tokenizer.vocab_size, embedding_size=6, cells=8)
    with pytest.raises(ValueError, match="users must be at least 2, got 1"):
        measure_updates(experiment(), model, tokenizer, TEXTS, users=1)
