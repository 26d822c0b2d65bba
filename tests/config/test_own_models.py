"""A class, function or partial of the user's own becomes what an experiment can keep: its path."""

import functools
import re

import pytest
import torch

from tacit.config.experiment import Experiment
from tacit.models.registry import build
from tests.models.own_modules import BatchNormalised, Bigram

PATH = "tests.models.own_modules:Bigram"


def small_factory(vocab_size: int, scale: float = 1.0) -> torch.nn.Module:
    return Bigram(vocab_size, scale)


@pytest.mark.parametrize(
    ("name", "path", "options"),
    [
        (Bigram, PATH, {}),
        (small_factory, "tests.config.test_own_models:small_factory", {}),
        (functools.partial(Bigram, scale=2.0), PATH, {"scale": 2.0}),
        (PATH, PATH, {}),
    ],
)
def test_it_is_written_as_its_path(name, path, options):
    for experiment in (
        Experiment(model={"name": name}),
        Experiment().changed(model={"name": name}),
    ):
        assert (experiment.model.name, experiment.model.options) == (path, options)
        assert Experiment.from_toml(experiment.to_toml(), "a file") == experiment
    model = build(experiment.model.name, 5, **experiment.model.options)
    assert model(torch.zeros(1, 2, dtype=torch.int64))[0].shape == (1, 2, 5)


def test_options_of_the_experiment_come_after_those_of_a_partial():
    name = functools.partial(Bigram, scale=2.0)
    experiment = Experiment(model={"name": name, "options": {"scale": 3.0}})
    assert experiment.model.options == {"scale": 3.0}


def test_what_cannot_be_made_again_is_refused():
    class Local(Bigram):
        pass

    for name, message in {
        Bigram(5): "got an object of Bigram: a run makes its model anew",
        Local: "Local of tests.config.test_own_models cannot be imported again: move it",
        (lambda vocab_size: Bigram(vocab_size, 2.0)): "cannot be imported again",
        functools.partial(Bigram, 5): "give Bigram its arguments by name",
        7: "got an object of int",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            Experiment(model={"name": name})


def test_a_module_that_is_there_is_evaluated_with_its_weights():
    module = Bigram(5)
    model = build(module, 5)
    tokens = torch.tensor([[1, 2]])
    assert torch.equal(model(tokens)[0], module(tokens))


def test_a_module_that_is_there_is_checked_like_any_other():
    with pytest.raises(ValueError, match="BatchNormalised normalises over a batch"):
        build(BatchNormalised(5), 5)
    with pytest.raises(ValueError, match="vocab_size must be given"):
        build(Bigram(5))
    with pytest.raises(ValueError, match="made already"):
        build(Bigram(5), 5, scale=2.0)
    with pytest.raises(ValueError, match=r"logits of shape \[2, 3, 5\]"):
        build(Bigram(6), 5)
