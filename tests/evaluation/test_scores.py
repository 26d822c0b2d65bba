"""Ranks are counted, and are what sorting would give, ties included."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.evaluation.scoring import top_k
from tacit.kernels.scoring import log_probs_and_ranks
from tests.oracles import scoring

# Few distinct values, so that ties are common.
TIED_LOGITS = st.tuples(st.integers(1, 6), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.sampled_from([-1.5, 0.0, 0.5, 2.0]))
)


@given(TIED_LOGITS, st.data())
def test_rank_and_log_probability_equal_a_full_sort(logits, data):
    rows, size = logits.shape
    targets = data.draw(st.lists(st.integers(0, size - 1), min_size=rows, max_size=rows))
    never = data.draw(st.none() | st.integers(0, size - 1))
    log_probs, ranks, of_all = log_probs_and_ranks(
        torch.from_numpy(logits), torch.tensor(targets), never
    )
    for row, target in enumerate(targets):
        order = scoring.order(logits[row].tolist())
        assert of_all[row] == order.index(target)
        assert ranks[row] == [t for t in order if t == target or t != never].index(target)
        expected = scoring.log_softmax(logits[row].tolist())[target]
        assert math.isclose(log_probs[row], expected, abs_tol=1e-6)


@given(TIED_LOGITS, st.integers(1, 14))
def test_top_k_is_the_head_of_a_full_sort(logits, k):
    found = top_k(torch.from_numpy(logits), k)
    for row, values in enumerate(logits.tolist()):
        assert found[row].tolist() == scoring.order(values)[:k]


def test_a_row_with_nan_predicts_nothing():
    logits = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 2.0, 1.0]])
    log_probs, ranks, _ = log_probs_and_ranks(logits, torch.tensor([2, 1]))
    assert log_probs[0] == -math.inf
    assert ranks.tolist() == [2, 0]


def test_a_token_of_probability_zero_is_last():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]])
    log_probs, ranks, _ = log_probs_and_ranks(logits, torch.tensor([1]))
    assert log_probs.item() == -math.inf
    assert ranks.item() == 2
