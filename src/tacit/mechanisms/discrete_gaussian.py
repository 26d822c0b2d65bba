"""The discrete Gaussian, exactly: P[X = x] proportional to exp(-x^2 / (2 sigma^2)) on the integers.

Canonne, Kamath and Steinke 2020, Algorithms 1 to 3, on many values at once: a discrete Laplace
value Y of scale t = floor(sigma) + 1 is accepted with probability
exp(-(|Y| - sigma^2 / t)^2 / (2 sigma^2)).

All chance is in events of probability exp(-gamma), with gamma a rational function of integers and
of the float sigma, taken as the binary fraction it is.  Each event is U < exp(-gamma) for a uniform
U of which the first 64 bits are drawn.  A float decides where U is not within 2^-40 of the
probability, which it knows better than that; one U in 10^12 is compared in as many digits as it
takes.

Guarantee: given uniform words, the law is exact.  What is drawn does not depend on where floats
decide and where digits do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.privacy import checks
from tacit.privacy.stream import Stream

Integers = NDArray[np.int64]

LARGEST_STDDEV = 2.0**40
_CHUNK = 1 << 16  # candidates at a time, so that the passes over them stay in the cache
# A float exp(-gamma) here is off by less than 2^-46: gamma by a relative (|Y| + sigma)^2 2^-51 /
# (|Y| - sigma)^2 at most, which exp(-gamma) has outgrown where it is large.
_MARGIN = 2.0**-40


def discrete_gaussian(stddev: float, size: int, stream: Stream) -> Integers:
    """Independent values of parameter sigma = `stddev`, which their deviation is at most."""
    checks.positive("stddev", stddev)
    if stddev > LARGEST_STDDEV:
        raise ValueError(f"stddev must be at most {LARGEST_STDDEV:g}, got {stddev:g}")
    checks.whole("size", size)
    values = np.empty(size, np.int64)
    filled = 0
    while filled < size:
        accepted = _accepted(stddev, min(_CHUNK, 2 * (size - filled) + 16), stream)
        taken = accepted[: size - filled]
        values[filled : filled + len(taken)] = taken
        filled += len(taken)
    return values


def _accepted(stddev: float, candidates: int, stream: Stream) -> Integers:
    """Those that are left of so many discrete Laplace candidates, about half."""
    scale = math.floor(stddev) + 1
    laplace = _discrete_laplace(scale, candidates, stream)
    variance = Fraction(stddev) ** 2
    centre = variance / scale
    distance = (np.abs(laplace) - float(centre)) / stddev

    def exactly(index: int) -> Fraction:
        return (abs(int(laplace[index])) - centre) ** 2 / (2 * variance)

    accepted: Integers = laplace[_happens(0.5 * distance * distance, exactly, stream)]
    return accepted


def _discrete_laplace(scale: int, candidates: int, stream: Stream) -> Integers:
    """Those that are left of so many attempts at P[Y = y] proportional to exp(-|y| / scale).

    |Y| = u + scale * v, where u below the scale has weight exp(-u / scale) and v is geometric; a
    sign is drawn, and minus zero is no value.
    """
    units = stream.integers(scale, candidates)
    units = units[_happens(units / scale, lambda at: Fraction(int(units[at]), scale), stream)]
    wholes = np.zeros(len(units), np.int64)
    going = np.arange(len(units))
    while len(going):
        ones = np.ones(len(going))
        going = going[_happens(ones, lambda _: Fraction(1), stream)]
        wholes[going] += 1
    magnitudes = units + scale * wholes
    is_negative = stream.words(len(units)) >> np.uint64(63) == 1
    is_value = ~(is_negative & (magnitudes == 0))
    signed = np.where(is_negative, -magnitudes, magnitudes)
    values: Integers = signed[is_value]
    return values


def _happens(
    gamma: NDArray[np.float64], exactly: Callable[[int], Fraction], stream: Stream
) -> NDArray[np.bool_]:
    """Independent events of probability exp(-gamma); `exactly` has gamma as a fraction."""
    words = stream.words(len(gamma))
    below = np.exp(-gamma) - words * 2.0**-64
    happens: NDArray[np.bool_] = below > 0
    for index in np.flatnonzero(np.abs(below) <= _MARGIN):
        happens[index] = _is_below(int(words[index]), exactly(int(index)), stream)
    return happens


def _is_below(word: int, gamma: Fraction, stream: Stream) -> bool:
    """Whether U < exp(-gamma), where U's first 64 bits are `word` and the stream has the rest."""
    if gamma == 0:
        return True
    bits, drawn = 64, word
    while True:
        with localcontext() as context:
            context.prec = bits  # decimal digits: the error is far below the slack
            slack = Decimal(10) ** (-bits // 4)
            logarithm = Decimal(-gamma.numerator) / Decimal(gamma.denominator)
            threshold = logarithm.exp() * 2**bits
            if drawn + 1 <= threshold - slack:
                return True
            if drawn >= threshold + slack:
                return False
        bits, drawn = bits + 64, drawn << 64 | int(stream.words(1)[0])
