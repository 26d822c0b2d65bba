"""Models as files: what is written is what is read, and every bad file is one sentence."""

import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tacit.models.base import lasting_tensors, to_vector
from tacit.models.stored_size import stored_numbers
from tacit.models.weights import load, load_config
from tacit.privacy import durable
from tests.models.small import NAMES, VOCABULARY, random_tokens, save, small


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def rewrite(path, tensors=None, **content):
    """The file of a small LSTM with some of it replaced."""
    model = small("lstm")
    save(model, path)
    config = {"vocab_size": VOCABULARY, "embedding_size": 6, "cells": 10}
    metadata = {"model": "lstm", "config": config | content.pop("config", {})} | content
    save_file(load_file(path) | (tensors or {}), path, {"tacit": json.dumps(metadata)})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overrides", [{}, {"output_bias": True, "context_size": 2}])
def test_a_model_survives_a_file_bit_for_bit(path, name, overrides):
    model = small(name, seed=5, **overrides)
    save(model, path)
    again = load(path)
    assert type(again) is type(model)
    assert again.config == model.config == load_config(path)
    assert to_vector(again).tobytes() == to_vector(model).tobytes()
    tokens = random_tokens(2, 4)
    assert torch.equal(again(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_the_parameters_and_says_how_many_they_are(path, name):
    model = small(name, output_bias=True)
    assert lasting_tensors(model).keys() == dict(model.named_parameters()).keys()
    save(model, path)
    assert stored_numbers(path) == sum(values.numel() for values in model.parameters())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is truncated"):
        stored_numbers(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_trains_on(path, name):
    save(small(name), path)
    model = load(path)
    model(random_tokens(2, 4))[0].square().sum().backward()
    assert all(values.grad is not None for _, values in model.parameter_vectors())
    assert not any(values.is_meta for values in model.state_dict().values())


def test_the_same_model_makes_the_same_bytes(tmp_path):
    for copy in ("a", "b"):
        save(small("transformer-14m"), tmp_path / copy)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_file_is_plain_safetensors(path):
    model = small("gru")
    save(model, path)
    tensors = load_file(path)
    assert tensors.keys() == {name for name, _ in model.parameter_vectors()}


def test_saving_replaces_what_was_there_and_leaves_nothing_beside(path):
    save(small("lstm", seed=1), path)
    save(small("lstm", seed=2), path)
    assert (to_vector(load(path)) == to_vector(small("lstm", seed=2))).all()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_failure_while_saving_keeps_the_old_file_whole(path, monkeypatch, failure, moment):
    def fails(*_):
        raise failure

    save(small("lstm"), path)
    before = path.read_bytes()
    monkeypatch.setattr(durable.os, moment, fails)
    with pytest.raises(type(failure)):
        save(small("lstm", seed=2), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_for_its_owner_only_whatever_the_umask(path):
    before = os.umask(0)
    try:
        save(small("lstm"), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_model_is_not_written(path, value):
    model = small("lstm")
    with torch.no_grad():
        model.projection.bias[2] = value
    with pytest.raises(ValueError, match=r"projection.bias has 1 of 6 values that"):
        save(model, path)
    assert os.listdir(path.parent) == []


def test_a_model_of_another_type_is_not_written(path):
    with pytest.raises(ValueError, match=r"embedding.weight is torch.float64, not float32"):
        save(small("lstm").double(), path)


def test_a_vocabulary_that_does_not_fit_the_tokenizer_is_refused(path):
    save(small("lstm"), path)
    assert load(path, vocab_size=VOCABULARY).config.vocab_size == VOCABULARY
    with pytest.raises(ValueError, match="vocabulary of 11 tokens and the tokenizer one of 12"):
        load(path, vocab_size=12)


@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused_wherever_it_ends(path, data):
    save(small("lstm"), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="is truncated, or no safetensors file"):
        load(path)


@given(content=st.binary(max_size=200))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_of_anything_else_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        load(path)


def test_a_file_that_is_not_there_or_a_folder_is_refused(path):
    for wrong in (path, path.parent):
        with pytest.raises(ValueError, match="is not a file; expected a model's weights"):
            load(wrong)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_a_safetensors_file_of_others_is_refused(path, metadata):
    save_file({"weight": torch.zeros(3)}, path, metadata)
    with pytest.raises(ValueError, match="safetensors file, but not of a tacit model"):
        load(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"model": "lstm"}', '{"model": "lstm", "config": 3}']
)
def test_a_configuration_that_cannot_be_read_is_refused(path, text):
    save_file({"weight": torch.zeros(3)}, path, {"tacit": text})
    with pytest.raises(ValueError, match="has a configuration that"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": "lsmt"}, "names the model 'lsmt', and there are lstm"),
        ({"model": ["lstm"]}, "names the model"),
        ({"model": "os:system"}, "names the model 'os:system'"),
        ({"model": "own", "config": {"factory": "os:system"}}, "if that code is yours"),
        ({"config": {"vocab_size": "many"}}, "vocab_size must be a whole number"),
        ({"config": {"vocab_size": 10**30}}, "vocab_size must be between 1 and"),
        ({"config": {"wings": 2}}, "has no 'wings'"),
        ({"config": {"name": 2}}, "configuration that"),
        ({"config": {"cells": 9}}, r"layers.0.input_kernel must have the shape \[9, 15\]"),
        ({"config": {"vocab_size": 2**24, "embedding_size": 2**24}}, "must have the shape"),
        ({"config": {"output_bias": True}}, "missing embedding.output_bias, unexpected nothing"),
        ({"model": "gru"}, "another model than it says: missing .* and 3 more, unexpected"),
    ],
)
def test_a_file_that_holds_another_model_than_it_says_is_refused(path, content, message):
    rewrite(path, **content)
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"projection.bias": torch.zeros(7)}, r"projection.bias must have the shape \[6\], got"),
        ({"projection.bias": torch.zeros(6).double()}, "must be torch.float32, got torch.float64"),
        ({"projection.bias": torch.zeros(6).half()}, "must be torch.float32, got torch.float16"),
        ({"projection.bias": torch.full((6,), torch.nan)}, "has 6 of 6 values that are NaN"),
        ({"projection.bias": torch.tensor([0.0, torch.inf] * 3)}, "has 3 of 6 values that are NaN"),
        ({"other": torch.zeros(6)}, "missing nothing, unexpected other"),
    ],
)
def test_weights_that_do_not_fit_are_refused(path, tensors, message):
    rewrite(path, tensors)
    with pytest.raises(ValueError, match=message):
        load(path)
