"""What every language model is: token ids in, scores of the next token out."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

# What a model remembers between two calls: tensors with the batch as first dimension, so that rows
# can be picked from each alike.  None in a call is the beginning of a text.  None as a result says
# that the model remembers nothing and has to be given the whole text every time.
State = tuple[Tensor, ...] | None

# Far beyond any use; a file from elsewhere may ask for more than a machine can count to.
_LARGEST_SIZE = 2**24


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model: all that is needed, besides its weights, to build it again."""

    vocab_size: int
    kind: ClassVar[str]  # the name in the registry

    def __post_init__(self) -> None:
        check_size("vocab_size", self.vocab_size)


class LanguageModel(nn.Module, abc.ABC):
    """Maps tokens [batch, time] to logits [batch, time, vocabulary] and the state after them.

    The logits at a position score the token that follows it and depend on nothing later, nor on
    other rows of the batch.  `context` is an optional feature vector about the user of each row,
    [batch, context_size] (McMahan et al. 2018, appendix B); left out, it is zero.
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
    """The state without its history, where truncated back-propagation cuts a text."""
    return None if state is None else tuple(tensor.detach() for tensor in state)


def check_size(name: str, value: int, *, at_least: int = 1, at_most: int = _LARGEST_SIZE) -> None:
    """A whole number within its bounds, or one sentence about it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if not at_least <= value <= at_most:
        raise ValueError(f"{name} must be between {at_least} and {at_most}, got {value}")


def check_flag(name: str, value: bool) -> None:
    """True or false, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def check_tokens(tokens: Tensor) -> None:
    """A batch of texts with at least one token each."""
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(
            f"tokens must have the shape [batch, time], time at least 1, got {list(tokens.shape)}"
        )


def check_context(context: Tensor | None, batch: int, context_size: int) -> None:
    """A feature vector per row, if the model takes any."""
    if context is None:
        return
    if context_size == 0:
        raise ValueError("context was given to a model with context_size 0, which takes none")
    if list(context.shape) != [batch, context_size]:
        raise ValueError(
            f"context must have the shape {[batch, context_size]}, got {list(context.shape)}"
        )
