"""The hand-written step against autograd in float64, for all models, shapes and masks it serves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels import handwritten as kernel
from tacit.kernels import torch_step
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.kernels.rows import TokenRows
from tacit.models.base import to_vector
from tacit.models.registry import build

KINDS = ("lstm", "cifg", "gru")

pytestmark = pytest.mark.parametrize("form", ["torch", "c++"], scope="module")


@pytest.fixture(autouse=True)
def only_what_can_be_built(form):
    if form == "c++" and kernel.built_kernel() is None:
        pytest.skip("no compiler")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


def model_of(kind="lstm", vocab_size=23, *, embedding_size=6, cells=10, **options):
    return build(kind, vocab_size, embedding_size=embedding_size, cells=cells, **options)


def weights_of(model, seed=0, scale=0.1):
    """Its initial weights moved, so that no bias is zero and no row has unit norm."""
    start = to_vector(model)
    return start + np.random.default_rng(seed).normal(0, scale, len(start)).astype(np.float32)


def rows_of(vocab_size, rows=3, steps=4, *, seed=0, kept=1.0):
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randint(vocab_size, (2, rows, steps), generator=generator)
    return TokenRows(inputs, targets, torch.rand(rows, steps, generator=generator) < kept)


def assert_same_steps(form, model, batches, learning_rate=1.0, *, start=None, **options):
    """Both forms move as autograd in float64 does, to 1e-5 of the movement."""
    start = weights_of(model) if start is None else start
    exact, fast = AutogradSGD(build(model.config).double()), HandwrittenSGD(model, form)
    exact.load(start)
    fast.load(start)
    for batch in batches:
        expected = exact.step(batch, learning_rate, **options)
        found = fast.step(batch, learning_rate, **options)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6 * batch.mask.numel())
        wanted, found = exact.weights(), fast.weights()
        # Weights themselves are rounded to float32, whatever the gradient is.
        allowed = 1e-5 * np.abs(wanted - start).max() + 1e-6 * np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=allowed)


@given(
    kind=st.sampled_from(KINDS),
    vocab_size=st.integers(1, 70),
    embedding_size=st.integers(1, 35),
    cells=st.integers(1, 35),
    shape=st.tuples(st.integers(1, 19), st.integers(1, 12)),
    kept=st.sampled_from([0.1, 0.5, 1.0]),
    unit_norm=st.booleans(),
    output_bias=st.booleans(),
    penalty=st.sampled_from([0.0, 0.25]),
    project=st.booleans(),
    seed=st.integers(0, 9),
)
def test_steps_are_those_of_autograd(
    form, kind, vocab_size, embedding_size, cells, shape, kept, penalty, project, seed, **options
):
    model = model_of(kind, vocab_size, embedding_size=embedding_size, cells=cells, **options)
    first = rows_of(vocab_size, *shape, seed=seed, kept=kept)
    second = rows_of(vocab_size, 2, 3, seed=seed + 1)
    assert_same_steps(form, model, [first, second, first], penalty=penalty, project=project)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_autograd_at_the_papers_sizes(form, kind):
    model = build(kind, 10_000)
    batches = [rows_of(10_000, 8, 10, seed=seed) for seed in range(2)]
    assert_same_steps(form, model, batches, learning_rate=6.0, start=to_vector(model))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softmax", [1000, 2**24])
def test_steps_are_those_of_autograd_for_many_rows(form, monkeypatch, kind, softmax):
    monkeypatch.setattr(torch_step, "LARGEST_SOFTMAX", softmax)
    model = model_of(kind, 211, embedding_size=24, cells=16, output_bias=True)
    batches = [rows_of(211, 67, 11), rows_of(211, 101, 7, kept=0.9)]
    assert_same_steps(form, model, batches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [0.0, 0.25])
def test_a_softmax_too_large_to_keep_is_computed_in_parts(form, monkeypatch, kind, penalty):
    monkeypatch.setattr(torch_step, "LARGEST_SOFTMAX", 100)
    model = model_of(kind, 23, output_bias=True)
    assert_same_steps(form, model, [rows_of(23), rows_of(23, kept=0.5)], penalty=penalty)


@pytest.mark.parametrize("size", [60.0, 300.0, -300.0, 1e4])
@pytest.mark.parametrize("softmax", [100, 2**24])
def test_logits_beyond_the_range_of_exponentials_are_no_trouble(form, monkeypatch, size, softmax):
    monkeypatch.setattr(torch_step, "LARGEST_SOFTMAX", softmax)
    model = model_of(output_bias=True, unit_norm=False)
    start = weights_of(model)
    start[23 * 6 : 23 * 7] += size  # the output bias: the softmax does not change
    start[23 * 6] += size / 10
    assert_same_steps(form, model, [rows_of(23)], 0.1, start=start)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_finite_stay_so_and_leave_no_trace(form, kind, bad):
    model = model_of(kind)
    start, batch = weights_of(model), rows_of(23)
    clean, used = HandwrittenSGD(model, form), HandwrittenSGD(model, form)
    broken = start.copy()
    broken[:: len(start) // 7] = bad
    used.load(broken)
    used.step(batch, 1.0)
    assert not np.isfinite(used.weights()).all()
    for sgd in (clean, used):
        sgd.load(start)
        sgd.step(batch, 1.0)
    assert clean.weights().tobytes() == used.weights().tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_same_bits_whatever_ran_before(form, kind):
    model = model_of(kind, output_bias=True)
    start, batch = weights_of(model), rows_of(23, 5, 7, kept=0.7)
    clean, used = HandwrittenSGD(model, form), HandwrittenSGD(model, form)
    used.load(weights_of(model, seed=1, scale=3.0))
    for seed in range(40):  # more shapes than are kept
        used.step(rows_of(23, 1 + seed % 7, 1 + seed % 9, seed=seed, kept=0.6), 3.0, penalty=0.1)
    used.step(rows_of(23, 5, 7, seed=99), 3.0)
    losses = []
    for sgd in (clean, used):
        sgd.load(start)
        losses.append(sgd.step(batch, 1.0, penalty=0.1))
    assert losses[0] == losses[1]
    assert clean.weights().tobytes() == used.weights().tobytes()


def test_without_a_target_that_counts_only_the_penalty_acts(form):
    model = model_of(unit_norm=False)
    start, other = weights_of(model), weights_of(model, seed=1)
    empty = rows_of(23, kept=0.0)
    sgd = HandwrittenSGD(model, form)
    sgd.load(start)
    sgd.set_weights(other)
    assert sgd.step(empty, 1.0) == 0.0
    np.testing.assert_array_equal(sgd.weights(), other)
    assert sgd.step(empty, 0.5, penalty=0.5) == 0.0
    np.testing.assert_allclose(sgd.weights(), 0.75 * other + 0.25 * start, rtol=0, atol=1e-6)


def test_what_is_masked_may_be_anything(form):
    model, batch = model_of(), rows_of(23, kept=0.5)
    spoilt = TokenRows(batch.inputs, batch.targets.masked_fill(~batch.mask, -100), batch.mask)
    found = []
    for rows in (batch, spoilt):
        sgd = HandwrittenSGD(model, form)
        sgd.load(weights_of(model))
        sgd.step(rows, 1.0)
        found.append(sgd.weights())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("field", ["inputs", "targets"])
@pytest.mark.parametrize("token", [-1, 23])
def test_tokens_outside_of_the_vocabulary_are_refused(form, field, token):
    model, batch = model_of(), rows_of(23)
    getattr(batch, field)[1, 2] = token
    sgd = HandwrittenSGD(model, form)
    sgd.load(weights_of(model))
    with pytest.raises(ValueError, match=f"{field} must be tokens from 0 to 22"):
        sgd.step(batch, 1.0)
    np.testing.assert_array_equal(sgd.weights(), weights_of(model))


def test_weights_are_a_copy_and_the_model_is_left_alone(form):
    model = model_of()
    before = to_vector(model)
    sgd = HandwrittenSGD(model, form)
    sgd.load(before)
    taken = sgd.weights()
    sgd.step(rows_of(23), 1.0)
    np.testing.assert_array_equal(taken, before)
    np.testing.assert_array_equal(to_vector(model), before)
    assert not np.array_equal(sgd.weights(), before)


def test_rows_of_zeros_and_of_great_length_are_projected_too(form):
    model = model_of("lstm", 23)
    start = weights_of(model)
    start[: 23 * 6].reshape(23, 6)[:3] = [[0.0] * 6, [1e-20] * 6, [1e18] * 6]
    anchored = HandwrittenSGD(model, form)
    anchored.load(start)
    anchored.set_weights(np.zeros_like(start))
    anchored.step(rows_of(23), 1e-30, penalty=1e30)  # all the way back to the anchor
    norms = np.linalg.norm(anchored.weights()[: 23 * 6].reshape(23, 6).astype(float), axis=1)
    np.testing.assert_allclose(norms[1:], 1, rtol=1e-6)
    assert norms[0] <= 1 + 1e-6


def test_weights_of_another_size_are_refused(form):
    with pytest.raises(ValueError, match="weights must be one flat vector"):
        HandwrittenSGD(model_of(), form).load(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "model",
    [
        model_of(layers=2),
        model_of(context_size=3),
        model_of().double(),
        model_of("lstm-14m"),
        build("transformer-14m", 23, embedding_size=8, heads=2, feed_forward=12, layers=1),
    ],
    ids=["layers", "context", "float64", "stacked", "transformer"],
)
def test_other_models_are_left_to_autograd(form, model):
    assert not HandwrittenSGD.serves(model)
    assert isinstance(local_sgd_for(model), AutogradSGD)
    with pytest.raises(ValueError, match="model must be an LSTM, CIFG or GRU of one layer"):
        HandwrittenSGD(model, form)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_are_served_are_served(form, kind):
    assert HandwrittenSGD.serves(model_of(kind, output_bias=True, unit_norm=False))
    assert isinstance(local_sgd_for(model_of(kind)), HandwrittenSGD)
