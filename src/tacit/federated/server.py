"""What the server does with a round's average: theta <- theta + learning_rate * direction.

The average update takes the place of a negative gradient (Reddi et al., "Adaptive Federated
Optimization", ICLR 2021).  All of this is post-processing of a release and costs no privacy.

Each optimizer is a pure function of weights, average and state, in float64, whose results are
rounded to float32: a resumed run repeats every bit.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tacit.models.base import LanguageModel, check_share, from_vector_, frozen_kept, to_vector
from tacit.privacy.records import Positive, Record

Weights = NDArray[np.float32]
Average = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]


class ServerOptimizer(Record, abc.ABC):
    """theta <- theta + learning_rate * direction, with a direction of the average and a state."""

    learning_rate: float

    def initial(self, size: int) -> State:
        """The state before the first round, for `size` weights."""
        return {}

    def apply(
        self, weights: Weights, average: Average, state: State, rate_share: float = 1.0
    ) -> tuple[Weights, State]:
        """The next weights and state, from a round's released average.

        `rate_share` is the share of the learning rate that the round has (`RateSchedule.share`).
        Computed in float64 and rounded once.  Raises `ValueError` for another size: NumPy would
        stretch an average of one value to any.
        """
        if weights.shape != average.shape:
            raise ValueError(
                f"the average must have the {len(weights)} values of the weights, got"
                f" {len(average)}"
            )
        direction, state = self._direction(average, state)
        rate = self.learning_rate * rate_share
        return (weights + rate * direction).astype(np.float32), state

    @abc.abstractmethod
    def _direction(self, average: Average, state: State) -> tuple[Average, State]:
        """Where to go, and the state for the next round."""


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """direction = average: Algorithm 1, if the learning rate is 1."""

    learning_rate: Positive = 1.0

    def _direction(self, average: Average, state: State) -> tuple[Average, State]:
        return average, {}


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """v <- momentum v + average; direction = v, or average + momentum v with `nesterov`."""

    learning_rate: Positive = 1.0
    momentum: Annotated[float, check_share] = 0.9
    nesterov: bool = False

    def initial(self, size: int) -> State:
        """v = 0."""
        return {"velocity": np.zeros(size, np.float32)}

    def _direction(self, average: Average, state: State) -> tuple[Average, State]:
        velocity = self.momentum * _float64(state, "velocity", len(average)) + average
        direction = average + self.momentum * velocity if self.nesterov else velocity
        return direction, {"velocity": velocity.astype(np.float32)}


@dataclass(frozen=True)
class ServerAdam(ServerOptimizer):
    """Kingma and Ba 2015, Algorithm 1, with the average as negative gradient.

        m <- beta1 m + (1 - beta1) average           v <- beta2 v + (1 - beta2) average^2
        direction = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + stabiliser)

    `stabiliser` is their epsilon, a name that means privacy here.  Its default is that of Reddi et
    al. for averaged updates, which are small: with 1e-8 a word that very few users wrote would move
    as far as a frequent one.
    """

    learning_rate: Positive
    beta1: Annotated[float, check_share] = 0.9
    beta2: Annotated[float, check_share] = 0.99
    stabiliser: Positive = 1e-3

    def initial(self, size: int) -> State:
        """m = v = 0 and t = 0."""
        return {
            "mean": np.zeros(size, np.float32),
            "square": np.zeros(size, np.float32),
            "step": np.zeros(1, np.int64),
        }

    def _direction(self, average: Average, state: State) -> tuple[Average, State]:
        t, size = int(_float64(state, "step", 1)[0]) + 1, len(average)
        m = self.beta1 * _float64(state, "mean", size) + (1 - self.beta1) * average
        v = self.beta2 * _float64(state, "square", size) + (1 - self.beta2) * average**2
        direction = m / (1 - self.beta1**t) / (np.sqrt(v / (1 - self.beta2**t)) + self.stabiliser)
        return direction, {
            "mean": m.astype(np.float32),
            "square": v.astype(np.float32),
            "step": np.array([t], np.int64),
        }


# What `[server] optimizer` of an experiment may say.  An optimizer's fields are set from those of
# that section with the same names.
OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "sgd": ServerSGD,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
}


def normalised(model: LanguageModel, weights: Weights) -> Weights:
    """The weights back in the set that the model is restricted to, which noise has left.

    The model is used to compute it and ends up with these weights.
    """
    from_vector_(model, weights)
    with frozen_kept(model):
        model.normalise_()
    return to_vector(model)


def _float64(state: State, name: str, size: int) -> NDArray[np.float64]:
    """One array of the state, in which directions are computed.

    Raises `ValueError` if it is missing or of another size.
    """
    if name not in state or state[name].shape != (size,):
        shape = list(state[name].shape) if name in state else "none"
        raise ValueError(f"the optimizer's state must have {size} values of {name!r}, got {shape}")
    return state[name].astype(np.float64)
