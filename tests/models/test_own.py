"""Models of a user's own, by import path."""

import pytest
import torch

from tacit.models.base import from_vector_, layer_sizes, loss, to_vector
from tacit.models.registry import build
from tacit.models.weights import load, load_config
from tests.models.small import save

HERE = "tests.models.own_modules"
BIGRAM = f"{HERE}:Bigram"
COUNTER = f"{HERE}:Counter"


def test_a_module_that_returns_just_logits_trains_like_any_model():
    model = build(BIGRAM, 5)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]])
    logits, state = model(tokens)
    assert (logits.shape, state, model.carries_state) == ((1, 10, 5), None, False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(50):
        total, count = loss(model(tokens[:, :-1])[0], tokens[:, 1:])
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        model.normalise_()
        losses.append((total / count).item())
    assert losses[-1] < losses[0] / 4


def test_a_module_with_state_context_and_restriction_is_given_and_asked_for_them():
    model = build(COUNTER, 4)
    tokens = torch.tensor([[1, 1, 2, 3]])
    whole, _ = model(tokens)
    first, state = model(tokens[:, :2])
    second, _ = model(tokens[:, 2:], state)
    assert model.carries_state
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(model(tokens, context=torch.ones(1, 2))[0], whole + 2)
    from_vector_(model, 9 * to_vector(model))
    model.normalise_()
    assert to_vector(model).tolist() == [1, 1, 1, 1]


def test_overrides_are_the_options_of_the_factory():
    plain, scaled = build(BIGRAM, 5), build(BIGRAM, 5, scale=2.0)
    assert scaled.config.options == {"scale": 2.0}
    assert (to_vector(scaled) == 2 * to_vector(plain)).all()


def test_weights_are_a_function_of_the_seed_and_the_global_state_is_left_alone():
    before = torch.random.get_rng_state()
    first, again, other = (build(BIGRAM, 5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (to_vector(first) == to_vector(again)).all()
    assert (to_vector(first) != to_vector(other)).any()


@pytest.mark.parametrize(("path", "options"), [(BIGRAM, {"scale": 3.0}), (COUNTER, {})])
def test_weights_survive_a_file_bit_for_bit(tmp_path, path, options):
    model = build(path, 6, seed=4, **options)
    save(model, tmp_path / "own.safetensors")
    again = load(tmp_path / "own.safetensors", own_factory=path)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_parameter_with_two_names_is_one_vector():
    assert layer_sizes(build(COUNTER, 6)) == (6,)


@pytest.mark.parametrize("allowed", [None, COUNTER, "os:system"])
def test_a_file_cannot_choose_the_code_that_loads_it(tmp_path, allowed):
    save(build(BIGRAM, 6), tmp_path / "own.safetensors")
    for function in (load, load_config):
        with pytest.raises(ValueError, match=r"holds a model made by .*; if that code is yours"):
            function(tmp_path / "own.safetensors", own_factory=allowed)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("tests.models.nowhere:f", {}, "cannot import 'tests.models.nowhere' .* on PYTHONPATH"),
        (f"{HERE}:Bigrams", {}, "has no factory 'Bigrams'; did you mean 'Bigram'?"),
        (f"{HERE}:NOT_CALLABLE", {}, "has no factory 'NOT_CALLABLE'"),
        (f"{HERE}:", {}, "named as package.module:factory, got"),
        (":f", {}, "named as package.module:factory, got ':f'"),
        ("a:b:c", {}, "named as package.module:factory, got 'a:b:c'"),
        ("../models:f", {}, "named as package.module:factory"),
        (f"{HERE}:not_a_module", {}, "must return a torch.nn.Module, got str"),
        (f"{HERE}:without_vocabulary", {}, "cannot be called with vocab_size and the options"),
        (BIGRAM, {"size": 1}, r"cannot be called with vocab_size and the options \['size'\]"),
        (BIGRAM, {"scale": object()}, "options of .* must be numbers, strings"),
        (BIGRAM, {"scale": float("nan")}, "options of .* must be numbers, strings"),
        (f"{HERE}:LooksAhead", {}, "looks ahead: a later token changes"),
        (f"{HERE}:MixesRows", {}, "mixes users: logits of a text depend on others"),
        (f"{HERE}:BatchNormalised", {}, r"normalises over a batch \(norm: BatchNorm1d\)"),
        (f"{HERE}:ForgetsItsState", {}, "other logits when a text comes in pieces"),
        (f"{HERE}:StateWithoutBatch", {}, "tuple of tensors with the batch as first dimension"),
        (f"{HERE}:WrongShape", {}, r"to logits of shape \[2, 3, 5\], got \[2, 5\]"),
        (f"{HERE}:NotANumber", {}, "NaN or infinite before any training"),
        (f"{HERE}:Raises", {}, r"fails on tokens of shape \[2, 3\]: RuntimeError: out of order"),
        (f"{HERE}:Untrainable", {}, "has no parameters to train"),
    ],
)
def test_what_is_no_language_model_is_refused_with_a_sentence(path, options, message):
    with pytest.raises(ValueError, match=message):
        build(path, 5, **options)


def test_what_the_module_does_not_take_is_refused():
    model = build(BIGRAM, 5)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="takes no state, but was given one"):
        model(tokens, (torch.zeros(1, 1),))
    with pytest.raises(ValueError, match="takes no context, but was given one"):
        model(tokens, context=torch.zeros(1, 1))
