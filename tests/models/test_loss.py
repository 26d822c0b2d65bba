import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.base import loss


@st.composite
def batches(draw):
    batch, steps, vocabulary = (draw(st.integers(1, 4)) for _ in range(3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return (
        torch.from_numpy(generator.normal(scale=5, size=(batch, steps, vocabulary))),
        torch.from_numpy(generator.integers(vocabulary, size=(batch, steps))),
        torch.from_numpy(generator.random((batch, steps)) < 0.6),
    )


@given(batches())
def test_loss_is_the_sum_of_surprises_where_the_mask_is_true(case):
    logits, targets, mask = case
    expected, count = 0.0, 0
    for row, column in np.argwhere(mask.numpy()):
        scores = logits[row, column].tolist()
        normaliser = math.log(math.fsum(map(math.exp, scores)))
        expected += normaliser - scores[targets[row, column]]
        count += 1
    total, positions = loss(logits, targets, mask)
    assert total.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert positions.item() == count


@given(batches())
def test_without_a_mask_every_position_counts(case):
    logits, targets, _ = case
    total, count = loss(logits, targets)
    assert count.item() == targets.numel()
    assert total.item() == loss(logits, targets, torch.ones_like(targets).bool())[0].item()


@given(batches(), st.sampled_from([0.0, 1e30, -1e30]), st.sampled_from([-1, 10**9]))
def test_what_is_masked_reaches_neither_loss_nor_gradient(case, value, target):
    logits, targets, mask = case
    expected = loss(logits, targets, mask)[0]
    spoilt = logits.clone()
    spoilt[~mask] = value
    spoilt.requires_grad_()
    total, _ = loss(spoilt, targets.masked_fill(~mask, target), mask)
    total.backward()
    assert total.item() == expected.item()
    assert (spoilt.grad[~mask] == 0).all()
    assert torch.isfinite(spoilt.grad).all()


def test_nothing_to_count_has_loss_zero():
    total, count = loss(torch.zeros(2, 3, 4), torch.zeros(2, 3).long(), torch.zeros(2, 3).bool())
    assert (total.item(), count.item()) == (0.0, 0)


def test_uniform_logits_cost_the_log_of_the_vocabulary():
    total, count = loss(torch.zeros(2, 3, 10_000), torch.zeros(2, 3).long())
    assert (total / count).item() == pytest.approx(math.log(10_000))


def test_shapes_and_masks_that_do_not_fit_are_refused():
    logits, targets = torch.zeros(2, 3, 4), torch.zeros(2, 3).long()
    with pytest.raises(ValueError, match=r"targets must have the shape \[2, 3\]"):
        loss(logits, targets[:, :2])
    with pytest.raises(ValueError, match=r"mask must have the shape .* got .*float32"):
        loss(logits, targets, torch.ones(2, 3))
    with pytest.raises(ValueError, match="mask must have the shape"):
        loss(logits, targets, torch.ones(3).bool())
