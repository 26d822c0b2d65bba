"""Several users' weights at once: each row as autograd alone would have it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tacit.kernels.stacked import StackedModel
from tacit.models.base import from_vector_, layer_sizes, to_vector
from tacit.models.base import loss as summed_loss
from tacit.models.registry import NAMES, build
from tests.federated.tiny import VOCABULARY, small

CPU = torch.device("cpu")


def users(model, count=3):
    """Weights, batches and numbers of targets; the second user has nothing that counts."""
    generator = torch.Generator().manual_seed(2)
    theta = torch.from_numpy(to_vector(model)).repeat(count, 1)
    theta += 0.05 * torch.randn(theta.shape, generator=generator)
    inputs, targets = torch.randint(VOCABULARY, (2, count, 2, 5), generator=generator)
    mask = torch.rand((count, 2, 5), generator=generator) < 0.7
    mask[1] = False
    return theta, (inputs, targets, mask), mask.sum((1, 2)).clamp(min=1).float()


@pytest.mark.parametrize("shared", [False, True], ids=["own-point", "one-point"])
@pytest.mark.parametrize("name", NAMES)
def test_descent_of_each_user_is_that_of_autograd(name, shared):
    model = small(name, output_bias=True)
    theta, batch, counts = users(model)
    start = torch.from_numpy(to_vector(model))
    moved = theta.clone()
    at = start if shared else None
    losses = StackedModel(model, CPU).descend_(moved, batch, counts, 0.5, at=at, pull=(start, 0.2))
    for user, (before, after) in enumerate(zip(theta, moved, strict=True)):
        one = copy.deepcopy(model).double()
        from_vector_(one, (start if shared else before).double().numpy())
        inputs, targets, mask = (part[user] for part in batch)
        total, _ = summed_loss(one(inputs)[0], targets, mask)
        gradients = torch.autograd.grad(total / counts[user], list(one.parameters()))
        slope = torch.cat([gradient.flatten() for gradient in gradients])
        expected = 0.8 * before.double() + 0.2 * start.double() - 0.5 * slope
        assert (after - expected).abs().max() < 1e-5
        assert float(losses[user]) == pytest.approx(float(total.detach()), rel=1e-5)


@pytest.mark.parametrize("unit_norm", [False, True])
def test_projection_is_that_of_each_user(unit_norm):
    model = small("gru", unit_norm=unit_norm)
    theta, _, _ = users(model)
    theta[2, :6] = 0  # a row of zeros has no direction
    projected = theta.clone()
    StackedModel(model, CPU).project_(projected)
    for before, after in zip(theta, projected, strict=True):
        one = copy.deepcopy(model)
        from_vector_(one, before.numpy())
        one.normalise_()
        assert np.array_equal(to_vector(one), after.numpy())


def test_estimate_of_memory_grows_as_weights_and_batches_do():
    """Seven times the weights, the logits a few times over, and all that is in between."""
    model = build("lstm", 1000)
    stacked = StackedModel(model, CPU)
    weights, logits = 4 * sum(layer_sizes(model)), 4 * 80 * 1000
    found = stacked.bytes_per_user(8, 10)
    assert 7 * weights + 3 * logits < found < 10 * weights + 8 * logits
    more = stacked.bytes_per_user(16, 10) - found
    assert 3 * logits < more < weights + 8 * logits


class Counting(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens):
        self.calls = self.calls + 1
        return self.table[tokens]


class Peeking(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size))

    def forward(self, tokens):
        return self.table[tokens] * (1 if self.table.sum().item() > 0 else 2)


REFUSED = {
    "dropout": (lambda: small("transformer-14m", dropout=0.1), "draws at random, as dropout does"),
    "buffer": (lambda: build(f"{__name__}:Counting", 30), "a buffer of it changes"),
    "item": (lambda: build(f"{__name__}:Peeking", 30), "item"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_mapped_over_users_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=rf"cannot be trained by the vectorized .*{message}"):
        StackedModel(make(), CPU)
