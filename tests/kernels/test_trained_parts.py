"""Models of which some parameters are frozen: every kind of local steps, against plain autograd."""

import copy

import numpy as np
import pytest
import torch

from tacit.engines.vectorized import VectorizedEngine
from tacit.federated.cohort import sum_over
from tacit.federated.server import normalised
from tacit.federated.user_update import FedAvg
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.kernels.rows import rows_of
from tacit.models.base import (
    from_vector_,
    frozen_kept,
    layer_sizes,
    loss,
    to_vector,
    train_only,
    trained_ranges,
    whole_vector,
)
from tests.federated.tiny import BOS, few_users, job, plan, small, task, texts

FORMS = {
    "autograd": AutogradSGD,
    "torch": lambda model: HandwrittenSGD(model, "torch"),
    "fastest": local_sgd_for,
}
TRAINED = [
    ("layers", "projection"),
    ("embedding",),
    ("embedding.output_bias",),
    ("embedding.output_bias", "projection"),
    ("projection.bias",),
    ("layers",),
    ("layers.0.forget_kernel",),
    ("embedding.weight", "projection.weight"),
]
FEDAVG = FedAvg(learning_rate=0.5, batch_size=2, unroll=4)
ROWS = rows_of(texts(6, seed=5), unroll=4, bos=BOS, layout="stream")


def model_of(trained, kind="lstm", **options):
    model = small(kind, output_bias=True, **options)
    with torch.no_grad():
        model.embedding.output_bias.normal_(generator=torch.Generator().manual_seed(1))
    return train_only(model, trained)


def descended(model, steps, rate, penalty):
    """The trained weights after steps of gradient descent in float64, by autograd."""
    model = copy.deepcopy(model).double()
    parameters = [values for _, values in model.parameter_vectors()]
    start = [values.detach().clone() for values in parameters]
    for _ in range(steps):
        total, count = loss(model(ROWS.inputs)[0], ROWS.targets, ROWS.mask)
        gradients = torch.autograd.grad(total / count, parameters, allow_unused=True)
        with torch.no_grad():
            for values, begun, gradient in zip(parameters, start, gradients, strict=True):
                if gradient is not None:
                    values.sub_(rate * (gradient + penalty * (values - begun)))
            if model.embedding.weight.requires_grad:
                model.normalise_()
    return torch.cat([values.detach().flatten() for values in parameters]).numpy()


@pytest.mark.parametrize("penalty", [0.0, 0.5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trained", TRAINED, ids=str)
def test_steps_are_those_of_autograd_on_the_trained_parameters(trained, form, penalty):
    model = model_of(trained)
    if form == "torch" and not HandwrittenSGD.serves(model):
        pytest.skip("left to autograd")
    before, sgd = whole_vector(model), FORMS[form](model)
    sgd.load(to_vector(model))
    for _ in range(3):
        sgd.step(ROWS, 0.5, penalty=penalty)
    expected = descended(model, 3, 0.5, penalty)
    assert np.abs(sgd.weights() - expected).max() < 1e-5
    assert np.abs(sgd.update() - (expected - to_vector(model))).max() < 1e-5
    assert np.abs(sgd.update()).max() > 1e-3
    frozen = np.ones(len(before), np.bool_)
    for each in sgd.trained:
        frozen[each] = False
    assert sgd.whole(sgd.weights())[frozen].tobytes() == before[frozen].tobytes()
    assert whole_vector(model).tobytes() == before.tobytes()


@pytest.mark.parametrize("kind", ["lstm", "cifg", "gru"])
def test_kernel_and_torch_agree_for_every_layer(kind):
    for trained in TRAINED[:6]:
        model = model_of(trained, kind, unit_norm=False)
        results = []
        for make in (AutogradSGD, FORMS["torch"], HandwrittenSGD):
            sgd = make(model)
            sgd.load(to_vector(model))
            sgd.step(ROWS, 0.5)
            results.append(sgd.weights())
        assert np.abs(np.array(results) - results[0]).max() < 1e-5


def test_all_parts_named_are_the_whole_model_bit_for_bit():
    whole, named = small("lstm"), train_only(small("lstm"), ["embedding", "layers", "projection"])
    updates = []
    for model in (whole, named):
        sgd = local_sgd_for(model)
        sgd.load(to_vector(model))
        sgd.step(ROWS, 0.5)
        updates.append(sgd.update().tobytes())
    assert updates[0] == updates[1]


def test_one_user_leaves_nothing_for_the_next():
    model = model_of(("layers",))
    used, start = local_sgd_for(model), to_vector(model)
    results = []
    for weights in (start, start * 2, start):
        used.load(weights)
        used.step(ROWS, 0.5)
        results.append(used.update().tobytes())
    assert results[0] == results[2] != results[1]


@pytest.mark.parametrize("trained", [("layers", "projection"), ("embedding.output_bias",)])
def test_vectorized_engine_trains_the_same_part(trained):
    model, one_plan = model_of(trained), plan()
    one_task, one_job = task(one_plan, FEDAVG, few_users()), job(model, one_plan)
    users = range(len(few_users()))
    alone = sum_over(one_task, one_job, users, AutogradSGD(model)).total.update
    engine = VectorizedEngine(model)
    together = engine.sum(one_task, one_job, list(users)).total.update
    assert len(together) == len(to_vector(model))
    assert np.abs(together - alone).max() <= 1e-5 * np.abs(alone).max()


# The vector of what is trained.


def test_vector_is_of_what_is_trained():
    model = small("lstm", output_bias=True)
    whole = whole_vector(model)
    assert np.array_equal(whole, to_vector(model))
    assert trained_ranges(model) == (slice(0, len(whole)),)
    train_only(model, ["layers", "embedding.output_bias"])
    ranges = trained_ranges(model)
    assert len(ranges) == 1  # they are neighbours
    assert np.array_equal(np.concatenate([whole[each] for each in ranges]), to_vector(model))
    assert sum(layer_sizes(model)) == len(to_vector(model)) < len(whole)
    from_vector_(model, np.zeros(len(to_vector(model)), np.float32))
    assert not whole_vector(model)[ranges[0]].any()
    assert whole_vector(model)[: ranges[0].start].tobytes() == whole[: ranges[0].start].tobytes()


def test_projection_to_unit_norm_keeps_the_bits_of_a_frozen_embedding():
    model = train_only(small("lstm"), ["layers"])
    with torch.no_grad():
        model.embedding.weight.mul_(3)
    before = whole_vector(model)
    normalised(model, to_vector(model))
    assert whole_vector(model).tobytes() == before.tobytes()
    model.normalise_()  # which by itself does not ask what is frozen
    assert whole_vector(model).tobytes() != before.tobytes()
    with frozen_kept(model):
        pass


@pytest.mark.parametrize("name", ["layer", "layers.0.forget", "embedding.output_bias", ""])
def test_a_name_of_no_parameter_is_refused(name):
    with pytest.raises(ValueError, match=r"model\.trained: there is no parameter .* embedding\.w"):
        train_only(small("lstm"), ["layers", name])


def test_what_a_model_freezes_by_itself_stays_frozen():
    model = small("lstm")
    model.projection.bias.requires_grad_(False)
    train_only(model, ["projection"])
    assert [name for name, _ in model.parameter_vectors()] == ["projection.weight"]
    with pytest.raises(ValueError, match=r"no parameter 'projection\.bias' to train"):
        train_only(model, ["projection.bias"])
