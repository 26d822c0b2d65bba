"""User updates, and the local steps under them."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.federated.user_update import FedAvg, FedSGD, stretch
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.kernels.rows import TokenRows, rows_of
from tacit.mechanisms.clipping import FlatClip
from tacit.models.base import from_vector_, to_vector
from tacit.models.base import loss as summed_loss
from tacit.models.registry import build
from tests.federated.tiny import BOS, VOCABULARY, small, stream, texts

USER = texts(8, seed=3)


class Forgetful(nn.Module):
    """Dropout, a buffer that counts calls, and a parameter that nothing uses."""

    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size) / 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens):
        if self.training:
            self.calls += 1
        return self.dropout(self.table[tokens]) * (1 + 0.01 * self.calls)


def own():
    return build(f"{__name__}:Forgetful", VOCABULARY, seed=2)


def batch(tokens=USER, unroll=5, layout="stream"):
    return rows_of(tokens, unroll=unroll, bos=BOS, layout=layout)


def run(update, sgd, start, tokens=USER, clip=None, key="user"):
    return update.run(sgd, start, tokens, bos=BOS, stream=stream(key), clip=clip)


def no_targets(width=4):
    zeros = torch.zeros(2, width, dtype=torch.int64)
    return TokenRows(zeros, zeros, torch.zeros(2, width, dtype=torch.bool))


makers = pytest.mark.parametrize("make", [AutogradSGD, local_sgd_for])


@makers
def test_step_is_gradient_descent_with_the_penalty_taken_before_it(make):
    model, rows = small(unit_norm=False), batch()
    start = to_vector(model)
    moved = start + stream().normal(start.size).astype(np.float32) / 8
    sgd = make(model)
    sgd.load(start)
    sgd.set_weights(moved)
    total = sgd.step(rows, 0.3, penalty=0.7)

    reference = copy.deepcopy(model).double()
    from_vector_(reference, moved)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.3)
    mean, count = summed_loss(reference(rows.inputs)[0], rows.targets, rows.mask)
    distance = sum(
        (p - torch.from_numpy(block).view_as(p)).square().sum()
        for p, block in zip(
            reference.parameters(),
            np.split(
                start.astype(np.float64),
                np.cumsum([p.numel() for p in reference.parameters()])[:-1],
            ),
            strict=True,
        )
    )
    (mean / count + 0.7 / 2 * distance).backward()
    optimizer.step()
    assert total == pytest.approx(mean.item(), rel=1e-5)
    assert np.abs(sgd.weights() - to_vector(reference)).max() < 1e-6


@makers
def test_projection_happens_only_if_asked_for(make):
    model = small(unit_norm=True)
    size = model.embedding.weight.numel()
    for project, is_unit in ((True, True), (False, False)):
        sgd = make(model)
        sgd.load(to_vector(model))
        sgd.step(batch(), 2.0, project=project)
        norms = np.linalg.norm(sgd.weights()[:size].reshape(-1, 6), axis=1)
        assert (np.abs(norms - 1).max() < 1e-6) == is_unit


@makers
def test_batch_without_targets_changes_nothing_but_by_the_penalty(make):
    model = small(unit_norm=False)
    start = to_vector(model)
    sgd = make(model)
    sgd.load(start)
    assert sgd.step(no_targets(), 0.5) == 0
    assert np.array_equal(sgd.weights(), start)
    sgd.set_weights(start + 1)
    assert sgd.step(no_targets(), 0.5, penalty=0.5) == 0
    assert sgd.weights() == pytest.approx(start + 0.75, abs=1e-6)


@makers
def test_weights_are_copies_in_the_order_of_the_models_vector(make):
    model = small()
    sgd, start = make(model), to_vector(model)
    sgd.load(start)
    read = sgd.weights()
    assert np.array_equal(read, start)
    read[:] = 7
    assert np.array_equal(sgd.weights(), start)
    sgd.step(batch(), 1.0)
    assert np.array_equal(to_vector(model), start)  # the caller's model and array stay as they are


@pytest.mark.parametrize("make", [small, own], ids=["lstm", "own"])
def test_load_forgets_whatever_was_before(make):
    """Buffers, dropout and the global generator included: the same bits as from a new one."""
    model = make()
    start = to_vector(model)
    update = FedAvg(learning_rate=0.5, local_epochs=2, batch_size=3, unroll=5)
    torch.manual_seed(1)
    fresh = run(update, local_sgd_for(model), start)
    used = local_sgd_for(model)
    run(update, used, start + 1, texts(5, seed=9))
    torch.manual_seed(2)
    again = run(update, used, start)
    assert np.array_equal(fresh.update, again.update)
    assert fresh.loss == again.loss


def test_local_steps_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    model = own()
    run(FedAvg(learning_rate=0.5), AutogradSGD(model), to_vector(model))
    assert torch.equal(before, torch.random.get_rng_state())


def test_read_only_weights_can_be_loaded():
    model = small()
    start = to_vector(model)
    start.flags.writeable = False
    assert (
        run(FedAvg(learning_rate=0.5), local_sgd_for(model), start).steps
        == 1 + (len(batch(unroll=10)) - 1) // 8
    )


def test_parameters_of_two_types_are_refused():
    model = own()
    model.module.unused.data = model.module.unused.data.double()
    with pytest.raises(ValueError, match=r"one type and be on one device, got torch\.float32"):
        AutogradSGD(model)


def test_weights_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"weights must be one flat vector of .* got shape \[3\]"):
        AutogradSGD(small()).load(np.zeros(3, np.float32))


@makers
def test_tokens_that_the_model_does_not_know_are_refused(make):
    model = small()
    with pytest.raises(ValueError, match="must be tokens from 0 to 29, got 0 to 30"):
        run(FedAvg(learning_rate=1.0), make(model), to_vector(model), np.array([0, 30, 1]))


@pytest.mark.parametrize("update", [FedAvg(learning_rate=1.0), FedSGD(learning_rate=1.0)])
@pytest.mark.parametrize("tokens", [[], [BOS], [5], [BOS, BOS]])
def test_user_without_targets_has_a_zero_update(update, tokens):
    model = small()
    result = run(update, local_sgd_for(model), to_vector(model), np.array(tokens, np.uint16))
    assert not result.update.any()
    assert (result.examples, result.loss, result.steps) == (0, 0.0, 0)


def test_steps_are_epochs_times_batches_and_loss_is_a_mean():
    model = small()
    result = run(
        FedAvg(learning_rate=1e-6, local_epochs=3, batch_size=2, unroll=5),
        local_sgd_for(model),
        to_vector(model),
    )
    rows = batch()
    assert result.steps == 3 * math.ceil(len(rows) / 2)
    assert result.examples == rows.examples
    total, count = summed_loss(model(rows.inputs)[0], rows.targets, rows.mask)
    assert result.loss == pytest.approx(float(total.detach() / count), rel=1e-4)


def test_shuffling_follows_the_users_own_stream():
    model = small()
    sgd, start = local_sgd_for(model), to_vector(model)
    update = FedAvg(learning_rate=0.5, batch_size=2, unroll=3, shuffle=True)
    once, again, other = (run(update, sgd, start, key=key).update for key in ("a", "a", "b"))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


def test_fedsgd_batch_is_drawn_from_the_stream_and_examples_are_all_of_the_users():
    model = small()
    sgd, start = local_sgd_for(model), to_vector(model)
    update = FedSGD(learning_rate=0.5, batch_size=2, unroll=3)
    once, again, other = (run(update, sgd, start, key=key) for key in ("a", "a", "b"))
    assert np.array_equal(once.update, again.update)
    assert not np.array_equal(once.update, other.update)
    assert once.examples == batch().examples


def test_greedy_clipping_bounds_every_step():
    model = small()
    start, norms = to_vector(model), []

    def clip(update):
        norms.append(np.linalg.norm(update))
        return update * min(1.0, 0.1 / norms[-1])

    update = FedAvg(learning_rate=0.5, batch_size=2, unroll=3, clip_each_step=True)
    result = run(update, local_sgd_for(model), start, clip=clip)
    assert len(norms) == result.steps > 3
    assert np.linalg.norm(result.update) <= 0.1 * (1 + 1e-5)
    step = max(np.diff([0, *norms])[:1])
    assert max(norms) <= 0.1 + 2 * step  # each began within the bound


class Spoilt(AutogradSGD):
    """Finite losses, and weights that are not."""

    def step(self, rows, *arguments, **options):
        total = super().step(rows, *arguments, **options)
        weights = self.weights()
        weights[3] = np.inf
        self.set_weights(weights)
        return total


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("make", "scale"), [(AutogradSGD, 1e30), (Spoilt, 1)])
def test_update_that_is_not_finite_is_handed_on_and_ends_the_work(make, scale, greedy):
    """Greedy clipping would otherwise turn it into zero and go on as if nothing had been."""
    model = small(unit_norm=False)
    start = to_vector(model) * np.float32(scale)
    update = FedAvg(learning_rate=0.5, batch_size=1, unroll=2, clip_each_step=greedy)
    result = run(update, make(model), start, clip=lambda update: FlatClip(1.0).clip(update).values)
    assert not np.isfinite(result.update).all()
    assert result.steps <= 2 < len(batch(unroll=2))


def test_penalty_keeps_the_update_smaller():
    model = small()
    sgd, start = local_sgd_for(model), to_vector(model)
    sizes = [
        np.linalg.norm(
            run(FedAvg(learning_rate=0.5, unroll=3, update_penalty=p), sgd, start).update
        )
        for p in (0.0, 0.3, 1.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2] > 0


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (FedAvg, {"learning_rate": 0}, "learning_rate must be a finite number above 0, got 0"),
        (FedAvg, {"learning_rate": math.nan}, "learning_rate must be .* got nan"),
        (FedSGD, {"learning_rate": math.inf}, "learning_rate must be .* got inf"),
        (FedAvg, {"local_epochs": 0}, "local_epochs must be at least 1, got 0"),
        (FedAvg, {"batch_size": 1.5}, "batch_size must be a whole number, got 1.5"),
        (FedSGD, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (FedSGD, {"unroll": 0}, "unroll must be at least 1, got 0"),
        (FedAvg, {"update_penalty": -1.0}, "update_penalty must be .* at least 0, got -1.0"),
        (FedAvg, {"update_penalty": math.nan}, "update_penalty must be .* got nan"),
        (FedAvg, {"rows": "text"}, "rows must be one of stream, texts, got 'text'"),
        (FedAvg, {"shuffle": 1}, "shuffle must be true or false, got 1"),
        (FedAvg, {"clip_each_step": "no"}, "clip_each_step must be true or false, got 'no'"),
    ],
)
def test_bad_fields_are_named(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**({"learning_rate": 1.0} | fields))


def test_a_stretch_is_some_tokens_in_a_row_from_anywhere_in_the_text():
    tokens = np.arange(40)
    starts = []
    for number in range(400):
        some = stretch(tokens, 10, stream(f"user {number}"))
        assert (np.diff(some) == 1).all()
        assert len(some) == 10
        starts.append(int(some[0]))
    counts = np.bincount(starts, minlength=31)
    assert len(counts) == 31  # from the first to the last that fits
    expected = 400 / 31
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared, 30 degrees: p = 0.001


def test_a_short_text_and_no_limit_draw_nothing():
    one, other = stream("user"), stream("user")
    assert stretch(USER, None, one) is USER
    assert stretch(USER, len(USER), one) is USER
    assert one.uniform(1) == other.uniform(1)
