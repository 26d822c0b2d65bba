"""The contract of every language model, its loss, and its parameters as one flat vector.

A model maps token ids to scores of the next token.  Whatever clips, sums and noises updates sees
only the flat vector of its parameters, in the fixed order of `parameter_vectors`.
"""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What a model remembers between two calls: tensors with the batch as first dimension, so that rows
# can be picked from each alike.  None in a call is the beginning of a text.  None as a result says
# that the model remembers nothing and has to be given the whole text every time.
State = tuple[Tensor, ...] | None

# Far beyond any use; a file from elsewhere may ask for more than a machine can count to.
_LARGEST_SIZE = 2**24

Limits = dict[str, tuple[int, int]]  # the least and the largest value of a size, by its name

_IGNORED = -100  # the target of a masked position in cross entropy


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model: all that is needed, besides its weights, to build it again."""

    vocab_size: int
    kind: ClassVar[str]  # the name in the registry
    limits: ClassVar[Limits] = {}

    def __post_init__(self) -> None:
        check_sizes(self, self.limits)


class LanguageModel(nn.Module, abc.ABC):
    """Maps tokens [batch, time] to logits [batch, time, vocabulary] and the state after them.

    The logits at a position score the token that follows it and depend on nothing later, nor on
    other rows of the batch.  `context` is an optional feature vector about the user of each row,
    [batch, context_size] (McMahan et al. 2018, appendix B); left out, it is zero.  It is for those
    who call the model themselves: corpora hold none, so a training refuses it (`refuse_context`).
    """

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def carries_state(self) -> bool:
        """May a text be given in pieces, each with the state that the one before it left?"""
        return False

    @abc.abstractmethod
    def forward(
        self, tokens: Tensor, state: State = None, context: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Logits for the token after each position, and the state after the last."""

    if TYPE_CHECKING:  # nn.Module's own returns Any

        def __call__(
            self, tokens: Tensor, state: State = None, context: Tensor | None = None
        ) -> tuple[Tensor, State]: ...

    def parameter_vectors(self) -> list[tuple[str, nn.Parameter]]:
        """What training changes, by name and in a fixed order: the layers of per-layer clipping."""
        return [(name, value) for name, value in self.named_parameters() if value.requires_grad]

    def normalise_(self) -> None:
        """Bring parameters back to the set they are restricted to, after an optimizer's step."""


def detached(state: State) -> State:
    """The state without its history: where truncated back-propagation cuts a text in two."""
    return None if state is None else tuple(tensor.detach() for tensor in state)


def check_size(name: str, value: int, *, at_least: int = 1, at_most: int = _LARGEST_SIZE) -> None:
    """Raise `ValueError` unless the value is a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if not at_least <= value <= at_most:
        raise ValueError(f"{name} must be between {at_least} and {at_most}, got {value}")


def check_sizes(config: DataclassInstance, limits: Limits) -> None:
    """Raise `ValueError` unless every field of a model's configuration can be what it is.

    A whole number has to be at least 1, or within its `limits`; a flag true or false; any other
    number is a share (such as a dropout), of at least 0 and below 1.
    """
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if field.type == "int":
            least, most = limits.get(name, (1, _LARGEST_SIZE))
            check_size(name, value, at_least=least, at_most=most)
        elif field.type == "bool":
            if not isinstance(value, bool):  # 1 and 0 are refused
                raise ValueError(f"{name} must be true or false, got {value!r}")
        elif field.type == "float":
            check_share(name, value)


def check_share(name: str, value: float) -> None:
    """Raise `ValueError` unless the value is a number of at least 0 and below 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value < 1):
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


def refuse_context(config: ModelConfig) -> None:
    """Raise `ValueError` for a model to train that reads a feature vector about its user.

    McMahan et al. 2018 name it as a possibility and trained without.  A corpus has people's text
    and nothing else about them, so that weights would be spent, and noised, on a vector of zeros.
    """
    size = getattr(config, "context_size", 0)
    if size:
        raise ValueError(
            f"context_size must be 0 in a training, got {size}: a corpus has people's text and no"
            " feature vector about them to give the model"
        )


def check_inputs(tokens: Tensor, context: Tensor | None = None, context_size: int = 0) -> None:
    """Raise `ValueError` unless a model can read these.

    Tokens are a batch of texts of at least one token each; the context, if there is one, is a
    feature vector of `context_size` for each text.
    """
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(
            f"tokens must have the shape [batch, time], time at least 1, got {list(tokens.shape)}"
        )
    if context is not None and context_size == 0:
        raise ValueError("context was given to a model with context_size 0, which takes none")
    if context is not None and list(context.shape) != [len(tokens), context_size]:
        raise ValueError(
            f"context must have the shape {[len(tokens), context_size]}, got {list(context.shape)}"
        )


def loss(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats, summed where `mask` is true, and the number of those positions.

    `logits` is [..., vocabulary]; `targets` and `mask` have the shape before that.  A sum and a
    count, rather than a mean, so that the caller decides what is averaged over: positions of a
    batch, a user, or a text.  What is masked has no part in either, nor in a gradient; its target
    may be anything.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must have the shape {list(logits.shape[:-1])} of the logits' positions, got"
            f" {list(targets.shape)}"
        )
    if mask is None:
        mask = torch.ones_like(targets, dtype=torch.bool)
    if mask.shape != targets.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must have the shape {list(targets.shape)} of the targets and be of booleans, got"
            f" {list(mask.shape)} of {mask.dtype}"
        )
    kept = targets.masked_fill(~mask, _IGNORED)
    total = functional.cross_entropy(
        logits.flatten(0, -2), kept.flatten(), reduction="sum", ignore_index=_IGNORED
    )
    return total, mask.sum()


def layer_sizes(model: LanguageModel) -> tuple[int, ...]:
    """How many values of the flat vector each parameter vector takes, in order.

    These are the layers of per-layer clipping.
    """
    return tuple(values.numel() for _, values in model.parameter_vectors())


def train_only(model: LanguageModel, names: Sequence[str]) -> LanguageModel:
    """Freeze all parameters but those with these names, or whose names begin with one of them.

    A beginning is whole words between dots: "layers" is all layers, "embedding.output_bias" one
    parameter.  No names at all freeze nothing, and what the model freezes by itself stays frozen.
    From then on users' updates, clip, noise and the server's state are of the other parameters
    only.  Returns the model.

    Raises:
        ValueError: if a name is of no parameter that the model trains.
    """
    trainable = [name for name, _ in model.parameter_vectors()]
    for start in names:
        if not any(_begins_with(name, start) for name in trainable):
            raise ValueError(
                f"model.trained: there is no parameter {start!r} to train; the model has"
                f" {', '.join(trainable)}"
            )
    for name, parameter in model.parameter_vectors() if names else ():
        parameter.requires_grad_(any(_begins_with(name, start) for start in names))
    return model


def _begins_with(name: str, start: str) -> bool:
    """Whether a parameter's name is this one, or goes on after it with a dot."""
    return name == start or name.startswith(f"{start}.")


@contextmanager
def frozen_kept(model: LanguageModel) -> Iterator[None]:
    """Put back every bit of the frozen parameters that is changed inside, as `normalise_` may."""
    frozen = [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]
    yield
    with torch.no_grad():
        for parameter, before in frozen:
            parameter.copy_(before)


def trained_ranges(model: LanguageModel) -> tuple[slice, ...]:
    """Where the trained parameters are in the vector of all of them, `whole_vector`, in order."""
    ranges: list[slice] = []
    end = 0
    for parameter in model.parameters():
        first, end = end, end + parameter.numel()
        if not parameter.requires_grad:
            continue
        if ranges and ranges[-1].stop == first:
            first = ranges.pop().start
        ranges.append(slice(first, end))
    return tuple(ranges)


def whole_vector(model: LanguageModel) -> NDArray[np.float32]:
    """A copy of all parameters, one after the other, the frozen ones among them."""
    parts = [values.detach().reshape(-1) for values in model.parameters()]
    return torch.cat(parts).to("cpu", torch.float32).numpy()


def parameter_count(model: LanguageModel) -> int:
    """How many values training changes."""
    return sum(layer_sizes(model))


def lasting_tensors(model: LanguageModel) -> dict[str, Tensor]:
    """Parameters and the buffers that a file keeps, each once, however many names it has."""
    lasting = model.state_dict().keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    return tensors | {name: value for name, value in model.named_buffers() if name in lasting}


def to_vector(model: LanguageModel) -> NDArray[np.float32]:
    """A copy of all parameter vectors, one after the other in the model's order.

    This is theta of the papers: what users start from, what their updates are added to, and what a
    checkpoint's hash is of.
    """
    parts = [values.detach().reshape(-1) for _, values in model.parameter_vectors()]
    return torch.cat(parts).to("cpu", torch.float32).numpy()


def from_vector_(model: LanguageModel, vector: NDArray[Any]) -> None:
    """Set all parameter vectors from a flat vector of float32 or float64, in place.

    The inverse of `to_vector`.  Parameters that training does not change stay as they are.
    """
    count = parameter_count(model)
    if vector.shape != (count,) or vector.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"vector must be one flat vector of {count} values of float32 or float64, got shape"
            f" {list(vector.shape)} of {vector.dtype}"
        )
    values = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
    blocks = torch.split(values, list(layer_sizes(model)))
    with torch.no_grad():
        for (_, parameter), block in zip(model.parameter_vectors(), blocks, strict=True):
            parameter.copy_(block.view_as(parameter))


def require(package: str, extra: str, what: str) -> None:
    """Raise `ValueError` with the way to install a package of an extra that is missing."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{what} needs the package {package}: pip install 'tacit-dp[{extra}]'")
