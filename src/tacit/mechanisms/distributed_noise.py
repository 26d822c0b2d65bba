"""Noise that the users share: the distributed discrete Gaussian (Kairouz, Liu and Steinke 2021).

A user's clipped update is rotated, divided by a public step, rounded to integers, and given
discrete Gaussian noise of a share of the variance, all of it by the user.  What is summed, modulo
2^width, is noisy before it is known to anybody; the server undoes step and rotation.

Guarantee: the integers of a user have a squared norm of at most `squared_bound` before noise,
however they came about: it is the last thing that is checked, in exact arithmetic.  So the sum over
the integers is one release of `each()`, as long as at least `survivors` vectors are in it, of which
at most `colluding` belong to those who know and subtract their own noise; more noise is
post-processing.  The sum modulo 2^width is post-processing, too, so wrapping costs accuracy and no
privacy; and so is all that the server makes of it.

Rounding up and down at random makes the mean right and the norm larger.  As in the paper's
section on conditional rounding, |x| <= s in steps becomes

    |rounded|^2 <= s^2 + d/4 + sqrt(2 log(1/b)) (s + sqrt(d)/2)

in d dimensions with probability at least 1 - b, here e^{-1/2}.  The right side, or (s + sqrt(d))^2
which always holds, is the bound, and a rounding beyond it is drawn again.  This shifts the mean by
a little and the guarantee by nothing, since it rests on the check and not on the probability.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.mechanisms.fixed_point import Integers
from tacit.mechanisms.noise import NoiseState, RoundNoise
from tacit.mechanisms.rotation import Rotation
from tacit.mechanisms.samplers import Sampler, TurnSampler
from tacit.mechanisms.strategies import INDEPENDENT
from tacit.mechanisms.summing import square_of
from tacit.mechanisms.turns import Position
from tacit.privacy.events import (
    Adjacency,
    DistributedGaussian,
    Event,
    TurnsDistributedGaussian,
)
from tacit.privacy.records import Count, at_least, canonical_json
from tacit.privacy.stream import Stream

OwnStream = Callable[[Integers], Stream]
"""The secret randomness of one user, which follows from what it is to hide."""

WIDTHS = tuple(range(16, 65, 8))  # whole bytes
# A coordinate of the sum wraps if it is further than so many standard deviations from zero: one in
# two million, each of which costs the square of ten deviations.
_DEVIATIONS = 5.0
# Rounding must not make the bound, and so the noise, larger than this many times.
_MOST_INFLATION = 1.5
_LARGEST_STEPS = 2**30
_LOG_FAILURE = 0.5  # log(1/b) of the bound on a rounded vector's norm
_TRIES = 40


@dataclass(frozen=True)
class DistributedNoise(RoundNoise):
    """Every user's share of the noise, and the grid of the sum.

    `noise_multiplier` is the noise of the honest among the fewest `survivors` over the sensitivity
    to one user's vector.  `size` is how many values an update has.  The step is the finest for
    which the sum of `clients` vectors and their noise has room in `width` bits; that of more
    wraps more often, and is as private.
    """

    size: Annotated[int, at_least(1)]
    clients: Annotated[int, at_least(2)]
    survivors: Annotated[int, at_least(2)]
    colluding: Count = 1
    width: int = 16
    kind: ClassVar[str] = "distributed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.colluding < self.survivors <= self.clients:
            raise ValueError(
                f"survivors must be more than the {self.colluding} colluding and at most all"
                f" {self.clients} clients, got {self.survivors}"
            )
        if self.width not in WIDTHS:
            raise ValueError(f"width must be a multiple of 8 from 16 to 64, got {self.width}")

    # What follows from the fields.

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.size)

    @cached_property
    def steps(self) -> int:
        """The clip norm in steps: the most for which a coordinate of the sum has room."""
        low, high = 1, _LARGEST_STEPS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has_room(middle) else (low, middle - 1)
        return low

    def step(self, clip: ClipState) -> float:
        """What an integer stands for, in the unit of an update's coordinates."""
        return clip.total_norm / self.steps

    @cached_property
    def squared_bound(self) -> int:
        """The most that the squared norm of a user's integers is, before noise."""
        return _squared_bound(self.steps, self.rotation.padded)

    @property
    def shares(self) -> int:
        """How many honest users' noise is in every sum."""
        return self.survivors - self.colluding

    @property
    def share_stddev(self) -> float:
        """The parameter of each user's noise, in steps."""
        return self.noise_multiplier * math.sqrt(self.squared_bound / self.shares)

    @property
    def inflation(self) -> float:
        """How many times as large the bound, and so the noise, is for the rounding."""
        return math.sqrt(self.squared_bound) / self.steps

    @property
    def is_coarse(self) -> bool:
        """Whether the sum has too few bits: it is sound all the same, and of little use."""
        return not self.inflation <= _MOST_INFLATION

    def refuse_coarse(self) -> None:
        """Raise where rounding would drown the update."""
        if self.is_coarse:
            raise ValueError(
                f"width must be above {self.width} bits for {self.clients} clients and a"
                f" noise_multiplier of {self.noise_multiplier:g}: rounding would make the noise"
                f" {self.inflation:.3g} times as large; leave plan.width out"
            )

    # What it costs.

    def adjacency(self, sampler: Sampler) -> Adjacency:
        """Zero-out-one: whoever is not there adds no noise either, so that nobody can be removed.

        Somebody's data is there or is not, or under replace-one is any other; that they take part
        is known.
        """
        if sampler.adjacency is Adjacency.REPLACE:
            return Adjacency.REPLACE
        return Adjacency.ZERO_OUT

    def each(self, adjacency: Adjacency = Adjacency.ZERO_OUT) -> DistributedGaussian:
        """What a sum costs: somebody's vector against none, or against any other."""
        times = 2 if adjacency is Adjacency.REPLACE else 1
        return DistributedGaussian(
            shares=self.shares,
            share_stddev=self.share_stddev,
            sensitivity=times * math.sqrt(self.squared_bound),
            coordinates=self.rotation.padded,
            stated_for=adjacency,
        )

    def event(self, sampler: Sampler, multiplier: float, at: Position) -> Event:
        """One release for each turn that a user has had."""
        assert isinstance(sampler, TurnSampler), "refused when the plan is made"
        each = self.each(self.adjacency(sampler))
        return TurnsDistributedGaussian(
            horizon=at.horizon,
            rounds=at.rounds,
            separation=sampler.separation,
            noise=INDEPENDENT.name,
            noise_multiplier=each.noise_multiplier,
            each=each,
        )

    def noise_stddev(self, survivors: int, clip: ClipState) -> float:
        """The standard deviation of the noise on a sum of so many, in the unit of the updates."""
        return self.step(clip) * self.share_stddev * math.sqrt(survivors)

    def relative_error(self, rounds: int) -> float:
        """If nobody drops out: noise is made for the fewest survivors, and for rounded updates."""
        return self.inflation * math.sqrt(self.clients / self.shares)

    # A round.

    def share(self, update: NDArray[np.floating], clip: ClipState, own: Stream) -> Integers:
        """A user's vector for the sum, noise included; `own` is never used for another vector."""
        vector = self.rounded(update, clip, own)
        vector += discrete_gaussian(self.share_stddev, vector.size, own)
        return vector

    def rounded(self, update: NDArray[np.floating], clip: ClipState, own: Stream) -> Integers:
        """The rotated update in whole steps, before noise; secret.

        One that is longer than the clip norm is scaled down to it, and one with a NaN or an
        infinity becomes zero.
        """
        exact = self.rotation.rotate(update.astype(np.float64), _rotating(clip))
        norm = math.sqrt(square_of(exact))
        if not math.isfinite(norm):
            return np.zeros(exact.shape, np.int64)
        exact *= self.steps / max(norm, clip.total_norm)
        below = np.floor(exact)
        exact -= below
        whole = below.astype(np.int64)
        for _ in range(_TRIES):
            rounded = whole + (own.uniform(exact.size) < exact)
            if self._is_bounded(rounded):
                return rounded
        toward_zero = np.trunc(below + exact).astype(np.int64)
        return toward_zero if self._is_bounded(toward_zero) else np.zeros_like(whole)

    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        """The statistic as it is: its users have added the noise."""
        return statistic, ()

    def total(self, summed: Integers, clip: ClipState) -> NDArray[np.float64]:
        """The noisy sum of the updates, from that of the vectors, whole or modulo 2^width."""
        half = 1 << (self.width - 1)
        wrapped = ((summed + half) & (2 * half - 1)) - half if self.width < 64 else summed
        return self.rotation.restore(wrapped * self.step(clip), _rotating(clip))

    def _is_bounded(self, vector: Integers) -> bool:
        """Exactly: no square of an int64 sum wraps, for coordinates of at most steps + 1."""
        return int(np.vdot(vector, vector)) <= self.squared_bound

    def _has_room(self, steps: int) -> bool:
        """Whether the sum of all clients' integers is within 2^(width - 1), but for rare tails."""
        noise: float = self.noise_multiplier**2 * _squared_bound(steps, self.rotation.padded)
        noise *= self.clients / self.shares  # if nobody drops out
        spread: float = min(1.0, _DEVIATIONS / math.sqrt(self.rotation.padded))
        signal = self.clients * steps * spread
        rounding = self.clients / 4
        return _DEVIATIONS * math.sqrt(noise + rounding) + signal <= 1 << (self.width - 1)


def _rotating(clip: ClipState) -> Stream:
    """The public stream of a round's rotation: all of the round know its clip norms and number."""
    facts = canonical_json([list(clip.norms), clip.round])
    return Stream(hashlib.sha256(f"tacit rotation {facts}".encode()).digest())


def _squared_bound(steps: int, coordinates: int) -> int:
    """The bound of the module's formula, rounded down: squared norms are whole."""
    root = math.sqrt(coordinates)
    likely = math.sqrt(2 * _LOG_FAILURE) * (steps + root / 2)
    return math.floor(min(steps**2 + coordinates / 4 + likely, (steps + root) ** 2))
