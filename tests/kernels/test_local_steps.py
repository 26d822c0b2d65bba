"""What every kind of local steps has to keep to: many at once, the update, the anchor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.local_sgd import AutogradSGD
from tacit.kernels.rows import Batch, TokenRows, rows_of
from tacit.kernels.sampled_softmax import Candidates, CandidateSGD
from tacit.models.base import to_vector
from tests.federated.tiny import BOS, EOS, VOCABULARY, small, texts

WORDS = np.r_[BOS, EOS, 2:VOCABULARY:2]
CANDIDATES = Candidates(WORDS, np.linspace(0, 1, len(WORDS), dtype=np.float32))
KINDS = {
    "autograd": AutogradSGD,
    "torch": lambda model: HandwrittenSGD(model, "torch"),
    "fastest": HandwrittenSGD,
    "candidates": lambda model: CandidateSGD(HandwrittenSGD(model), CANDIDATES),
    "candidates, autograd": lambda model: CandidateSGD(AutogradSGD(model), CANDIDATES),
}


def batches(seed=3, size=2):
    """More of them than are made ready at once, of words that are candidates."""
    tokens = texts(100, seed)
    tokens[tokens > 1] += tokens[tokens > 1] % 2
    made = rows_of(np.minimum(tokens, 28), unroll=4, bos=BOS, layout="texts")
    return [made.take(slice(first, first + size)) for first in range(0, len(made), size)]


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=[False, True], ids=["tied", "with a bias"])
def model(request):
    return small("lstm", output_bias=request.param)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_many_steps_are_one_after_the_other_bit_for_bit(kind, model, penalty):
    start, every = to_vector(model), batches()
    assert len(every) > 64
    together, apart = kind(model), kind(model)
    together.load(start)
    apart.load(start)
    taken = list(together.steps(iter(every), 0.2, penalty=penalty))
    assert taken == [(apart.step(rows, 0.2, penalty=penalty), rows.examples) for rows in every]
    assert together.weights().tobytes() == apart.weights().tobytes()
    assert np.abs(together.update()).max() > 1e-2


def test_theta_may_be_replaced_between_two_of_many_steps(kind, model):
    start, every = to_vector(model), batches()[:3]
    found = []
    for replaced in (True, False):
        local = kind(model)
        local.load(start)
        for done, _ in enumerate(local.steps(every, 0.2)):
            if replaced and done < 2:
                local.set_weights(start)
        found.append(local.weights())
    once = kind(model)
    once.load(start)
    once.step(every[2], 0.2)
    assert np.abs(found[0] - once.weights()).max() < 1e-6  # a bias is corrected and back
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_update_is_the_difference_from_what_was_loaded(kind, model):
    start, other = to_vector(model), to_vector(small("lstm", output_bias=True))
    local = kind(model)
    local.load(start)
    list(local.steps(batches()[:4], 0.2))
    assert np.abs(local.update() - (local.weights() - start)).max() < 1e-6
    assert np.abs(local.update()).max() > 1e-2
    local.set_weights(start + np.resize(other, start.shape))
    assert np.abs(local.update() - np.resize(other, start.shape)).max() < 1e-6


def test_update_is_a_vector_of_its_own(kind, model):
    local = kind(model)
    local.load(to_vector(model))
    local.step(batches()[0], 0.2)
    update = local.update()
    before = update.copy()
    local.step(batches()[1], 0.2)
    np.testing.assert_array_equal(update, before)


def test_words_that_are_no_candidates_have_an_update_of_zero(model):
    local = KINDS["candidates"](model)
    local.load(to_vector(model))
    list(local.steps(batches()[:4], 0.2))
    table = local.update()[: VOCABULARY * 6].reshape(VOCABULARY, 6)
    moved = np.flatnonzero(np.abs(table).max(axis=1))
    np.testing.assert_array_equal(moved, CANDIDATES.words)


def test_the_penalty_pulls_towards_what_was_loaded_last(kind, model):
    start, every = to_vector(model), batches()[:5]
    used, fresh = kind(model), kind(model)
    used.load(start * 2)
    list(used.steps(every, 0.2, penalty=0.5))
    for local in (used, fresh):
        local.load(start)
        list(local.steps(every, 0.2, penalty=0.5))
    assert used.update().tobytes() == fresh.update().tobytes()
    fresh.load(start)
    list(fresh.steps(every, 0.2))
    assert np.abs(used.update() - fresh.update()).max() > 1e-3


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_batch_has_time_first_and_only_what_counts(counted):
    mask = torch.tensor(counted)
    tokens = torch.arange(mask.numel()).view(mask.shape)
    batch = Batch.of(TokenRows(tokens, tokens + 1, mask), 100)
    columns = [t for t in range(5) if mask[:, t].any()]
    steps = columns[-1] + 1 if columns else 0
    order = [(row, t) for t in range(steps) for row in range(len(mask))]
    assert (batch.rows, batch.steps) == (len(mask), steps)
    assert batch.inputs.tolist() == [int(tokens[at]) for at in order]
    assert batch.targets.tolist() == [int(tokens[at]) + 1 for at in order if mask[at]]
    positions = [index for index, at in enumerate(order) if mask[at]]
    assert (batch.positions is None) == bool(mask.all())
    assert batch.positions is None or batch.positions.tolist() == positions


def test_tokens_of_another_type_are_refused():
    tokens = torch.ones(2, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match="inputs must be int64, got int32"):
        Batch.of(TokenRows(tokens, tokens, torch.ones(2, 3, dtype=torch.bool)), 10)
