"""How the noise of eDP-SGD falls over the training (Dupuy et al. 2021, section 3, "Noise Decay").

The noise multiplier at time t is z_t = z_0 d(t), with one of

    none          d(t) = 1
    linear        d(t) = 1 / (1 + tau t)
    exponential   d(t) = e^(-tau t)

The paper counts t in epochs.  Under Poisson sampling there are none; a record is then drawn once in
1/q steps on average, so t is the step times q, and grows with every step.

Guarantee: d is a public function of t, at most 1 and never rising, so the noise of each step is
known beforehand and each step has an event of its own.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

from tacit.mechanisms.parts import Part


@dataclass(frozen=True)
class NoiseDecay(Part, abc.ABC):
    """The share of the first noise that is left at a time."""

    def factor(self, time: float) -> float:
        """d(t), for a time in epochs, counted from 0."""
        if not (time >= 0 and math.isfinite(time)):
            raise ValueError(f"time must be a finite number of at least 0, got {time}")
        return self._factor(time)

    @abc.abstractmethod
    def _factor(self, time: float) -> float: ...


@dataclass(frozen=True)
class NoDecay(NoiseDecay):
    """d(t) = 1."""

    kind: ClassVar[str] = "no-decay"

    def _factor(self, time: float) -> float:
        return 1.0


@dataclass(frozen=True)
class LinearDecay(NoiseDecay):
    """d(t) = 1 / (1 + tau t)."""

    rate: float
    kind: ClassVar[str] = "linear-decay"

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def _factor(self, time: float) -> float:
        return 1 / (1 + self.rate * time)


@dataclass(frozen=True)
class ExponentialDecay(NoiseDecay):
    """d(t) = e^(-tau t)."""

    rate: float
    kind: ClassVar[str] = "exponential-decay"

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def _factor(self, time: float) -> float:
        return math.exp(-self.rate * time)


def decay_named(name: str, rate: float | None = None) -> NoiseDecay:
    """The decay that a setting names: none, linear or exponential, the last two with their tau."""
    if name not in ("none", "linear", "exponential"):
        raise ValueError(f"decay must be one of none, linear, exponential, got {name!r}")
    if name == "none":
        if rate is not None:
            raise ValueError(f"decay none has no rate, got a rate of {rate}")
        return NoDecay()
    if rate is None:
        raise ValueError(f"decay {name} needs a rate, which is the paper's tau")
    return LinearDecay(rate) if name == "linear" else ExponentialDecay(rate)


def _check_rate(rate: float) -> None:
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate must be a finite number above 0, got {rate}; or use no decay")
