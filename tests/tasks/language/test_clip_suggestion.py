"""Norms of updates on made-up users: against updates computed by hand, and the limits."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.federated.server import ServerSGD
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import local_sgd_for
from tacit.models import registry
from tacit.models.base import from_vector_, layer_sizes, to_vector
from tacit.privacy.randomness import RunKey
from tacit.tasks.language.clip_suggestion import Norms, norms_of
from tacit.tasks.language.public_updates import made_up_users

VOCABULARY = 12


def texts(count=200):
    generator = np.random.default_rng(0)
    return [[0, *generator.integers(2, VOCABULARY, 6).tolist(), 1] for _ in range(count)]


def model():
    return registry.build("lstm", VOCABULARY, seed=1, embedding_size=4, cells=5)


def run(update, users, *, rounds=0, cohort=2, seen=None):
    announce = seen or (lambda *_: None)
    return norms_of(model(), update, ServerSGD(1.0), users, 0, [cohort] * rounds, announce)


@pytest.mark.parametrize("greedy", [False, True])
def test_norms_are_those_of_unclipped_updates(greedy):
    users = made_up_users(texts(), list, 24, 8)
    update = FedAvg(learning_rate=0.5, batch_size=2, unroll=6, clip_each_step=greedy)
    [found] = run(update, users)
    start = model()
    plain = FedAvg(learning_rate=0.5, batch_size=2, unroll=6)
    stream = RunKey.from_seed(0).stream(branch="x", round=0, attempt=0, purpose="x")
    expected = [
        np.linalg.norm(
            plain.run(
                local_sgd_for(start),
                to_vector(start),
                user,
                bos=0,
                stream=stream,
                clip=lambda x: 0 * x,
            ).update.astype(np.float64)
        )
        for user in users
    ]
    assert sorted(found.overall) == pytest.approx(sorted(expected), rel=1e-9)
    assert found.by_layer.shape == (8, len(layer_sizes(start)))
    assert found.as_row()["quantiles"]["0.5"] == pytest.approx(np.median(expected))


def test_layers_add_up_to_the_whole():
    [found] = run(FedSGD(learning_rate=1.0, unroll=6), made_up_users(texts(), list, 24, 5))
    assert (found.by_layer**2).sum(1) == pytest.approx(found.overall**2)
    assert list(found.as_row()["layer_medians"]) == [
        name for name, _ in model().parameter_vectors()
    ]


def test_the_second_measurement_is_after_rounds_of_averaging():
    users = made_up_users(texts(), list, 24, 10)
    seen = []
    first, second = run(
        FedAvg(learning_rate=0.5, unroll=6),
        users,
        rounds=3,
        cohort=2,
        seen=lambda _, *now: seen.append(now),
    )
    assert (first.round, second.round) == (0, 3)
    assert len(first.by_layer) == len(second.by_layer) == 4
    assert not np.array_equal(first.by_layer, second.by_layer)
    assert seen == [(number, 14) for number in range(1, 15)]


def test_suggestions_have_two_digits_and_are_above_zero():
    found = Norms(0, ("a", "b"), np.array([[3.14159, 0.0], [3.2, 0.0], [0.0123, 0.0]]))
    assert found.suggested == 3.1
    assert found.suggested_by_layer == [3.1, 0.0031]


def test_an_update_that_diverges_is_one_sentence():
    made = model()
    from_vector_(made, np.full_like(to_vector(made), 1e18))
    with pytest.raises(ValueError, match=r"lower update\.learning_rate"):
        norms_of(
            made,
            FedAvg(learning_rate=1e30, unroll=6),
            ServerSGD(1.0),
            made_up_users(texts(), list, 24, 4),
            0,
            [],
            lambda *_: None,
        )
