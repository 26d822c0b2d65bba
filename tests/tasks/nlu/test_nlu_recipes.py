"""The recipes of intents and slots: all of them can be read, and say what the paper says."""

import pytest

from tacit.tasks.nlu.experiment import RECIPES, NluExperiment
from tests.tasks.nlu.small import small

C = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0]
LINEAR = [0.02, 0.05, 0.07, 0.1, 0.3, 0.5, 0.7, 0.9]
EXPONENTIAL = [0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.35, 0.5]


@pytest.mark.parametrize("name", RECIPES.names())
def test_a_recipe_says_what_it_is_and_survives_being_written(name):
    for experiment in RECIPES.load(name).experiments.values():
        assert experiment.about.says
        assert NluExperiment.from_toml(experiment.to_toml(), name) == experiment


def test_the_papers_grid_is_complete():
    every = RECIPES.load("dupuy2021-grid").experiments
    assert len(every) == 6 * 7 * (1 + 8 + 8)
    noises = [each.noise for each in every.values()]
    assert sorted({noise.clip_norm for noise in noises}) == C
    found = sorted({noise.noise_multiplier for noise in noises})
    assert (found[0], found[-1]) == (1e-6, 1.0)
    for decay, rates in (("linear", LINEAR), ("exponential", EXPONENTIAL)):
        assert sorted({n.decay_rate for n in noises if n.decay == decay}) == rates


def test_the_tables_have_the_papers_delta_and_models():
    for name, model in (("dupuy2021-clc", "clc"), ("dupuy2021-bert", "bert")):
        every = RECIPES.load(name).experiments
        assert {each.model.name for each in every.values()} == {model}
        assert {each.privacy.delta for each in every.values()} == {5e-4}
        assert {each.training.optimizer for each in every.values()} == {"adam"}
        assert {each.data.split for each in every.values()} == {"paper"}
        methods = {each.training.method for each in every.values()}
        assert methods == {"sgd", "dp-sgd", "edp-sgd", "edp-sgd-paper"}
    assert RECIPES.load("dupuy2021-clc").only("sgd").model.options["hidden"] == 384


def test_one_cell_of_a_grid_can_be_asked_for():
    name = "linear_clip_norm-0.5_noise_multiplier-0.001_decay_rate-0.3"
    one = RECIPES.load("dupuy2021-grid", (), name).only(name)
    assert (one.noise.clip_norm, one.noise.noise_multiplier, one.noise.decay_rate) == (
        0.5,
        1e-3,
        0.3,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"batch_size": 1, "workers": 2}}, "at least training.workers"),
        ({"training": {"method": "sgd"}}, "sgd adds no noise"),
        ({"noise": {"noise_multiplier": None}}, "needs noise.noise_multiplier"),
        ({"training": {"method": "dp-sgd"}}, "belong to eDP-SGD"),
        ({"noise": {"scaling": "first-gradient"}}, "must be public or private"),
        ({"noise": {"decay_rate": None}}, "needs a rate"),
        ({"noise": {"clip_norm": float("nan")}}, "noise.clip_norm cannot be nan"),
        (
            {
                "training": {"method": "dp-sgd", "unit": "user"},
                "noise": {"decay": "none", "decay_rate": None},
            },
            "protects single utterances",
        ),
        (
            {"training": {"method": "edp-sgd-paper"}, "privacy": {"target_epsilon": 1.0}},
            "as printed",
        ),
        ({"noise": {"clip_nrom": 1.0}}, "did you mean 'noise.clip_norm'"),
        ({"data": {"reference": "half"}}, "data.reference cannot be 'half'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")) as error:
        small(**changes)
    assert "\n" not in str(error.value)
