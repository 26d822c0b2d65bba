"""Time of noise for 14 million parameters: of the draw, and of what kinds of noise add to it.

Keyed normal values beside NumPy's generator; then a round's noise on an integer sum, for correlated
noise beside independent noise; then drawing the noise of an earlier round again, as a run that goes
on does once for each round of its horizon.  All in one process, and interleaved, so that a busy
machine slows all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from tacit.mechanisms.noise import CorrelatedNoise, IndependentNoise, NoiseState, RoundNoise
from tacit.mechanisms.participation import Participation
from tacit.mechanisms.strategies import Strategy
from tacit.mechanisms.strategy_search import best
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream

VALUES = 14_000_000
REPEATS = 5
ROUNDS, SEPARATION = 2000, 100
STDDEV = 1e6  # on the grid

STRATEGIES = {
    "blt, 4 buffers": best("blt", ROUNDS, Participation(SEPARATION)),
    "banded, 8 bands": best("banded", ROUNDS, Participation(SEPARATION), bands=8),
    "tree": best("tree", ROUNDS, Participation(SEPARATION)),
}


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def stream(round: int) -> Stream:
    return RunKey.from_seed(0).stream(branch="main", round=round, attempt=0, purpose="noise")


class Rounds:
    """Round after round of one kind of noise, with its state."""

    def __init__(self, noise: RoundNoise) -> None:
        self.noise, self.round = noise, 0
        self.state: NoiseState = ()
        self.total = np.zeros(VALUES, np.int64)

    def release(self) -> None:
        """Noise on a sum, rounded to the grid."""
        _, self.state = self.noise.add(self.total, STDDEV, self.state, stream(self.round))
        self.round += 1

    def redraw(self) -> None:
        """The noise of a round again, of which only the state is needed."""
        assert isinstance(self.noise, CorrelatedNoise)
        _, self.state = self.noise.next(VALUES, STDDEV, self.state, stream(self.round))
        self.round += 1


def draws() -> None:
    """Keyed values beside NumPy's."""
    keys, generator = stream(0), np.random.default_rng(0)
    keyed, plain = [], []
    for _ in range(REPEATS):
        keyed.append(seconds(lambda: keys.normal(VALUES)))
        plain.append(seconds(lambda: generator.standard_normal(VALUES)))
    ratio = statistics.median(k / p for k, p in zip(keyed, plain, strict=True))
    print(
        f"{VALUES:,} normals: keyed {statistics.median(keyed):.3f} s,"
        f" numpy {statistics.median(plain):.3f} s, ratio {ratio:.2f}"
    )


def correlated(name: str, strategy: Strategy) -> None:
    """A kind of noise beside independent noise, once its state is full."""
    noisy, plain = Rounds(CorrelatedNoise(1.0, strategy)), Rounds(IndependentNoise(1.0))
    for _ in range(strategy.vectors(8)):
        noisy.release()
    noises, plains, again = [], [], []
    for _ in range(REPEATS):
        noises.append(seconds(noisy.release))
        plains.append(seconds(plain.release))
        again.append(seconds(noisy.redraw))
    ratio = statistics.median(n / p for n, p in zip(noises, plains, strict=True))
    print(
        f"{name}: a round {statistics.median(noises):.3f} s, independent"
        f" {statistics.median(plains):.3f} s, ratio {ratio:.2f}; an earlier round again"
        f" {statistics.median(again):.3f} s; {len(noisy.state)} vectors,"
        f" {sum(vector.nbytes for vector in noisy.state) / 1e6:,.0f} MB"
    )


def main() -> None:
    draws()
    for name, strategy in STRATEGIES.items():
        correlated(name, strategy)


if __name__ == "__main__":
    main()
