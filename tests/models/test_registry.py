import pytest
import torch

from tacit.models.base import to_vector
from tacit.models.recurrent import LSTM, LSTMConfig
from tacit.models.registry import NAMES, build, make_config


def test_there_are_the_models_of_the_papers():
    assert {"lstm", "cifg", "cifg-projected", "gru", "lstm-14m", "transformer-14m"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_knows_its_name_and_sizes(name):
    model = build(name, 20, embedding_size=12)
    assert model.config.kind == name
    assert (model.config.vocab_size, model.config.embedding_size) == (20, 12)
    assert model.config == make_config(name, 20, embedding_size=12)


def test_a_configuration_builds_the_model():
    config = LSTMConfig(vocab_size=20, cells=5)
    model = build(config)
    assert isinstance(model, LSTM)
    assert model.config is config
    assert (to_vector(build("lstm", 20, cells=5)) == to_vector(model)).all()


@pytest.mark.parametrize(
    ("name", "nearest"), [("lsmt", "lstm"), ("GRU", "gru"), ("transformer", "transformer-14m")]
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"no model '{name}'; did you mean '{nearest}'"):
        build(name, 10)


@pytest.mark.parametrize("name", ["", "?", "x" * 100])
def test_a_name_unlike_any_other_still_gets_a_sentence(name):
    with pytest.raises(ValueError, match="there is no model"):
        build(name, 10)


def test_an_unknown_size_suggests_the_nearest():
    with pytest.raises(ValueError, match="has no 'embeding_size'; did you mean 'embedding_size'"):
        build("lstm", 10, embeding_size=5)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("lstm", {"cells": 0}, "cells must be between 1 and"),
        ("lstm", {"cells": 2**40}, "cells must be between 1 and"),
        ("lstm", {"cells": 2.5}, "cells must be a whole number, got 2.5"),
        ("lstm", {"cells": float("nan")}, "cells must be a whole number, got nan"),
        ("lstm", {"cells": True}, "cells must be a whole number, got True"),
        ("gru", {"embedding_size": -1}, "embedding_size must be between 1 and"),
        ("cifg", {"layers": 10**9}, "layers must be between 1 and 1000"),
        ("cifg", {"context_size": -1}, "context_size must be between 0 and"),
        ("lstm", {"unit_norm": 1}, "unit_norm must be true or false, got 1"),
        ("lstm", {"output_bias": "no"}, "output_bias must be true or false, got 'no'"),
        ("transformer-14m", {"heads": 5}, "multiple of heads, got 384 with 5 heads"),
        ("transformer-14m", {"embedding_size": 9, "heads": 3}, "must be even"),
        ("transformer-14m", {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ("transformer-14m", {"dropout": float("nan")}, "dropout must be at least 0"),
        ("transformer-14m", {"dropout": "a bit"}, "dropout must be at least 0"),
        ("lstm", {"seed": -1}, "seed must be a whole number from 0"),
        ("lstm", {"seed": "x"}, "seed must be a whole number from 0"),
    ],
)
def test_sizes_that_make_no_model_are_refused(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        build(name, 10, **overrides)


@pytest.mark.parametrize("vocab_size", [0, -1, 1.5, None])
def test_a_vocabulary_that_makes_no_model_is_refused(vocab_size):
    with pytest.raises(ValueError, match="vocab_size must be"):
        build("lstm", vocab_size)


def test_a_vocabulary_of_one_word_is_certain_of_it():
    logits, _ = build("lstm", 1)(torch.zeros(1, 3, dtype=torch.long))
    assert logits.softmax(dim=2).flatten().tolist() == [1.0, 1.0, 1.0]
