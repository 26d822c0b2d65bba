"""Models by name: what `build` makes, and how their sizes are overridden.

| name | parameters at 10,000 words | paper |
|---|---|---|
| `lstm` | 1.35M | McMahan et al. 2018 |
| `cifg` | 1.26M | Thakkar et al. 2020 |
| `gru` | the LSTM's sizes | Cho et al. 2014 |
| `lstm-14m`, `transformer-14m` | 14M | Bagdasaryan et al. 2022 |

"package.module:factory" names any `torch.nn.Module` of the user's own (`tacit.models.own`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from torch import Generator

from tacit.models.base import LanguageModel, ModelConfig
from tacit.models.own import OwnConfig, OwnModel
from tacit.models.recurrent import (
    CIFG,
    GRU,
    LSTM,
    CIFGConfig,
    GRUConfig,
    LSTMConfig,
    StackedLSTMConfig,
)
from tacit.models.transformer import Transformer, TransformerConfig

_MODELS: dict[type[ModelConfig], Callable[..., LanguageModel]] = {
    LSTMConfig: LSTM,
    CIFGConfig: CIFG,
    GRUConfig: GRU,
    StackedLSTMConfig: LSTM,
    TransformerConfig: Transformer,
    OwnConfig: OwnModel,
}
_BUILT_IN = {config.kind: config for config in _MODELS if config is not OwnConfig}

NAMES = tuple(_BUILT_IN)


def build(
    model: str | ModelConfig,
    vocab_size: int | None = None,
    *,
    seed: int | Generator = 0,
    **overrides: Any,
) -> LanguageModel:
    """A new model with initial weights drawn from the seed.

    `model` is one of `NAMES`, "package.module:factory" for one of your own, or a configuration.
    `overrides` replace any of its sizes, and for one of your own are the factory's options.  An
    unknown name or size raises `ValueError` that says the nearest one.
    """
    if isinstance(model, str):
        if vocab_size is None:
            raise ValueError(f"vocab_size must be given to build the model {model!r}")
        config = make_config(model, vocab_size, **overrides)
    else:
        config = model
        if vocab_size is not None:
            overrides["vocab_size"] = vocab_size
        if overrides:
            _check_fields(type(config), overrides)
            config = dataclasses.replace(config, **overrides)
    return from_config(config, seed)


def make_config(name: str, vocab_size: int, **overrides: Any) -> ModelConfig:
    """The configuration of the model with this name."""
    if ":" in name:
        return OwnConfig(vocab_size, name, overrides)
    if name not in _BUILT_IN:
        [near] = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.0)
        raise ValueError(
            f"there is no model {name!r}; did you mean {near!r}?  There are {', '.join(NAMES)}, and"
            " any torch.nn.Module of your own as package.module:factory"
        )
    config = _BUILT_IN[name]
    _check_fields(config, overrides)
    return config(vocab_size, **overrides)


def from_config(config: ModelConfig, seed: int | Generator = 0) -> LanguageModel:
    """The model of exactly this configuration."""
    assert type(config) in _MODELS, f"{type(config).__name__} is not in the registry"
    return _MODELS[type(config)](config, seed)


def _check_fields(config: type[ModelConfig], overrides: dict[str, Any]) -> None:
    """Each override has to be a field: otherwise name the nearest."""
    names = [field.name for field in dataclasses.fields(config)]
    for name in overrides:
        if name not in names:
            [near] = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            raise ValueError(
                f"the model {config.kind!r} has no {name!r}; did you mean {near!r}?"
                f"  It has {', '.join(names)}"
            )
