"""Strategies: how the noise of a round takes back noise of earlier rounds.

With z_t fresh Gaussian noise in every round, round t adds x_t = (C^-1 z)_t to its sum g_t.  The
strategy matrix C is lower triangular with ones on its diagonal, so a round needs nothing of later
ones, and the first t rounds are those of the t x t matrix.  A learner adds up what is released, so
its error is that of the running sums, A C^-1 z with A the lower triangle of ones (Denisov et al.
2022, arXiv 2202.08312).

Guarantee: all that t rounds release is a function of C g + z, since g + C^-1 z = C^-1 (C g + z).
If one user's part of g is u_s of norm <= 1 in the rounds s of an allowed pattern and 0 elsewhere,
then C g moves by sum_s C_s u_s with C_s the columns of C, and `sensitivity` is at least the
largest norm that this can have.  So with z of standard deviation sigma, t rounds together are one
Gaussian release with multiplier sigma / sensitivity.
"""

from __future__ import annotations

import abc
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from tacit.mechanisms.participation import Participation
from tacit.mechanisms.parts import PlanPart
from tacit.privacy import checks
from tacit.privacy.records import at_least

Vector = NDArray[np.float64]
State = tuple[Vector, ...]

_TASK = 1 << 16  # values per task of a thread
_BLOCK = 1 << 13  # values at a time: 64 KiB of each vector, so that all of them stay in the cache
_MAX_THREADS = 4


@dataclass(frozen=True)
class Strategy(PlanPart, abc.ABC):
    """A strategy matrix C, one row for each round."""

    @property
    def name(self) -> str:
        """How a claim calls the noise."""
        return self.kind

    def fits_in(self, separation: int) -> bool:
        """Whether all noise is taken back within so many rounds, so that turns share none of it."""
        return False

    @abc.abstractmethod
    def matrix(self, rounds: int) -> Vector:
        """C of so many rounds, with all its zeros: for pictures and for tests."""

    @abc.abstractmethod
    def vectors(self, rounds: int) -> int:
        """How many vectors of the noise's size the state holds at most in so many rounds."""

    @abc.abstractmethod
    def step(self, fresh: Vector, state: State) -> tuple[Vector, State]:
        """This round's noise from the fresh draw z_t, and the state for the next round.

        The state is () before the first round.  Both arguments are consumed: x_t is written where
        the draw was, and the next state may be in the vectors of the last.  What is returned shares
        no memory with the next state.  Every value comes from the same operations in the same
        order, whatever the number of threads, so the result is the same bit for bit.
        The state is as secret as the noise: with it, noise could be subtracted again.
        """

    @abc.abstractmethod
    def sensitivity(self, participation: Participation, rounds: int) -> float:
        """A bound on |sum_s C_s u_s| over all allowed patterns and all |u_s| <= 1.

        It is for the columns of the first `rounds` rows.  `ValueError` where none is proved.
        """

    @abc.abstractmethod
    def largest_column(self, rounds: int) -> float:
        """The largest norm of a column of so many rounds: the sensitivity to one participation."""

    @abc.abstractmethod
    def largest_row(self, rounds: int) -> float:
        """The largest row norm of C^-1: the deviation of the noisiest x_t, for z of deviation 1.

        It grows without bound where C^-1 does, and such noise would soon leave the grid.
        """

    @abc.abstractmethod
    def running_sum_variances(self, rounds: int) -> Vector:
        """The squared row norms of A C^-1: how noisy each running sum is, for z of deviation 1."""


def running_sum_errors(strategy: Strategy, rounds: int) -> tuple[float, float]:
    """Root mean square and maximum, over the rounds, of the running sum's standard deviation.

    They are for fresh noise of deviation 1; times a sensitivity they are what papers compare.
    """
    checks.whole("rounds", rounds, at_least=1)
    variances = strategy.running_sum_variances(rounds)
    return math.sqrt(math.fsum(variances) / rounds), math.sqrt(max(variances))


@dataclass(frozen=True)
class ToeplitzStrategy(Strategy, abc.ABC):
    """C with the same values along each diagonal: C_ts = c_(t-s), and c_0 = 1."""

    @abc.abstractmethod
    def coefficients(self, rounds: int) -> Vector:
        """c_0, c_1, ...: the first column of C."""

    @abc.abstractmethod
    def _refusal(self, separation: int) -> str | None:
        """Why the bound of `sensitivity` is not proved for this separation; None if it is."""

    def matrix(self, rounds: int) -> Vector:
        return np.tril(toeplitz(self.coefficients(rounds)))

    def sensitivity(self, participation: Participation, rounds: int) -> float:
        """The norm of the sum of the columns 0, b, 2b, ... with b the separation: it is attained.

        The move's square is sum_st G_st <u_s, u_t> with G_st = <C_s, C_t> and, for s <= t,
        G_st = sum of c_i c_(i+t-s) over i < rounds - t.  That is at most sum_st |G_st|.

        * If all c_i >= 0 and never rise, G_st is >= 0, and it can only grow if t gets smaller (more
          terms) or t - s does (no term gets smaller).  The j-th round of an allowed pattern, from
          0, is at least jb, and the i-th and the j-th are at least |j - i| b apart.  So no pattern
          has more than 0, b, 2b, ... with as many rounds as are allowed, and further rounds only
          add (Kalinin and Lampert 2024, arXiv 2405.13763, section 4).
        * If c has at most b values that are not 0, columns that are b apart share no row, so
          G_st = 0 for s != t, and G_ss can only grow if s gets smaller.  The same pattern is worst.
        * One round alone is the case of G_ss.
        """
        times = participation.times(rounds)
        if times > 1 and (why := self._refusal(participation.separation)):
            raise ValueError(why)
        return _norm(pattern_sum(self.coefficients(rounds), participation.separation, times))

    def largest_column(self, rounds: int) -> float:
        """The norm of the first column: every other is a part of it."""
        return _norm(self.coefficients(rounds))

    def largest_row(self, rounds: int) -> float:
        """The norm of the last row, which has the values of all others: those of 1 / c(x)."""
        first = np.zeros(rounds)
        first[:1] = 1
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.linalg.norm(self._over_coefficients(first)))

    def running_sum_variances(self, rounds: int) -> Vector:
        """Row t of A C^-1 holds the first values of 1 / ((1 - x) c(x)), as a power series in x."""
        variances: Vector = np.cumsum(self._over_coefficients(np.ones(rounds)) ** 2)
        return variances

    def _over_coefficients(self, series: Vector) -> Vector:
        """The first values of series(x) / c(x)."""
        from scipy.signal import lfilter  # it takes as long to import as all else that is needed

        quotient: Vector = lfilter([1.0], self.coefficients(len(series)), series)
        return quotient


def pattern_sum(coefficients: Vector, separation: int, times: int) -> Vector:
    """The sum of the first `times` of the columns 0, b, 2b, ... of a Toeplitz matrix."""
    total = np.zeros_like(coefficients)
    for start in range(0, separation * times, separation):
        total[start:] += coefficients[: len(total) - start]
    return total


def _norm(values: Vector) -> float:
    """The Euclidean norm, summed exactly: the same on every machine."""
    return math.sqrt(math.fsum(values * values))


@dataclass(frozen=True)
class BufferedToeplitz(ToeplitzStrategy):
    """c_j = sum_i scales_i decays_i^(j-1): a few buffers remember all rounds (BLT).

    Dvijotham et al. 2024 (arXiv 2404.16706); McMahan et al. 2024 (arXiv 2408.08868).
    The scales are not negative and sum to c_1 <= 1 = c_0, so c never rises and is never negative.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]
    kind: ClassVar[str] = "blt"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < len(self.decays) == len(self.scales):
            raise ValueError(
                "decays and scales must have one value for each buffer, got"
                f" {len(self.decays)} and {len(self.scales)}"
            )
        for decay in self.decays:
            checks.open_unit("decays", decay)
        for scale in self.scales:
            checks.non_negative("scales", scale)
        if not math.fsum(self.scales) <= 1:
            raise ValueError(f"scales must sum to at most 1, got {math.fsum(self.scales)}")

    def coefficients(self, rounds: int) -> Vector:
        column = np.zeros(checks.whole("rounds", rounds))
        column[:1] = 1
        for decay, scale in zip(self.decays, self.scales, strict=True):
            powers = np.full(max(rounds - 1, 0), decay)
            powers[:1] = 1
            column[1:] += scale * np.cumprod(powers)
        return column

    def _refusal(self, separation: int) -> str | None:
        return None

    def vectors(self, rounds: int) -> int:
        return len(self.decays)

    def step(self, fresh: Vector, state: State) -> tuple[Vector, State]:
        """x_t = z_t - sum_i scales_i s_i, then s_i = decays_i s_i + x_t.

        So s_i is the sum of decays_i^(j-1) x_(t-j) over j >= 1, and C x = z.
        """
        if not state:
            return fresh, tuple(fresh.copy() for _ in self.decays)

        def work(part: slice, scratch: Vector) -> None:
            noise = fresh[part]
            buffers = [buffer[part] for buffer in state]
            for scale, buffer in zip(self.scales, buffers, strict=True):
                noise -= np.multiply(buffer, scale, out=scratch)
            for decay, buffer in zip(self.decays, buffers, strict=True):
                np.multiply(buffer, decay, out=buffer)
                np.add(buffer, noise, out=buffer)

        _in_blocks(work, fresh, state)
        return fresh, state


@dataclass(frozen=True)
class _Banded(ToeplitzStrategy, abc.ABC):
    """Only the last rounds matter: the state is their noise, the latest first."""

    @abc.abstractmethod
    def _band(self) -> Vector:
        """The coefficients that may differ from 0."""

    def coefficients(self, rounds: int) -> Vector:
        column = np.zeros(checks.whole("rounds", rounds))
        band = self._band()[:rounds]
        column[: len(band)] = band
        return column

    def _refusal(self, separation: int) -> str | None:
        band = self._band()
        falls = bool(np.all(band >= 0) and np.all(band[1:] <= band[:-1]))
        if falls or len(band) <= separation:
            return None
        return (
            f"coefficients must be at least 0 and never rise, or be at most as many as separation,"
            f" {separation}, got {len(band)} others, for which no sensitivity is proved"
        )

    @property
    def name(self) -> str:
        return self.kind if len(self._band()) > 1 else "independent"

    def fits_in(self, separation: int) -> bool:
        return len(self._band()) <= separation

    def vectors(self, rounds: int) -> int:
        return min(len(self._band()) - 1, rounds)

    def step(self, fresh: Vector, state: State) -> tuple[Vector, State]:
        """x_t = z_t - sum_j c_j x_(t-j); a full state's oldest vector takes the newest noise."""
        factors = self._band()[1:].tolist()
        full = len(state) == len(factors)
        newest = state[-1:] if full else (np.empty_like(fresh),)

        def work(part: slice, scratch: Vector) -> None:
            noise = fresh[part]
            for factor, past in zip(factors, state, strict=False):
                noise -= np.multiply(past[part], factor, out=scratch)
            for vector in newest:
                vector[part] = noise

        _in_blocks(work, fresh, state)
        return fresh, newest + (state[:-1] if full else state)


@dataclass(frozen=True)
class BandedToeplitz(_Banded):
    """The coefficients themselves, of either sign; with (1,) the noise is independent.

    Choquette-Choo et al. 2023 (arXiv 2306.08153).
    """

    values: tuple[float, ...]
    kind: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.values and self.values[0] == 1):
            raise ValueError(f"values must begin with 1, got {self.values[:1]}")
        for value in self.values:
            if not math.isfinite(value):
                raise ValueError(f"values must be finite numbers, got {value}")

    def _band(self) -> Vector:
        return np.array(self.values, np.float64)


INDEPENDENT = BandedToeplitz((1.0,))


@dataclass(frozen=True)
class SquareRootToeplitz(_Banded):
    """c_j = binom(2j, j) / 4^j for j < bands, the power series of (1 - x)^(-1/2).

    With all bands C is the square root of the matrix of ones (Fichtenberger, Henzinger and
    Upadhyay 2022, arXiv 2202.11205; with fewer bands Kalinin and Lampert 2024).
    """

    bands: Annotated[int, at_least(1)]
    kind: ClassVar[str] = "square-root"

    def _band(self) -> Vector:
        j = np.arange(1.0, self.bands)
        column: Vector = np.cumprod(np.concatenate([[1.0], (2 * j - 1) / (2 * j)]))
        return column


@dataclass(frozen=True)
class BinaryTree(Strategy):
    """Each running sum is made of noisy sums over blocks, one for each 1 among its digits.

    Round t, from 1, with 2^l the largest power that divides it, releases the sum of the last 2^l
    rounds: row t of C has ones there.  The running sum at t adds up as many of those as t has ones
    in binary (Dwork et al. 2010; Chan et al. 2011; DP-FTRL, Kairouz et al. 2021, arXiv 2103.00039).
    It is here to be compared with.
    """

    kind: ClassVar[str] = "tree"

    def matrix(self, rounds: int) -> Vector:
        matrix = np.zeros((checks.whole("rounds", rounds), rounds))
        for end in range(1, rounds + 1):
            matrix[end - 1, end - (end & -end) : end] = 1
        return matrix

    def vectors(self, rounds: int) -> int:
        return (checks.whole("rounds", rounds) + 1).bit_length() - 1  # ones of any t <= rounds

    def step(self, fresh: Vector, state: State) -> tuple[Vector, State]:
        """x_t = z_t - the noise of the blocks that the new one takes the place of.

        The state has a vector for each digit of the number of rounds so far, from the lowest: the
        noise of a block where the digit is 1, and an empty vector where it is 0.
        """
        level = next((i for i, block in enumerate(state) if not block.size), len(state))
        newest = fresh.copy()

        def work(part: slice, scratch: Vector) -> None:
            noise = fresh[part]
            for block in state[:level]:
                noise -= block[part]

        _in_blocks(work, fresh, state)
        return fresh, (np.empty(0),) * level + (newest,) + state[level + 1 :]

    def sensitivity(self, participation: Participation, rounds: int) -> float:
        """A bound, level by level; it is exact for one participation.

        C has no negative values, so a move is largest if all u_s are one vector: then its square is
        the sum, over the blocks, of the squared number of participations in a block.  Blocks of one
        level do not overlap, so their numbers sum to at most k, the participations in all; a block
        of 2^l rounds has at most m = ceil(2^l / b) of them.  Squares under these bounds sum to the
        most if as many blocks as possible have m each and one has what is left.
        """
        times = participation.times(rounds)
        total = 0
        for level in range(rounds.bit_length()):
            most = min(times, -(-(1 << level) // participation.separation))
            blocks = ((rounds >> level) + 1) // 2
            full, left = divmod(min(times, most * blocks), most)
            total += full * most**2 + left**2
        return math.sqrt(total)

    def largest_column(self, rounds: int) -> float:
        """The first round is in a block of every level."""
        return math.sqrt(checks.whole("rounds", rounds).bit_length())

    def largest_row(self, rounds: int) -> float:
        """A block's noise, less that of one block of every level below it."""
        return math.sqrt(checks.whole("rounds", rounds).bit_length())

    def running_sum_variances(self, rounds: int) -> Vector:
        ones = np.bitwise_count(np.arange(1, rounds + 1))
        return ones.astype(np.float64)


def _in_blocks(work: Callable[[slice, Vector], None], fresh: Vector, state: State) -> None:
    """Do elementwise work on all parts of the vectors, with scratch space of a part's size."""
    sizes = {vector.size for vector in state} - {0}
    if sizes - {fresh.size}:
        raise ValueError(f"state must have vectors of {fresh.size} values, got {sorted(sizes)}")

    def task(first: int) -> None:
        scratch = np.empty(_BLOCK)
        last = min(first + _TASK, fresh.size)
        for start in range(first, last, _BLOCK):
            stop = min(start + _BLOCK, last)
            work(slice(start, stop), scratch[: stop - start])

    starts = range(0, fresh.size, _TASK)
    # NumPy releases the lock, and the pool lives for one call, so that a fork is safe.
    threads = min(_MAX_THREADS, os.cpu_count() or 1, len(starts))
    if threads <= 1:
        for start in starts:
            task(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(task, starts))
