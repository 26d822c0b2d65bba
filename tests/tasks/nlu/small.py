"""A training that takes a second: made-up utterances and a tiny model."""

from __future__ import annotations

from typing import Any

from tacit.config.sections import merge
from tacit.tasks.nlu.experiment import NluExperiment

BASE: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "data": {"source": "generated:utterances=120", "unseen_intents": "keep"},
    "model": {
        "vocabulary": "chatterbot",
        "vocabulary_size": 50,
        "options": {"word_size": 4, "character_size": 4, "filters": 4, "hidden": 4, "layers": 1},
    },
    "training": {"method": "edp-sgd", "epochs": 3, "batch_size": 16, "workers": 1},
    "noise": {"noise_multiplier": 1.0, "decay": "linear", "decay_rate": 0.5},
    "privacy": {"delta": 1e-3},
}


def small(**changes: Any) -> NluExperiment:
    """The base with other values, by section."""
    return NluExperiment.from_data(merge(BASE, changes), "the test")


def of_method(method: str, **changes: Any) -> NluExperiment:
    """The same by another method, with what suits it."""
    plain = {"decay": "none", "decay_rate": None}
    fitting: dict[str, Any] = {
        "sgd": {"noise_multiplier": None, **plain},
        "dp-sgd": plain,
        "edp-sgd": {},
        "edp-sgd-paper": {"scaling": "first-gradient"},
    }[method]
    noise = {**fitting, **changes.pop("noise", {})}
    training = {"method": method, **changes.pop("training", {})}
    return small(training=training, noise=noise, **changes)
