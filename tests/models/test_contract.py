"""What every built-in model promises (`base.LanguageModel`)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap

from tacit.models.base import LanguageModel, detached, loss, to_vector
from tacit.models.registry import build
from tests.models.small import NAMES, RECURRENT, VOCABULARY, jittered, random_tokens, small

TEXT = [0, 5, 3, 8, 1, 1, 7, 2, 9, 4, 6, 10] * 2  # one cycle is all there is to learn


def row_norms(model: LanguageModel) -> torch.Tensor:
    return torch.linalg.vector_norm(model.embedding.weight.detach().double(), dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_loss_falls_on_a_tiny_text(name):
    model = small(name)
    text = torch.tensor([TEXT])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(100):
        logits, _ = model(text[:, :-1])
        total, count = loss(logits, text[:, 1:])
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        model.normalise_()
        losses.append((total / count).item())
    assert losses[0] == pytest.approx(torch.tensor(VOCABULARY).log().item(), rel=0.4)
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("name", NAMES)
@given(batch=st.integers(1, 4), steps=st.integers(1, 9))
@settings(max_examples=5)
def test_logits_have_a_score_for_every_token_at_every_position(name, batch, steps):
    logits, state = small(name)(random_tokens(batch, steps))
    assert logits.shape == (batch, steps, VOCABULARY)
    assert logits.dtype == torch.float32
    if state is not None:
        assert all(tensor.shape[0] == batch for tensor in state)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("changed", [0, 1, 4, 7])
def test_a_later_token_changes_no_earlier_logit(name, changed):
    model = jittered(small(name))
    tokens = random_tokens(3, 8)
    other = tokens.clone()
    other[:, changed] = (tokens[:, changed] + 1) % VOCABULARY
    before, after = model(tokens)[0], model(other)[0]
    torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=1e-12)
    assert not torch.isclose(after[:, changed:], before[:, changed:]).all(dim=2).any()


@pytest.mark.parametrize("name", NAMES)
def test_no_row_depends_on_the_others_in_its_batch(name):
    model = small(name)
    tokens = random_tokens(6, 8)
    together = model(tokens)[0]
    for row in range(6):
        alone = model(tokens[row : row + 1])[0]
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(model(tokens[order])[0], together[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RECURRENT)
@given(cuts=st.lists(st.integers(1, 11), max_size=4, unique=True).map(sorted))
@settings(max_examples=10)
def test_streaming_with_carried_state_equals_one_pass(name, cuts):
    model = jittered(small(name, context_size=2))
    assert model.carries_state
    tokens = random_tokens(3, 12)
    context = torch.ones(3, 2, dtype=torch.float64)
    whole, last = model(tokens, context=context)
    state, pieces = None, []
    for start, end in zip([0, *cuts], [*cuts, 12], strict=True):
        logits, state = model(tokens[:, start:end], state, context)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RECURRENT)
def test_rows_of_a_state_can_be_picked(name):
    model = jittered(small(name))
    tokens, more = random_tokens(4, 5), random_tokens(4, 3, seed=1)
    _, state = model(tokens)
    rows = [2, 0]
    expected = model(more, state)[0][rows]
    picked = tuple(tensor[rows] for tensor in state)
    torch.testing.assert_close(model(more[rows], picked)[0], expected, rtol=1e-12, atol=1e-12)


def test_a_detached_state_has_no_history():
    model = small("lstm")
    _, state = model(random_tokens(2, 4))
    assert all(tensor.requires_grad for tensor in state)
    assert not any(tensor.requires_grad for tensor in detached(state))
    assert detached(None) is None


def test_transformer_refuses_a_state_instead_of_forgetting_the_past():
    model = small("transformer-14m")
    assert not model.carries_state
    assert model(random_tokens(1, 3))[1] is None
    with pytest.raises(ValueError, match="carries no state: give it the whole text"):
        model(random_tokens(1, 3), (torch.zeros(1, 8),))


def test_transformer_reads_texts_of_any_length():
    logits, _ = small("transformer-14m")(random_tokens(1, 1700))
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", NAMES)
def test_context_changes_the_output_and_is_zero_when_left_out(name):
    model = jittered(small(name, context_size=3))
    tokens = random_tokens(2, 4)
    context = torch.tensor([[1.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    if name == "transformer-14m":
        model.context.bias.data.zero_()
    without, given = model(tokens)[0], model(tokens, context=context)[0]
    assert not torch.isclose(given[0], without[0]).all(dim=1).any()
    torch.testing.assert_close(given[1], without[1])


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_start_at_unit_norm(name):
    norms = row_norms(build(name, 300))
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["lstm", "cifg", "gru"])
def test_normalise_brings_embeddings_back_to_unit_norm_and_keeps_directions(name):
    model = small(name)
    before = model.embedding.weight.detach().clone()
    rest = to_vector(model)[before.numel() :]
    with torch.no_grad():
        model.embedding.weight *= torch.linspace(0.01, 1e20, VOCABULARY).unsqueeze(1)
    model.normalise_()
    torch.testing.assert_close(row_norms(model), torch.ones(VOCABULARY).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.embedding.weight.detach(), before, rtol=1e-5, atol=1e-6)
    assert (to_vector(model)[before.numel() :] == rest).all()


def test_normalise_leaves_a_zero_row_at_zero():
    model = small("lstm")
    with torch.no_grad():
        model.embedding.weight[3] = 0
    model.normalise_()
    assert (model.embedding.weight[3] == 0).all()
    assert torch.isfinite(model.embedding.weight).all()


@pytest.mark.parametrize("name", ["lstm-14m", "transformer-14m"])
def test_normalise_does_nothing_to_unrestricted_embeddings(name):
    model = jittered(small(name))
    before = to_vector(model)
    model.normalise_()
    assert (to_vector(model) == before).all()


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_are_a_function_of_the_seed(name):
    first, again, other = small(name, seed=1), small(name, seed=1), small(name, seed=2)
    by_generator = small(name, seed=torch.Generator().manual_seed(1))
    assert (to_vector(first) == to_vector(again)).all()
    assert (to_vector(first) == to_vector(by_generator)).all()
    assert (to_vector(first) != to_vector(other)).any()


@pytest.mark.parametrize("name", NAMES)
def test_building_leaves_the_global_random_state_and_default_type_alone(name):
    before = torch.random.get_rng_state()
    expected = to_vector(small(name))
    torch.set_default_dtype(torch.float64)
    try:
        model = small(name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(values.dtype == torch.float32 for values in model.parameters())
    assert (to_vector(model) == expected).all()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_generator_moves_on_so_two_models_from_it_differ():
    generator = torch.Generator().manual_seed(0)
    first, second = small("gru", seed=generator), small("gru", seed=generator)
    assert (to_vector(first) != to_vector(second)).any()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention under vmap
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_several_users_at_once_equal_one_at_a_time(name):
    model = small(name)
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    users = torch.stack([random_tokens(2, 6, seed) for seed in range(3)])

    def user_loss(values, tokens):
        logits, _ = functional_call(model, values, (tokens[:, :-1],))
        return loss(logits, tokens[:, 1:])[0]

    together = vmap(grad(user_loss), in_dims=(None, 0))(parameters, users)
    for user in range(3):
        for key, value in grad(user_loss)(parameters, users[user]).items():
            torch.testing.assert_close(together[key][user], value, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_only():
    model = small("transformer-14m", dropout=0.5)
    tokens = random_tokens(1, 6)
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), (2, 0), (2, 3, 4)])
def test_tokens_of_another_shape_are_refused(name, shape):
    with pytest.raises(ValueError, match=r"tokens must have the shape \[batch, time\]"):
        small(name)(torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_does_not_fit_is_refused(name):
    tokens = random_tokens(2, 3)
    with pytest.raises(ValueError, match="context_size 0, which takes none"):
        small(name)(tokens, context=torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"context must have the shape \[2, 4\], got \[2, 1\]"):
        small(name, context_size=4)(tokens, context=torch.zeros(2, 1))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_that_does_not_fit_is_refused(name):
    _, state = small(name)(random_tokens(2, 3))
    for wrong in (state[:-1], tuple(tensor[:1] for tensor in state)):
        with pytest.raises(ValueError, match=r"state must be \d tensors of shapes? .*\[2, 10\]"):
            small(name)(random_tokens(2, 3), wrong)
