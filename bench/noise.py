"""Time of 14 million keyed normal values, beside NumPy's generator in the same process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from tacit.privacy.randomness import RunKey

VALUES = 14_000_000
REPEATS = 5


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    stream = RunKey.from_seed(0).stream(branch="main", round=0, attempt=0, purpose="noise")
    generator = np.random.default_rng(0)
    keyed, plain = [], []
    for _ in range(REPEATS):  # interleaved, so that a busy machine slows both
        keyed.append(seconds(lambda: stream.normal(VALUES)))
        plain.append(seconds(lambda: generator.standard_normal(VALUES)))
    ratio = statistics.median(k / p for k, p in zip(keyed, plain, strict=True))
    print(
        f"{VALUES:,} normals: keyed {statistics.median(keyed):.3f} s,"
        f" numpy {statistics.median(plain):.3f} s, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
