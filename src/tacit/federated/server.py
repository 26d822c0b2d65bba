"""What the server does with a round's average: theta <- theta + learning_rate * direction.

The average update takes the place of a negative gradient (Reddi et al., "Adaptive Federated
Optimization", ICLR 2021).  All of this is post-processing of a release and costs no privacy.

Each optimizer is a pure function of weights, average and state, in float64, whose results are
rounded to float32: a resumed run repeats every bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.models.base import LanguageModel, check_flag, from_vector_, to_vector
from tacit.privacy import checks

Weights = NDArray[np.float32]
Average = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class ServerSGD:
    """direction = average: Algorithm 1, if the learning rate is 1."""

    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)

    def initial(self, size: int) -> State:
        """No state."""
        return {}

    def apply(self, weights: Weights, average: Average, state: State) -> tuple[Weights, State]:
        """theta + learning_rate * average."""
        _check_size(weights, average)
        return _moved(weights, self.learning_rate * average), {}


@dataclass(frozen=True)
class ServerMomentum:
    """v <- momentum v + average; direction = v, or average + momentum v with `nesterov`."""

    learning_rate: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        _check_decay("momentum", self.momentum)
        check_flag("nesterov", self.nesterov)

    def initial(self, size: int) -> State:
        """The velocity v, zero before the first round."""
        return {"velocity": np.zeros(size, np.float32)}

    def apply(self, weights: Weights, average: Average, state: State) -> tuple[Weights, State]:
        """theta + learning_rate * direction, and the new velocity."""
        _check_size(weights, average)
        velocity = self.momentum * _float64(state, "velocity", len(weights)) + average
        direction = average + self.momentum * velocity if self.nesterov else velocity
        moved = _moved(weights, self.learning_rate * direction)
        return moved, {"velocity": velocity.astype(np.float32)}


@dataclass(frozen=True)
class ServerAdam:
    """Kingma and Ba 2015, Algorithm 1, with the average as negative gradient.

        m <- beta1 m + (1 - beta1) average           v <- beta2 v + (1 - beta2) average^2
        direction = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + stabiliser)

    `stabiliser` is their epsilon, a name that means privacy here.  Its default is that of Reddi et
    al. for averaged updates, which are small: with 1e-8 a word that very few users wrote would move
    as far as a frequent one.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    stabiliser: float = 1e-3

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        _check_decay("beta1", self.beta1)
        _check_decay("beta2", self.beta2)
        checks.positive("stabiliser", self.stabiliser)

    def initial(self, size: int) -> State:
        """The moments m and v, and the number of steps t."""
        return {
            "mean": np.zeros(size, np.float32),
            "square": np.zeros(size, np.float32),
            "step": np.zeros(1, np.int64),
        }

    def apply(self, weights: Weights, average: Average, state: State) -> tuple[Weights, State]:
        """theta + learning_rate * direction, and the new moments."""
        _check_size(weights, average)
        t = int(_array(state, "step", 1)[0]) + 1
        m = self.beta1 * _float64(state, "mean", len(weights)) + (1 - self.beta1) * average
        v = self.beta2 * _float64(state, "square", len(weights)) + (1 - self.beta2) * average**2
        direction = m / (1 - self.beta1**t) / (np.sqrt(v / (1 - self.beta2**t)) + self.stabiliser)
        moved = _moved(weights, self.learning_rate * direction)
        return moved, {
            "mean": m.astype(np.float32),
            "square": v.astype(np.float32),
            "step": np.array([t], np.int64),
        }


ServerOptimizer = ServerSGD | ServerMomentum | ServerAdam


def normalised(model: LanguageModel, weights: Weights) -> Weights:
    """The weights back in the set that the model is restricted to, which noise has left.

    The model is used to compute it and ends up with these weights.
    """
    from_vector_(model, weights)
    model.normalise_()
    return to_vector(model)


def _moved(weights: Weights, step: Average) -> Weights:
    """theta + step, added in float64 and rounded once."""
    return (weights + step).astype(np.float32)


def _check_size(weights: Weights, average: Average) -> None:
    """Refuse another size: NumPy would stretch an average of one value to any."""
    if weights.shape != average.shape:
        raise ValueError(
            f"the average must have the {len(weights)} values of the weights, got {len(average)}"
        )


def _array(state: State, name: str, size: int) -> NDArray[np.generic]:
    """One array of the state; `ValueError` if it is missing or of another size."""
    if name not in state or state[name].shape != (size,):
        shape = list(state[name].shape) if name in state else "none"
        raise ValueError(f"the optimizer's state must have {size} values of {name!r}, got {shape}")
    return state[name]


def _float64(state: State, name: str, size: int) -> NDArray[np.float64]:
    return _array(state, name, size).astype(np.float64)


def _check_decay(name: str, value: float) -> None:
    """Raise `ValueError` unless the value is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
