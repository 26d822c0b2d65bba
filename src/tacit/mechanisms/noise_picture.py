"""What correlated noise looks like: its matrix, and what it leaves on the sum of all rounds so far.

Round t adds x_t = (C^-1 z)_t with z fresh in every round (`strategies`).  A model is a running sum
of what rounds release, so the error of that sum stands beside the one that independent noise would
leave for the same people, turns and epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tacit.mechanisms.noise import CorrelatedNoise, IndependentNoise, RoundNoise
from tacit.mechanisms.samplers import Sampler
from tacit.mechanisms.strategies import INDEPENDENT, Strategy
from tacit.mechanisms.turns import FIRST
from tacit.privacy.events import Horizon

_ROUNDS_SHOWN = 32  # of the matrix; the first rounds are correlated as if they were all there are
_POINTS = 24  # on a curve of errors


@dataclass(frozen=True)
class NoisePicture:
    """The first rows of C, without the zeros above its diagonal, and the errors after some rounds.

    An error is a standard deviation, in multiples of what one user can add to one round.
    """

    kind: str
    vectors: int
    relative_error: float  # as a root mean square over the rounds, beside independent noise
    matrix: tuple[tuple[float, ...], ...]
    after: tuple[int, ...]
    errors: tuple[float, ...]
    independent_errors: tuple[float, ...]  # at the same epsilon

    @classmethod
    def of(cls, noise: RoundNoise | None, sampler: Sampler, rounds: int) -> NoisePicture | None:
        """That of so many rounds; None of noise that is not correlated."""
        if not isinstance(noise, CorrelatedNoise):
            return None
        z, strategy = noise.noise_multiplier, noise.strategy
        independent = IndependentNoise(z)
        z_independent = z * _cost(independent, sampler, rounds) / _cost(noise, sampler, rounds)
        after = sorted({round(float(x)) for x in np.geomspace(1, rounds, _POINTS)})
        shown = strategy.matrix(min(rounds, _ROUNDS_SHOWN)).tolist()
        return cls(
            kind=strategy.name,
            vectors=noise.vectors(rounds),
            relative_error=noise.relative_error(rounds) * z / z_independent,
            matrix=tuple(tuple(row[: t + 1]) for t, row in enumerate(shown)),
            after=tuple(after),
            errors=_errors(strategy, z, after),
            independent_errors=_errors(INDEPENDENT, z_independent, after),
        )


def _cost(noise: RoundNoise, sampler: Sampler, rounds: int) -> float:
    """The sensitivity of all rounds, or of a turn: what a single round's noise is divided by."""
    event = noise.event(sampler, 1.0, replace(FIRST, rounds=rounds))
    assert isinstance(event, Horizon), "correlated noise is for users who take turns"
    return 1 / event.noise_multiplier


def _errors(strategy: Strategy, z: float, after: Sequence[int]) -> tuple[float, ...]:
    variances = strategy.running_sum_variances(after[-1])
    return tuple(float(z * variances[round - 1] ** 0.5) for round in after)
