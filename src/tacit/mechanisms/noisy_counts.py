"""How often people use each token and each pair of neighbours, with user-level privacy.

A user's contribution is one vector: 1/8 of the user's count of each token, then the count of each
pair of neighbours.  It is clipped to norm 1 and truncated to a grid; the sum over all users gets
Gaussian noise of z on *every* coordinate, of tokens and of all vocab_size^2 pairs, whether anybody
has used the pair or not.  Pairs above a threshold, which is a multiple of the noise and knows no
data, are kept.

Guarantee, user-level under add/remove-one: `Gaussian(z)`.  Adding or removing a user moves the
integer sum by that user's contribution, whose norm is at most 1 (`FlatClip`, and truncating makes
no norm grow), and the noise has the standard deviation z.  Which pairs are kept is a function of
the noisy sum: post-processing.  So no set of candidates has to be known, and there is no failure
probability, as there would be if only pairs that somebody has used were noised.  The whole argument
is in docs/privacy/baselines.md.

Whoever has a pair at all has a count of at least 1, so that everybody is scaled to norm 1: people
who write much and little have the same say.  Tokens and pairs are clipped together, by one factor,
so that the sum of a token's pairs is the token's own sum: that is what makes shares of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.fixed_point import IntegerGrid, Integers
from tacit.mechanisms.noise import add_gaussian
from tacit.mechanisms.parts import PlanPart
from tacit.privacy.accountants import accountant_named
from tacit.privacy.calibration import noise_for_epsilon
from tacit.privacy.events import Composition, Gaussian
from tacit.privacy.records import Count, Positive, at_least, canonical_json
from tacit.privacy.stream import Stream

CLIP_NORM = 1.0
_TOKEN_WEIGHT = 0.125  # of a token's count; a pair's has 1
_THRESHOLD = 4.5  # in standard deviations: 340 of 10^8 pairs that nobody has used are kept
_LARGEST_VOCABULARY = 1 << 16  # noise on all pairs of more tokens would take minutes
_COORDINATES_AT_ONCE = 1 << 20
_ENTRIES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class SparseSum:
    """Coordinates that are not zero, ascending, and their values in steps of the grid: private."""

    index: Integers
    values: Integers


@dataclass(frozen=True)
class ReleasedCounts:
    """Noisy sums, and the standard deviation of the noise on them: may be published.

    The entry of BOS is not how often it is a target, which it never is, but how often a text began.
    """

    tokens: NDArray[np.float64]  # [vocab_size]
    token_noise: float
    before: Integers  # the pairs above the threshold, sorted
    after: Integers
    pairs: NDArray[np.float64]
    pair_noise: float


@dataclass(frozen=True)
class NoisyCounts(PlanPart):
    """One release of everybody's counts with noise of `noise_multiplier` times the sensitivity."""

    noise_multiplier: Positive
    population: Annotated[int, at_least(1)]  # declared; no more users than that are counted
    vocab_size: Annotated[int, at_least(2)]
    bos: Count
    kind: ClassVar[str] = "noisy-counts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size > _LARGEST_VOCABULARY:
            raise ValueError(
                f"vocab_size must be at most {_LARGEST_VOCABULARY:,} to count pairs of tokens, got"
                f" {self.vocab_size:,}"
            )
        if self.bos >= self.vocab_size:
            raise ValueError(f"bos must be a token below {self.vocab_size}, got {self.bos}")

    @classmethod
    def for_epsilon(
        cls, epsilon: float, delta: float, *, population: int, vocab_size: int, bos: int
    ) -> Self:
        """With the least noise that makes the release (epsilon, delta)-differentially private."""
        z = noise_for_epsilon(
            lambda z: Composition.of([Gaussian(z)]),
            delta=delta,
            target_epsilon=epsilon,
            accountant=accountant_named("pld"),
        )
        return cls(z, population, vocab_size, bos)

    @property
    def event(self) -> Gaussian:
        """What the release costs: the noise's standard deviation over the sensitivity."""
        return Gaussian(self.noise_stddev / CLIP_NORM)

    @property
    def noise_stddev(self) -> float:
        """Of the noise on every coordinate of the sum."""
        return self.noise_multiplier * CLIP_NORM

    @property
    def grid(self) -> IntegerGrid:
        """What contributions are truncated to; the whole population's sum cannot overflow."""
        return IntegerGrid.for_clip(CLIP_NORM, self.population, self.noise_multiplier)

    def hash(self) -> str:
        """SHA-256 of all public parameters."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()

    def contribution(self, tokens: NDArray[Any]) -> SparseSum:
        """What one user adds: a function of that user's tokens alone, of norm at most 1."""
        tokens = np.asarray(tokens, np.int64)
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.vocab_size):
            raise ValueError(f"tokens must be below {self.vocab_size}, got {tokens.max()}")
        before, after = tokens[:-1], tokens[1:]
        counted = after != self.bos
        before, after = before[counted], after[counted]
        single = np.bincount(after, minlength=self.vocab_size)
        single[self.bos] = (before == self.bos).sum()
        used = np.flatnonzero(single)
        pairs, counts = np.unique(before * self.vocab_size + after, return_counts=True)
        values = np.concatenate([single[used] * _TOKEN_WEIGHT, counts])
        clipped = FlatClip(CLIP_NORM).clip(values).values
        return SparseSum(
            np.concatenate([used, self.vocab_size + pairs]), self.grid.quantise(clipped)
        )

    def total(self, users: Iterable[NDArray[Any]]) -> SparseSum:
        """The sum over all users, each given by their tokens; more than were declared are refused.

        Integers are added, so that it does not depend on the order of the users.
        """
        total = SparseSum(np.empty(0, np.int64), np.empty(0, np.int64))
        waiting: list[SparseSum] = []
        size = 0
        for number, tokens in enumerate(users):
            if number >= self.population:
                raise ValueError(f"there are more users than the {self.population:,} declared")
            waiting.append(self.contribution(tokens))
            size += len(waiting[-1].index)
            if size >= _ENTRIES_AT_ONCE:
                total, waiting, size = _added([total, *waiting]), [], 0
        return _added([total, *waiting])

    def release(
        self,
        total: SparseSum,
        noise: Stream,
        progress: Callable[[int, int], None] | None = None,
    ) -> ReleasedCounts:
        """The sum with noise on every coordinate, of which the pairs above the threshold are kept.

        `noise` must follow from what it hides (design rule 12), and serve for this alone.
        """
        step, size = self.grid.step, self.vocab_size
        stddev = self.noise_stddev / step
        tokens = add_gaussian(_dense(total, 0, size), stddev, noise)
        kept: list[tuple[Integers, Integers]] = []
        end = size + size**2
        for start, stop in _ranges(size, end):
            noisy = add_gaussian(_dense(total, start, stop), stddev, noise)
            above = np.flatnonzero(noisy > _THRESHOLD * stddev)
            kept.append((above + (start - size), noisy[above]))
            if progress is not None:
                progress(stop, end)
        before, after = np.divmod(np.concatenate([index for index, _ in kept]), size)
        return ReleasedCounts(
            tokens=tokens.astype(np.float64) * (step / _TOKEN_WEIGHT),
            token_noise=self.noise_stddev / _TOKEN_WEIGHT,
            before=before,
            after=after,
            pairs=np.concatenate([values for _, values in kept]) * step,
            pair_noise=self.noise_stddev,
        )


def _added(parts: list[SparseSum]) -> SparseSum:
    """The sum of several, exact."""
    index = np.concatenate([part.index for part in parts])
    if not len(index):
        return SparseSum(index, index)
    order = np.argsort(index, kind="stable")
    index = index[order]
    first = np.flatnonzero(np.diff(index, prepend=-1))
    values = np.concatenate([part.values for part in parts])[order]
    return SparseSum(index[first], np.add.reduceat(values, first))


def _dense(total: SparseSum, start: int, stop: int) -> Integers:
    """The coordinates from `start` to `stop`, zeros included."""
    part = slice(*np.searchsorted(total.index, [start, stop]).tolist())
    dense = np.zeros(stop - start, np.int64)
    dense[total.index[part] - start] = total.values[part]
    return dense


def _ranges(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces of as many coordinates as are noised at once."""
    for first in range(start, end, _COORDINATES_AT_ONCE):
        yield first, min(first + _COORDINATES_AT_ONCE, end)
