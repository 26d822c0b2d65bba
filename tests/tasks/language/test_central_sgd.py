"""Training on records: the orders of an epoch, the learning rates, and a literal loop as oracle."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models import registry
from tacit_papers.thakkar2020.pooled_sgd import PooledStep, Records, RecordTraining, scaled_rate

BOS, EOS = 0, 1
TEXT = st.lists(st.integers(1, 9), min_size=0, max_size=8).map(lambda words: [BOS, *words])
USERS = st.lists(st.lists(TEXT, max_size=5), min_size=1, max_size=8).filter(
    lambda users: any(len(text) > 1 for texts in users for text in texts)
)


def pooled(users) -> Records:
    joined = ([token for text in texts for token in text] for texts in users)
    return Records.of((np.array(tokens, np.uint16) for tokens in joined), BOS)


def wanted(users) -> list[list[int]]:
    return [text for texts in users for text in texts if len(text) > 1]


def owners(users) -> list[int]:
    return [number for number, texts in enumerate(users) for text in texts if len(text) > 1]


# Records and their orders.


@given(USERS)
def test_records_are_the_texts_that_have_something_to_predict(users):
    records = pooled(users)
    found = [records.record(index).tolist() for index in range(len(records))]
    assert found == wanted(users)


@given(USERS, st.sampled_from(["iid", "non-iid"]), st.integers(0, 9))
def test_each_record_comes_once_in_an_epoch(users, order, seed):
    records = pooled(users)
    found = records.order(order, np.random.default_rng(seed))
    assert sorted(found.tolist()) == list(range(len(records)))


@given(USERS, st.integers(0, 9))
def test_non_iid_keeps_the_records_of_a_user_together_and_in_their_order(users, seed):
    order = pooled(users).order("non-iid", np.random.default_rng(seed)).tolist()
    of = [owners(users)[index] for index in order]
    changes = sum(a != b for a, b in itertools.pairwise(of))
    assert changes == len(set(of)) - 1
    for user in set(of):
        mine = [index for index in order if owners(users)[index] == user]
        assert mine == sorted(mine)


def test_non_iid_draws_the_users_in_another_order_every_epoch():
    records = pooled([[[BOS, user, EOS]] * 3 for user in range(2, 30)])
    rng = np.random.default_rng(0)
    first, second = records.order("non-iid", rng), records.order("non-iid", rng)
    assert first.tolist() != second.tolist()
    assert first.tolist() != list(range(len(records)))


def test_iid_spreads_the_records_of_a_user_over_the_epoch():
    """With 20 users of 50 records each, neighbours are of one user with probability 49/999."""
    users = [[[BOS, 2, EOS]] * 50 for _ in range(20)]
    records = pooled(users)
    of = np.array(owners(users))
    shuffled = of[records.order("iid", np.random.default_rng(0))]
    together = of[records.order("non-iid", np.random.default_rng(0))]
    # 999 pairs, 49 expected, a standard deviation of 7: 5 of them is a false alarm in a million.
    assert abs((shuffled[1:] == shuffled[:-1]).sum() - 49) < 35
    assert (together[1:] == together[:-1]).sum() == 20 * 49


def test_nothing_to_train_on_is_refused():
    with pytest.raises(ValueError, match="nothing to train on"):
        pooled([[[BOS]], []])


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order must be one of iid, non-iid, got 'sorted'"):
        pooled([[[BOS, 2]]]).order("sorted", np.random.default_rng(0))


# The learning rate.


@pytest.mark.parametrize(
    ("batch", "rate"), [(32, 0.005), (64, 0.00707), (128, 0.01), (256, 0.01414), (16, 0.003536)]
)
def test_the_rate_grows_by_the_square_root_of_two_with_every_doubling(batch, rate):
    assert scaled_rate(0.005, batch) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="learning rate must be a finite number above 0"):
        scaled_rate(rate, 32)


# Training.


TEXTS = [
    [[BOS, 2, 3, 4, EOS], [BOS, 5, EOS], [BOS, 6, 7, 8, 9, 2, 3, EOS]],
    [[BOS, 3, 3, EOS], [BOS, 9, 8, 7, EOS]],
    [[BOS, 4, 5, 6, EOS]],
]


def settings(**changes) -> RecordTraining:
    given = {"optimizer": "sgd", "order": "iid", "learning_rate": 0.3, "batch": 4, "epochs": 3.0}
    return RecordTraining(**(given | changes))


def model():
    return registry.build("lstm", 10, seed=1, embedding_size=5, cells=6)


def oracle(given: RecordTraining, start, records: Records):
    """One record at a time through the model, one optimizer step a batch, as the paper says it."""
    made = copy.deepcopy(start)
    parameters = list(made.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    square = [torch.zeros_like(p) for p in parameters]
    step = 0
    for epoch in range(int(given.epochs)):
        order = records.order(given.order, np.random.default_rng([given.seed, epoch])).tolist()
        for begin in range(0, len(order), given.batch):
            step += 1
            losses = []
            for index in order[begin : begin + given.batch]:
                tokens = torch.from_numpy(records.record(index))
                logits, _ = made(tokens[None, :-1])
                logs = torch.log_softmax(logits[0], -1)
                losses += [-logs[place, token] for place, token in enumerate(tokens[1:])]
            made.zero_grad()
            torch.stack(losses).mean().backward()
            with torch.no_grad():
                for p, v, s in zip(parameters, velocity, square, strict=True):
                    if given.optimizer == "adam":
                        v.mul_(0.9).add_(p.grad, alpha=0.1)
                        s.mul_(0.999).add_(p.grad**2, alpha=0.001)
                        root = (s / (1 - 0.999**step)).sqrt() + 1e-8
                        p.sub_(given.learning_rate * (v / (1 - 0.9**step)) / root)
                    else:
                        v.mul_(given.momentum if given.optimizer == "momentum" else 0.0)
                        v.add_(p.grad)
                        p.sub_(given.learning_rate * v)
            made.normalise_()
    return made


def distance(one, other) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("order", ["iid", "non-iid"])
@pytest.mark.parametrize(
    ("optimizer", "rate"), [("sgd", 0.3), ("momentum", 0.1), ("adam", 0.01)], ids=str
)
def test_training_agrees_with_a_literal_loop(optimizer, rate, order):
    given, records = settings(optimizer=optimizer, learning_rate=rate, order=order), pooled(TEXTS)
    start = model()
    expected = oracle(given, start, records)
    found = copy.deepcopy(start)
    trained = given.train(found, records, bos=BOS)
    assert distance(found, start) > 0.01
    assert distance(found, expected) < 2e-5
    assert (trained.steps, trained.records, trained.epochs) == (6, 18, 3.0)
    assert trained.tokens == 3 * sum(len(text) - 1 for texts in TEXTS for text in texts)
    other = oracle(settings(optimizer=optimizer, learning_rate=1.1 * rate), start, records)
    assert distance(found, other) > 1e-4  # the comparison can fail


def test_long_records_are_read_in_pieces_that_carry_the_state():
    records, whole, cut = pooled(TEXTS), model(), model()
    one = settings(unroll=20, steps=1, epochs=None).train(whole, records, bos=BOS)
    two = settings(unroll=2, steps=1, epochs=None).train(cut, records, bos=BOS)
    assert one.loss == pytest.approx(two.loss, abs=1e-6)  # the same forward pass
    assert 0 < distance(whole, cut) < 0.05  # and a gradient with a shorter memory


def test_a_loss_falls_and_progress_tells():
    told: list[PooledStep] = []
    settings(epochs=40.0, learning_rate=1.0).train(
        model(), pooled(TEXTS), bos=BOS, progress=told.append
    )
    assert [now.step for now in told] == list(range(1, 81))
    assert {now.steps for now in told} == {80}
    assert told[-1].loss < 0.7 * told[0].loss


def test_steps_are_an_exact_limit_over_epochs():
    assert (
        settings(steps=7, epochs=None).train(model(), pooled(TEXTS), bos=BOS).records == 22
    )  # 3 x (4 + 2) + 4
    assert settings(epochs=0.5).steps_of(6) == 1


def test_the_seed_decides_about_the_order():
    first, same, other = model(), model(), model()
    for made, seed in ((first, 3), (same, 3), (other, 4)):
        settings(seed=seed, batch=2).train(made, pooled(TEXTS), bos=BOS)
    assert distance(first, same) == 0
    assert distance(first, other) > 0


def test_a_model_without_a_state_can_be_trained():
    sizes = {"embedding_size": 8, "heads": 2, "feed_forward": 12, "layers": 1}
    start = registry.build("transformer-14m", 10, seed=1, **sizes)
    assert not start.carries_state
    made = copy.deepcopy(start)
    settings(learning_rate=0.01, epochs=1.0).train(made, pooled(TEXTS), bos=BOS)
    assert distance(start, made) > 0


def test_a_training_that_diverges_says_so():
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+: lower the learning"):
        settings(learning_rate=1e38, epochs=9.0).train(model(), pooled(TEXTS), bos=BOS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "rmsprop"}, "optimizer must be one of sgd, momentum, adam, got 'rmsprop'"),
        ({"order": "random"}, "order must be one of iid, non-iid, got 'random'"),
        ({"epochs": None}, "give either epochs or steps"),
        ({"steps": 3}, "give either epochs or steps"),
        ({"epochs": math.nan}, "epochs must be a finite number above 0, got nan"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0, got 0.0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"unroll": 0}, "unroll must be at least 1, got 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)
