"""Models by name: what `build` makes, and how their sizes are overridden.

| name | parameters at 10,000 words | paper |
|---|---|---|
| `lstm` | 1.35M | McMahan et al. 2018 |
| `cifg` | 1.26M | the LSTM of McMahan et al. with coupled gates |
| `cifg-projected` | 1.41M | Hard et al. 2018, Thakkar et al. 2020 |
| `gru` | the LSTM's sizes | Cho et al. 2014 |
| `lstm-14m`, `transformer-14m` | 14M | Bagdasaryan et al. 2022 |

A model of the user's own is named by its import path, "package.module:factory" (in Python also by
the class or function itself: `tacit.config.own_models`).  Its code runs only if the person at the
machine has said so (`tacit.models.own_code`).  What is asked of it:

    def factory(vocab_size: int, **options) -> torch.nn.Module     # or the module's class

    module(tokens)  ->  logits, or (logits, state)
        tokens      int64 [batch, time], ids from 0 to vocab_size - 1
        logits      float [batch, time, vocab_size]: at each position, of the token after it
        state       a tuple of tensors, each with the batch as first dimension

Options are numbers, strings and booleans.  Initial weights are drawn from torch's own generator,
which is seeded before the factory is called.  A module whose `forward` has a parameter named
`state` or `context` is given it; one with a method `normalise_` has it called after every step.

What can be seen to break the contract of `LanguageModel` is refused when the model is made: batch
normalisation and other mixing of rows, through which one user's text would reach another's update;
looking ahead, which would make all figures wrong; a state that does not carry on.  The module is
tried on two short texts, which finds honest mistakes and proves nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from tacit.models import own_code
from tacit.models.base import LanguageModel, ModelConfig, State, check_inputs
from tacit.models.layers import seeded
from tacit.models.projected import ProjectedCIFG, ProjectedCIFGConfig
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


@dataclass(frozen=True)
class OwnConfig(ModelConfig):
    """Where the factory is and what it is called with."""

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        module, colon, name = self.factory.partition(":")
        if not (colon and all(part.isidentifier() for part in [*module.split("."), name])):
            raise ValueError(
                f"a model of your own is named as package.module:factory, got {self.factory!r}"
            )
        try:
            same = json.loads(json.dumps(dict(self.options))) == self.options
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(
                f"options of {self.factory} must be numbers, strings, booleans, or lists and"
                f" mappings of these, got {dict(self.options)!r}"
            )


class _OwnModel(LanguageModel):
    """Wraps the user's module, so that it is called as all other models are."""

    config: OwnConfig

    def __init__(
        self, config: OwnConfig, seed: int | Generator = 0, module: nn.Module | None = None
    ) -> None:
        super().__init__(config)
        self.module = _make(config, seed) if module is None else module
        accepted = inspect.signature(self.module.forward).parameters
        self._takes_state = "state" in accepted
        self._takes_context = "context" in accepted
        _check_module(self)

    @property
    def carries_state(self) -> bool:
        """True if the module's `forward` has a parameter named `state`."""
        return self._takes_state

    def forward(
        self, tokens: Tensor, state: State = None, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Call the module with those of state and context that it takes.

        A state or context that it does not take is refused rather than dropped in silence.
        """
        check_inputs(tokens)
        extras: dict[str, Any] = {}
        for name, value, taken in (
            ("state", state, self._takes_state),
            ("context", context, self._takes_context),
        ):
            if taken:
                extras[name] = value
            elif value is not None:
                raise ValueError(f"{self.config.factory} takes no {name}, but was given one")
        result = self.module(tokens, **extras)
        logits, after = result if isinstance(result, tuple) else (result, None)
        return logits, after

    def normalise_(self) -> None:
        """Call the module's own `normalise_`, if it has one."""
        normalise = getattr(self.module, "normalise_", None)
        if callable(normalise):
            normalise()


def _make(config: OwnConfig, seed: int | Generator) -> nn.Module:
    """What the factory returns given the seed; the global random state is left as it was."""
    factory = own_code.load(config.factory)
    draw = torch.randint(2**63 - 1, (), generator=seeded(seed)).item()
    try:
        inspect.signature(factory).bind(vocab_size=config.vocab_size, **config.options)
    except TypeError as mistake:
        raise ValueError(
            f"{config.factory} cannot be called with vocab_size and the options"
            f" {sorted(config.options)}: {mistake}"
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draw))
        module = factory(vocab_size=config.vocab_size, **config.options)
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{config.factory} must return a torch.nn.Module, got {type(module).__name__}"
        )
    return module


def _check_module(model: _OwnModel) -> None:
    """Call it on two small texts that differ in the last token only, as others would call it."""
    path, vocab_size = model.config.factory, model.config.vocab_size
    for name, part in model.module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{path} normalises over a batch ({name}: {type(part).__name__}), which mixes"
                " users; use nn.LayerNorm"
            )
    if not model.parameter_vectors():
        raise ValueError(f"{path} has no parameters to train")
    texts = torch.tensor([[0, 0, 0], [0, 0, vocab_size - 1]])
    logits, _ = _probe(model, texts)
    shape = [2, 3, vocab_size]
    if not isinstance(logits, Tensor) or list(logits.shape) != shape:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"{path} must map tokens of shape [2, 3] to logits of shape {shape}, got {got}"
        )
    if not torch.isfinite(logits).all():
        raise ValueError(f"{path} gives logits that are NaN or infinite before any training")
    if not _near(logits[0, :2], logits[1, :2]):
        raise ValueError(f"{path} looks ahead: a later token changes the logits before it")
    if not _near(logits[:1], _probe(model, texts[:1])[0]):
        raise ValueError(f"{path} mixes users: logits of a text depend on others in its batch")
    if model.carries_state:
        first, state = _probe(model, texts[:, :2])
        if not (
            isinstance(state, tuple)
            and state
            and all(isinstance(tensor, Tensor) and tensor.shape[:1] == (2,) for tensor in state)
        ):
            raise ValueError(
                f"{path} takes a state, so it must return logits and a tuple of tensors with the"
                " batch as first dimension"
            )
        last, _ = _probe(model, texts[:, 2:], state)
        if not _near(logits, torch.cat([first, last], dim=1)):
            raise ValueError(f"{path} gives other logits when a text comes in pieces with a state")


def _probe(model: _OwnModel, tokens: Tensor, state: State = None) -> tuple[Tensor, State]:
    """One call without dropout or gradient; whatever goes wrong in it is the module's."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(tokens, state)
    except Exception as mistake:
        raise ValueError(
            f"{model.config.factory} fails on tokens of shape {list(tokens.shape)}:"
            f" {type(mistake).__name__}: {mistake}"
        ) from mistake
    finally:
        model.train(training)


def _near(some: Tensor, others: Tensor) -> bool:
    """Equal up to the rounding that another order of the same sums may bring."""
    return torch.allclose(some, others, rtol=1e-4, atol=1e-5)


_MODELS: dict[type[ModelConfig], Callable[..., LanguageModel]] = {
    LSTMConfig: LSTM,
    CIFGConfig: CIFG,
    ProjectedCIFGConfig: ProjectedCIFG,
    GRUConfig: GRU,
    StackedLSTMConfig: LSTM,
    TransformerConfig: Transformer,
    OwnConfig: _OwnModel,
}
_BUILT_IN = {config.kind: config for config in _MODELS if config is not OwnConfig}

NAMES = tuple(_BUILT_IN)


def build(
    model: str | ModelConfig | nn.Module,
    vocab_size: int | None = None,
    *,
    seed: int | Generator = 0,
    **overrides: Any,
) -> LanguageModel:
    """A new model with initial weights drawn from the seed.

    `model` is one of `NAMES` or "package.module:factory" for one of your own, with `overrides` of
    its sizes, or the factory's options; or it is a whole configuration.  An unknown name or size
    raises `ValueError` that says the nearest one.

    A module of your own may be given as an object, too, to be evaluated, sampled or audited with
    the weights that it has.  It is checked like any other; to train it, name its class.
    """
    if isinstance(model, nn.Module):
        if vocab_size is None:
            raise ValueError(f"vocab_size must be given with an object of {type(model).__name__}")
        config = OwnConfig(vocab_size, f"object:{type(model).__name__}", overrides)
        if overrides:
            raise ValueError(f"an object of {type(model).__name__} is made already: no options")
        return _OwnModel(config, module=model)
    if isinstance(model, str):
        if vocab_size is None:
            raise ValueError(f"vocab_size must be given to build the model {model!r}")
        model = make_config(model, vocab_size, **overrides)
    else:
        assert vocab_size is None, "a configuration has a vocab_size of its own"
        assert not overrides, "a configuration has sizes of its own"
    return _MODELS[type(model)](model, seed)


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
    names = [field.name for field in dataclasses.fields(config)]
    for override in overrides:
        if override not in names:
            [near] = difflib.get_close_matches(override, names, n=1, cutoff=0.0)
            raise ValueError(
                f"the model {name!r} has no {override!r}; did you mean {near!r}?"
                f"  It has {', '.join(names)}"
            )
    return config(vocab_size, **overrides)
