"""How long a plan takes: the published settings by every accountant, and three calibrations.

Each figure is also given as a ratio to dp-accounting's own PLD on its default grid, which is
looser, timed in the same process.  `--precise` adds the finest grid.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from tacit.mechanisms.planning import Question, answers

# K, C, z, rounds, delta: from the easiest to the smallest q and the most rounds.
SETTINGS = [
    (763_430, 5000, 1.0, 5000, 1e-9),
    (10**6, 10**4, 1.0, 10**6, 10**-6.6),
    (10**6, 10**3, 3.0, 10**5, 10**-6.6),
    (10**8, 5000, 1.0, 5000, 1e-9),
    (10**9, 1000, 1.0, 10**6, 10**-9.9),
]
TARGETS = [
    (392_000, 5000, 8000, 1e-7, 18.8),
    (10**7, 20_000, 5000, 1e-8, 2.0),
    (10**8, 20_000, 5000, 1e-9, 2.0),
]


def seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def library(q: float, z: float, rounds: int, delta: float) -> float:
    event = PoissonSampledDpEvent(q, GaussianDpEvent(z))
    return PLDAccountant().compose(event, rounds).get_epsilon(delta)


def main() -> None:
    accountants = ["pld", "rdp", "moments"]
    precise = "--precise" in sys.argv
    for population, cohort, z, rounds, delta in SETTINGS:
        question = Question(
            population=population, cohort=cohort, rounds=rounds, noise_multiplier=z, delta=delta
        )
        base = seconds(lambda: library(cohort / population, z, rounds, delta))  # noqa: B023
        print(f"K={population:g} C={cohort:g} z={z:g} T={rounds:g}: dp-accounting {base:.2f} s")
        for name in accountants + ["pld --precise"] * precise:
            finest = name.endswith("precise")
            taken = seconds(lambda: answers(question, name.split()[0], precise=finest))  # noqa: B023
            print(f"  {name:14} {taken:6.2f} s  {taken / base:5.2f}x")
    for population, cohort, rounds, delta, target in TARGETS:
        question = Question(
            population=population,
            cohort=cohort,
            rounds=rounds,
            noise_multiplier=None,
            target_epsilon=target,
            delta=delta,
        )
        taken = seconds(lambda: answers(question))  # noqa: B023
        print(f"noise for epsilon {target:g} at K={population:g}, C={cohort:g}: {taken:.2f} s")


if __name__ == "__main__":
    main()
