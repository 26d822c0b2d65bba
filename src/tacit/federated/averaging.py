"""The model that is released as a mean over the models after several rounds.

Noise and the choice of cohorts make each round's model, an *iterate*, scatter around where training
is going.  A mean of iterates scatters less (Polyak and Juditsky 1992; De et al. 2022 for training
with differential privacy).  Training itself goes on from the last iterate as if nothing was
averaged.  All iterates are made from releases that the ledger has, so their mean costs nothing.

    mean <- mean + a (iterate - mean)

with a = 1 / n makes the plain mean of n iterates, and a = (1 - d) / (1 - d^n) the exponential
moving average with decay d after its correction for bias (Kingma and Ba 2015, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.records import OpenUnit, Probability, Record, one_of

Weights = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class IterateAveraging(Record):
    """Which iterates the released model is a mean of.

    "tail" averages the last `share` of all rounds, and before them releases the iterate itself;
    "ema" averages all of them, each round's with `decay` times the weight of the next one's.
    """

    kind: Annotated[str, one_of("tail", "ema")] = "tail"
    share: Probability = 0.5
    decay: OpenUnit = 0.9

    def begins(self, rounds: int) -> int:
        """The first round, counted from 0, whose iterate is averaged: public from the start."""
        if self.kind == "ema":
            return 0
        return rounds - max(1, round(self.share * rounds))

    def weight(self, count: int) -> float:
        """a: how much the newest of `count` iterates weighs in the mean."""
        if self.kind == "ema":
            return (1 - self.decay) / (1 - self.decay**count)
        return 1 / count


@dataclass(frozen=True)
class IterateMean:
    """The mean of the iterates so far, of which there are `count`.

    It is computed in float64 and rounded to float32 once a round, so a run that goes on from a
    checkpoint repeats every bit.
    """

    values: Weights
    count: int

    def followed_by(self, iterate: Weights, averaging: IterateAveraging) -> IterateMean:
        """With one more iterate."""
        a = averaging.weight(self.count + 1)
        values = self.values + a * (iterate.astype(np.float64) - self.values)
        return IterateMean(values.astype(np.float32), self.count + 1)


# The arrays of a checkpoint whose model is a mean.
_ITERATE, _MEAN, _COUNT = "averaging.iterate", "averaging.mean", "averaging.count"


def to_arrays(iterate: Weights, mean: IterateMean) -> dict[str, NDArray[Any]]:
    """What a checkpoint keeps besides its model: where training goes on, and the mean.

    The mean is not the model where that has vectors of unit norm: those of the model are
    normalised, and the mean's are not.
    """
    return {_ITERATE: iterate, _MEAN: mean.values, _COUNT: np.array([mean.count], np.int64)}


def from_arrays(arrays: Arrays, model: Weights) -> tuple[Weights, IterateMean | None]:
    """The iterate and the mean of a checkpoint; without a mean, its model is the iterate."""
    if _MEAN not in arrays:
        return model, None
    iterate, mean = arrays[_ITERATE], arrays[_MEAN]
    if not iterate.shape == mean.shape == model.shape:
        raise ValueError(
            f"the checkpoint's iterate and mean must have the {len(model)} values of its model, got"
            f" {len(iterate)} and {len(mean)}"
        )
    return iterate, IterateMean(mean, int(arrays[_COUNT][0]))


def without_mean(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint without those of a mean: the optimizer's."""
    return {name: arrays[name] for name in arrays if name not in (_ITERATE, _MEAN, _COUNT)}
