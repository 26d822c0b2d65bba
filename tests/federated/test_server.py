"""Server optimizers against torch's own."""

import math

import numpy as np
import pytest
import torch

from tacit.federated.server import ServerAdam, ServerMomentum, ServerSGD, normalised
from tacit.models.base import to_vector
from tests.federated.tiny import small

SIZE, ROUNDS = 50, 30

PAIRS = {
    "sgd": (ServerSGD(0.7), lambda p: torch.optim.SGD(p, lr=0.7)),
    "momentum": (ServerMomentum(0.7, 0.8), lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.8)),
    "nesterov": (
        ServerMomentum(0.7, 0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.8, nesterov=True),
    ),
    "adam": (ServerAdam(0.02), lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.9, 0.99), eps=1e-3)),
    "adam-kingma": (
        ServerAdam(0.02, 0.8, 0.999, 1e-8),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.999), eps=1e-8),
    ),
}
pairs = pytest.mark.parametrize("name", list(PAIRS))


def averages():
    random = np.random.default_rng(0)
    return [random.normal(0.3, 1, SIZE) * 10.0 ** random.integers(-4, 1) for _ in range(ROUNDS)]


def start():
    return np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


@pairs
def test_rounds_agree_with_torch_given_the_average_as_negative_gradient(name):
    ours, theirs = PAIRS[name]
    weights, state = start(), ours.initial(SIZE)
    parameter = torch.nn.Parameter(torch.from_numpy(start()).double())
    optimizer = theirs([parameter])
    for average in averages():
        weights, state = ours.apply(weights, average, state)
        parameter.grad = -torch.from_numpy(average)
        optimizer.step()
        assert weights == pytest.approx(parameter.detach().numpy(), abs=2e-6, rel=2e-6)


@pairs
def test_apply_is_pure_and_repeats_every_bit(name):
    ours, _ = PAIRS[name]
    weights, state = start(), ours.initial(SIZE)
    weights, state = ours.apply(weights, averages()[0], state)
    kept = weights.copy(), {key: value.copy() for key, value in state.items()}
    once = ours.apply(weights, averages()[1], state)
    again = ours.apply(weights, averages()[1], state)
    assert np.array_equal(weights, kept[0])
    assert all(np.array_equal(state[key], kept[1][key]) for key in state)
    assert np.array_equal(once[0], again[0])
    assert once[0].dtype == np.float32
    assert once[1].keys() == ours.initial(SIZE).keys()
    for key, initial in ours.initial(SIZE).items():
        assert np.array_equal(once[1][key], again[1][key])
        assert (once[1][key].dtype, once[1][key].shape) == (initial.dtype, initial.shape)


def test_sgd_with_rate_one_adds_the_average():
    weights, _ = ServerSGD().apply(np.ones(2, np.float32), np.array([0.5, -2.0]), {})
    assert weights.tolist() == [1.5, -1.0]


@pairs
def test_average_or_state_of_another_size_is_refused(name):
    ours, _ = PAIRS[name]
    with pytest.raises(ValueError, match="must have the 50 values of the weights, got 1"):
        ours.apply(start(), np.zeros(1), ours.initial(SIZE))
    if ours.initial(SIZE):
        for state in ({}, ours.initial(1)):
            with pytest.raises(ValueError, match="the optimizer's state must have"):
                ours.apply(start(), np.zeros(SIZE), state)


@pytest.mark.parametrize("unit_norm", [True, False])
def test_normalised_is_the_models_own_restriction(unit_norm):
    model = small(unit_norm=unit_norm)
    weights = to_vector(model) * 3
    back = normalised(model, weights)
    size = model.embedding.weight.numel()
    assert np.array_equal(back[size:], weights[size:])
    assert back[:size] == pytest.approx(weights[:size] / (3 if unit_norm else 1), abs=1e-6)
    assert np.array_equal(to_vector(model), back)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServerSGD(0), "learning_rate must be a finite number above 0, got 0"),
        (lambda: ServerSGD(math.nan), "learning_rate must be .* got nan"),
        (lambda: ServerMomentum(1.0, 1.0), "momentum must be at least 0 and below 1, got 1.0"),
        (lambda: ServerMomentum(nesterov=1), "nesterov must be true or false, got 1"),
        (lambda: ServerAdam(0.1, beta1=math.nan), "beta1 must be at least 0 and below 1, got nan"),
        (lambda: ServerAdam(0.1, beta2=-0.1), "beta2 must be at least 0 and below 1, got -0.1"),
        (lambda: ServerAdam(0.1, stabiliser=0), "stabiliser must be .* above 0, got 0"),
    ],
)
def test_bad_fields_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
