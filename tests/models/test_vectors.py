import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.models.base import from_vector_, layer_sizes, parameter_count, to_vector
from tests.models.small import NAMES, random_tokens, small


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=5)
def test_a_vector_put_into_a_model_comes_out_bit_for_bit(name, seed):
    model = small(name)
    vector = np.random.default_rng(seed).normal(size=parameter_count(model)).astype(np.float32)
    from_vector_(model, vector)
    assert to_vector(model).tobytes() == vector.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_its_vector(name):
    model, other = small(name, seed=1), small(name, seed=2)
    from_vector_(other, to_vector(model))
    tokens = random_tokens(2, 5)
    assert torch.equal(model(tokens)[0], other(tokens)[0])


def test_layer_sizes_cut_the_vector_into_the_parameter_vectors():
    model = small("lstm")
    cuts = np.cumsum(layer_sizes(model))[:-1]
    blocks = np.split(to_vector(model), cuts)
    assert len(blocks) == 11
    for block, (_, values) in zip(blocks, model.parameter_vectors(), strict=True):
        np.testing.assert_array_equal(block, values.detach().numpy().ravel())


def test_the_vector_is_a_copy_in_both_directions():
    model = small("gru")
    vector = to_vector(model)
    vector[:] = 7
    assert not (to_vector(model) == 7).any()
    from_vector_(model, vector)
    vector[:] = 8
    assert (to_vector(model) == 7).all()


def test_a_read_only_float64_vector_is_taken_and_gradients_still_flow():
    model = small("cifg")
    vector = to_vector(model).astype(np.float64)
    vector.setflags(write=False)
    from_vector_(model, vector)
    model(random_tokens(1, 3))[0].sum().backward()
    assert all(values.grad is not None for _, values in model.parameter_vectors())


def test_frozen_parameters_are_left_out():
    model = small("lstm")
    size = model.embedding.weight.numel()
    model.embedding.weight.requires_grad_(False)
    assert len(layer_sizes(model)) == 10
    assert parameter_count(model) == sum(v.numel() for v in model.parameters()) - size


def test_a_vector_that_does_not_fit_is_refused_and_changes_nothing():
    model = small("lstm")
    before = to_vector(model)
    for wrong in (before[:-1], before[None], before.astype(np.int64), before.astype(np.float16)):
        with pytest.raises(ValueError, match=f"one flat vector of {before.size} values"):
            from_vector_(model, wrong)
    np.testing.assert_array_equal(to_vector(model), before)
