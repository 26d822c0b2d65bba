"""Words to standard normal values, by a table of polynomials.

With m the lower 63 bits of a word, u = m * 2^-64 is in (0, 1/2] and the value is Phi^-1(u), with
the sign that the top bit says.  u's exponent and the first bits of its mantissa choose one of 321
intervals, and the rest is the point in it, at which a polynomial of degree 7 is evaluated.

There are two forms, in NumPy and in C++ (three times faster).  Both are the same few operations on
IEEE doubles in the same order, each of which rounds in one way only, so their bits are the same, on
every machine.  Magnitudes below 2^53 are `deep`: u has too few bits there, and the caller sees to
them.

Guarantee: for a value t below 0, |Phi(t) / u - 1| <= (1 + t^2) 2^-51, as tests against 60 digits
show, and the same above 0 by symmetry.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.privacy import native

Words = NDArray[np.uint64]

MAGNITUDE = np.uint64(2**63 - 1)
DEEP = np.uint64(2**53)

# `tests/oracles/normal_quantile.py` computes it.
TABLE: NDArray[np.float64] = np.load(Path(__file__).with_name("quantile.npy"))

SOURCE = native.Source(
    "quantile",
    (Path(__file__).with_name("quantile.cpp"),),
    # Vectors would need gathers, which are slower here.  Fused operations would change the bits.
    tuple(
        "-std=gnu++17 -O3 -march=native -ffp-contract=off -fno-tree-vectorize -fPIC -shared".split()
    ),
    ("tacit_quantiles",),
)

_SEGMENT_BITS = 5
_REST = np.uint64(52 - _SEGMENT_BITS)
_HALF = np.uint64(1 << (51 - _SEGMENT_BITS))
_MANTISSA = np.uint64(2**52 - 1)
_ONE = np.uint64(1023 << 52)
_FIRST_ROW = np.uint64((1023 + 53) << _SEGMENT_BITS)
_COLUMNS = tuple(np.ascontiguousarray(column) for column in TABLE.T)


_BUILDING = threading.Lock()  # a stream asks in several threads, and one build is enough
_AT_ONCE = 1 << 14
_WORTH_A_BUILD = 1 << 14  # words; fewer take no time in either form


def to_normal_(words: Words) -> NDArray[np.int64]:
    """Turn each word, in its own memory, into the bits of its normal value.

    Returns the indices of deep words (magnitude below 2^53), which are left alone.
    """
    with _BUILDING:
        function = _in_cpp() if len(words) >= _WORTH_A_BUILD else None
    if function is None:
        return _in_numpy_(words)
    deep = np.empty(len(words), np.int64)
    count = function(words.ctypes.data, len(words), TABLE.ctypes.data, deep.ctypes.data)
    return deep[:count]


def _in_numpy_(words: Words) -> NDArray[np.int64]:
    """`to_normal_` in NumPy alone, a few words at a time, so that all passes stay in the cache."""
    starts = range(0, len(words), _AT_ONCE)
    deep = [start + _few_in_numpy_(words[start : start + _AT_ONCE]) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *deep])


def _few_in_numpy_(words: Words) -> NDArray[np.int64]:
    """Horner's rule on the row of the table that a magnitude's exponent and first bits choose."""
    magnitudes = words & MAGNITUDE
    deep = np.flatnonzero(magnitudes < DEEP)
    kept = words[deep]
    magnitudes[deep] = DEEP  # any that has a row
    bits = magnitudes.astype(np.float64).view(np.uint64)
    rows = ((bits >> _REST) - _FIRST_ROW).view(np.int64)
    bits &= _MANTISSA
    middle = bits >> _REST << _REST
    middle |= _HALF | _ONE
    bits |= _ONE
    x = bits.view(np.float64)
    x -= middle.view(np.float64)
    values, coefficients = _COLUMNS[-1].take(rows), np.empty_like(x)
    for column in reversed(_COLUMNS[:-1]):
        values *= x
        values += column.take(rows, out=coefficients, mode="clip")  # unbuffered: all are inside
    words &= ~MAGNITUDE
    words ^= values.view(np.uint64)
    words[deep] = kept
    return deep


@functools.cache
def _in_cpp() -> Callable[..., int] | None:
    """The C++ version, or None if it does not build or disagrees with NumPy."""
    if os.environ.get("TACIT_KERNEL") == "torch":  # as for the training step: nothing in C++
        return None
    library = native.build(SOURCE)
    if library is None:
        return None
    function = library.functions.tacit_quantiles
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_int64
    return function if _agrees(function) else None


def _agrees(function: Callable[..., int]) -> bool:
    """Whether a C++ function agrees with NumPy bit for bit, on words from all intervals and beyond.

    A compiler can be told (by `CXX`, say) to do strange things to floats.
    """
    words = np.random.default_rng(0).integers(0, 2**64, 1 << 16, dtype=np.uint64)
    words[: 1 << 14] >>= np.arange(1 << 14, dtype=np.uint64) % np.uint64(64)
    words[-2:] = 2**63 - 1, 2**64 - 1
    expected, deep = words.copy(), np.empty(len(words), np.int64)
    expected_deep = _in_numpy_(expected)
    count = function(words.ctypes.data, len(words), TABLE.ctypes.data, deep.ctypes.data)
    return np.array_equal(words, expected) and np.array_equal(deep[:count], expected_deep)
