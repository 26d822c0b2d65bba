"""Many users at once give what one after the other gives, to rounding, and keep to themselves."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.engines.engine import SerialEngine
from tacit.engines.vectorized import VectorizedEngine
from tacit.federated.cohort import user_result
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.kernels.sampled_softmax import SampledSoftmax
from tacit.kernels.stacked import StackedModel
from tacit.mechanisms.clipping import PerLayerClip
from tacit.models.base import layer_sizes
from tacit.models.registry import NAMES, build
from tests.engines.cohorts import PLAN, USERS, job_of
from tests.federated.tiny import SIZES, VOCABULARY, ListedUsers, plan, small, task, texts

FEDAVG = FedAvg(learning_rate=0.5, batch_size=2, unroll=4)
UPDATES = {
    "fedavg": FEDAVG,
    "greedy": dataclasses.replace(FEDAVG, clip_each_step=True),
    "penalty": dataclasses.replace(FEDAVG, update_penalty=0.3),
    "epochs": dataclasses.replace(FEDAVG, local_epochs=3, shuffle=True, batch_size=3),
    "texts": dataclasses.replace(FEDAVG, rows="texts", unroll=5),
    "fedsgd": FedSGD(learning_rate=0.5, unroll=4),
    "fedsgd batch": FedSGD(learning_rate=0.5, unroll=4, batch_size=3),
}


def engine_for(model, one_task, users_at_once):
    """An engine with a budget for so many users and most of another."""
    enough = VectorizedEngine(model)
    enough.users_at_once(one_task)
    [each] = enough._bytes_per_user.values()
    return VectorizedEngine(model, memory_bytes=each * (users_at_once + 1) - 1)


def by_user(engine, one_task, job, users):
    """Updates by user, who are told apart by their order in a cohort of one."""
    return [next(engine.results(one_task, job, [user]))[1] for user in users]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", NAMES)
def test_sum_is_that_of_serial(name, update):
    """All built-in models, projected or not, with users of all sizes and with none."""
    model = small(name, unit_norm=update != "penalty", output_bias=update == "texts")
    one_task, job = task(PLAN, UPDATES[update], USERS), job_of(model)
    found = engine_for(model, one_task, 3).sum(one_task, job, range(7))
    expected = SerialEngine(local_sgd_for(model)).sum(one_task, job, range(7))
    step = PLAN.grid(job.clip_state).step
    assert np.abs((found.total.update - expected.total.update) * step).max() < 1e-5
    assert found.total.weight == expected.total.weight
    figures = [dataclasses.asdict(summed.diagnostics) for summed in (found, expected)]
    if update == "greedy":  # ends on the bound itself, so that rounding decides about these
        figures = [each | {"clipped": 0} for each in figures]
    else:
        assert np.array_equal(found.total.bits, expected.total.bits)
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)


@pytest.mark.parametrize("update", ["epochs", "fedsgd"])
@pytest.mark.parametrize("users_at_once", range(1, 9))
def test_any_number_at_once_gives_every_user_its_update(users_at_once, update):
    model = small()
    one_task, job = task(PLAN, UPDATES[update], USERS), job_of(model)
    engine = engine_for(model, one_task, users_at_once)
    assert engine.users_at_once(one_task) == users_at_once
    sgd = local_sgd_for(model)
    expected = [user_result(one_task, job, user, sgd) for user in range(7)]
    results = dict(engine.results(one_task, job, range(7)))
    assert sorted(results) == list(range(7))
    for user, found in results.items():
        assert np.abs(found.update - expected[user].update).max() < 1e-5
        assert (found.examples, found.steps) == (expected[user].examples, expected[user].steps)
        assert found.loss == pytest.approx(expected[user].loss, rel=1e-4)


@pytest.mark.parametrize("update", ["fedavg", "epochs", "greedy", "penalty", "fedsgd"])
@pytest.mark.parametrize("name", ["lstm", "transformer-14m"])
def test_bits_of_a_user_do_not_depend_on_the_others(name, update):
    """Design rule 8 to the last bit: neither on who is trained beside it, nor on its place."""
    model = small(name)
    one_task, job = task(PLAN, UPDATES[update], USERS), job_of(model)
    engine = engine_for(model, one_task, 3)
    [(_, alone)] = engine.results(one_task, job, [2])
    for cohort in ([0, 2], [2, 3, 0], [1, 3, 2, 0], [6, 6, 6, 6, 2], [3, 4, 5, 2]):
        found = [result.update.tobytes() for _, result in engine.results(one_task, job, cohort)]
        assert alone.update.tobytes() in found


class Loud(nn.Module):
    """A model in which one token spoils everything."""

    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size) / 4)

    def forward(self, tokens):
        return self.table[tokens] * torch.where(tokens == 28, math.inf, 1.0).unsqueeze(-1)


@pytest.mark.parametrize("update", ["fedavg", "greedy", "epochs", "penalty", "fedsgd"])
def test_user_who_breaks_the_numbers_counts_as_nothing_and_leaves_others_alone(update):
    model = build(f"{__name__}:Loud", VOCABULARY, seed=3)
    quiet = [texts(4, seed) % 28 for seed in range(4)]
    loud = np.array([0, 3, 28, 4, 1, 0, 28, 28, 1, 0, 2, 3], np.uint16)
    users = ListedUsers((loud, *quiet, loud), tuple("laabbl"))
    one_task, job = task(PLAN, UPDATES[update], users), job_of(model)
    engine = engine_for(model, one_task, 2)
    found = engine.sum(one_task, job, range(6))
    expected = engine.sum(one_task, job, [1, 2, 3, 4])
    weight = 2 * PLAN.weighting.weigh(int((loud[1:] != 0).sum()))
    assert np.array_equal(found.total.update, expected.total.update)
    assert found.total.weight == expected.total.weight + weight
    assert (found.diagnostics.users, found.diagnostics.not_finite) == (6, 2)
    serial = SerialEngine(AutogradSGD(model)).sum(one_task, job, range(6))
    step = PLAN.grid(job.clip_state).step
    assert np.abs((found.total.update - serial.total.update) * step).max() < 1e-5


def test_place_is_new_to_its_next_user():
    """With one place, each follows on another: nothing of the one before may be left."""
    model = small()
    one_task, job = task(PLAN, UPDATES["epochs"], USERS), job_of(model)
    engine = engine_for(model, one_task, 1)
    together = [one for _, one in engine.results(one_task, job, [3, 4, 0, 2])]
    for one, alone in zip(together, by_user(engine, one_task, job, [3, 4, 0, 2]), strict=True):
        assert one.update.tobytes() == alone.update.tobytes()
        assert one.loss == alone.loss


def test_fedsgd_takes_a_large_batch_in_pieces(monkeypatch):
    model = small("gru")
    one_task, job = task(PLAN, UPDATES["fedsgd"], USERS), job_of(model)
    [(_, whole)] = VectorizedEngine(model).results(one_task, job, [3])
    monkeypatch.setattr("tacit.engines.vectorized.LARGEST_PIECE", 2)
    [(_, pieces)] = VectorizedEngine(model).results(one_task, job, [3])
    assert np.abs(whole.update - pieces.update).max() < 1e-6
    assert whole.loss == pytest.approx(pieces.loss)
    assert whole.steps == pieces.steps == 1


def test_per_layer_clipping_and_weight_aware_plans_are_the_plans_own():
    model = small()
    layers = layer_sizes(model)
    one_plan = plan(clipper=PerLayerClip.even(0.2, len(layers)), layers=layers)
    one_task = task(one_plan, UPDATES["greedy"], USERS)
    job = dataclasses.replace(job_of(model), clip_state=one_plan.initial_clip_state())
    found = VectorizedEngine(model).sum(one_task, job, range(7))
    expected = SerialEngine(local_sgd_for(model)).sum(one_task, job, range(7))
    step = one_plan.grid(job.clip_state).step
    assert np.abs((found.total.update - expected.total.update) * step).max() < 1e-5


def test_nobody_adds_up_to_nothing():
    model = small()
    one_task = task(PLAN, FEDAVG, USERS)
    found = VectorizedEngine(model).sum(one_task, job_of(model), [])
    assert not found.total.update.any()
    assert found.diagnostics.users == 0


def test_progress_counts_every_user_once():
    model, seen = small(), []
    one_task = task(PLAN, FEDAVG, USERS)
    engine_for(model, one_task, 2).sum(one_task, job_of(model), range(7), seen.append)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_memory_is_shared_by_as_many_users_as_fit_and_a_cohort_needs():
    model = small()
    one_task = task(PLAN, FEDAVG, USERS)
    each = StackedModel(model, torch.device("cpu")).bytes_per_user(2, 4)
    for budget, expected in (
        (each, 1),
        (2 * each - 1, 1),
        (2 * each, 2),
        (10**12, math.ceil(PLAN.expected_cohort)),
    ):
        assert VectorizedEngine(model, memory_bytes=budget).users_at_once(one_task) == expected
    with pytest.raises(
        ValueError, match=f"memory_bytes must be at least {each}, .* got {each - 1}"
    ):
        VectorizedEngine(model, memory_bytes=each - 1).sum(one_task, job_of(model), [0])

    everything = dataclasses.replace(FEDAVG, batch_size=10**9)
    with pytest.raises(ValueError, match=r"with batches of 1000000000 rows"):
        VectorizedEngine(model).sum(task(PLAN, everything, USERS), job_of(model), [0])


def test_kernel_says_how_it_was_computed():
    model = small()
    kernel = VectorizedEngine(model).kernel
    assert kernel == f"torch {torch.__version__}, vectorized on cpu"
    assert kernel != SerialEngine(local_sgd_for(model)).kernel


def test_model_of_the_callers_is_left_alone():
    model = small()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    one_task = task(PLAN, FEDAVG, USERS)
    VectorizedEngine(model).sum(one_task, job_of(model), range(7))
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert all(values.grad is None for values in model.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "abacus"}, "device must be one that torch has here, got 'abacus'"),
        ({"memory_bytes": 0}, "memory_bytes must be at least 1, got 0"),
        ({"memory_bytes": 1e9}, "memory_bytes must be a whole number, got 1000000000.0"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        VectorizedEngine(small(), **fields)


def test_weights_and_tokens_that_do_not_fit_are_refused():
    model = small()
    engine, job = VectorizedEngine(model), job_of(model)
    one_task = task(PLAN, FEDAVG, USERS)
    with pytest.raises(ValueError, match=r"weights must be one flat vector of \d+ values"):
        engine.sum(one_task, dataclasses.replace(job, weights=job.weights[1:]), [0])
    strangers = ListedUsers((np.array([0, VOCABULARY, 1]),))
    with pytest.raises(ValueError, match="must be tokens from 0 to 29, got 0 to 30"):
        engine.sum(task(PLAN, FEDAVG, strangers), job, [0])


def test_sampled_softmax_is_refused():
    model, sampled = small(), dataclasses.replace(FEDAVG, sampled_softmax=SampledSoftmax(5))
    with pytest.raises(ValueError, match=r"no sampled softmax; leave out update\.sampled_neg"):
        VectorizedEngine(model).sum(task(PLAN, sampled, USERS), job_of(model), [0])


def test_sizes_are_those_of_the_tests():
    assert set(SIZES) == set(NAMES)
