"""Two passes over a large vector: the sum of its squares, and adding it to an integer sum.

Between a user's update and the cohort's sum stand a clip, a weight and a grid.  Done one after the
other in NumPy, they move every value through memory ten times, which takes longer than computing
the update of a short text.  Here a vector is read twice and the sum is written once.

There are two forms, in NumPy and in C++.  Both are the same operations on IEEE doubles in the same
order, each of which rounds in one way only, so their bits are the same, on every machine and with
any number of threads: a resumed round has to repeat them.  `TACIT_KERNEL=torch` chooses NumPy.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.privacy import native

Values = NDArray[Any]  # float32 or float64
Integers = NDArray[np.int64]

SOURCE = native.Source(
    "summing",
    (Path(__file__).with_name("summing.cpp"),),
    # Fused operations would change the bits.
    tuple("-std=gnu++17 -O3 -march=native -ffp-contract=off -fPIC -shared".split()),
    tuple(f"tacit_{verb}_{kind}" for verb in ("square", "add") for kind in ("float32", "float64")),
)

_COLUMNS = 1024  # partial sums of squares; as many as in C++
_AT_ONCE = 1 << 14  # values that NumPy adds at a time, so that all passes stay in the cache
_WORTH_A_BUILD = 1 << 14  # values; fewer take no time in either form
_BUILDING = threading.Lock()


def square_of(values: Values) -> float:
    """The sum of the squares, in float64: value i is added to partial sum i mod 1024.

    What is not finite gives a result that is not finite, for the caller to look at.
    """
    library = _library_for(values)
    if library is None:
        return _square_in_numpy(values)
    square = getattr(library, f"tacit_square_{values.dtype.name}")
    return float(square(values.ctypes.data, len(values)))


def add_truncated_(total: Integers, values: Values, scale: float, factor: float) -> None:
    """total += trunc((values * scale) * factor), each product rounded to float64.

    The products have to be within int64.
    """
    assert total.shape == values.shape, (total.shape, values.shape)
    library = _library_for(values) if _is_plain(total) else None
    if library is None:
        _add_in_numpy_(total, values, scale, factor)
        return
    add = getattr(library, f"tacit_add_{values.dtype.name}")
    add(total.ctypes.data, values.ctypes.data, len(values), scale, factor)


def _is_plain(values: NDArray[Any]) -> bool:
    """May C++ be given this memory?"""
    return values.ndim == 1 and values.flags.c_contiguous and values.flags.aligned


def _library_for(values: Values) -> ctypes.CDLL | None:
    """The C++ form, where there is one and it is worth its while."""
    if len(values) < _WORTH_A_BUILD or not _is_plain(values):
        return None
    with _BUILDING:
        return _in_cpp()


def _square_in_numpy(values: Values) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.multiply(values, values, dtype=np.float64)
        whole = len(squares) // _COLUMNS * _COLUMNS
        sums = np.zeros(_COLUMNS)
        for row in squares[:whole].reshape(-1, _COLUMNS):
            sums += row
        sums[: len(squares) - whole] += squares[whole:]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = sums[:half] + sums[half:]
    return float(sums[0])


def _add_in_numpy_(total: Integers, values: Values, scale: float, factor: float) -> None:
    for first in range(0, len(values), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        products = np.multiply(values[part], scale, dtype=np.float64)
        products *= factor
        total[part] += products.astype(np.int64)  # a cast truncates


@functools.cache
def _in_cpp() -> ctypes.CDLL | None:
    """The C++ form, or None if it does not build or disagrees with NumPy."""
    if os.environ.get("TACIT_KERNEL") == "torch":  # as for the training step: nothing in C++
        return None
    library = native.build(SOURCE)
    if library is None:
        return None
    functions = library.functions
    pointer, count, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    for kind in ("float32", "float64"):
        square, add = (getattr(functions, f"tacit_{verb}_{kind}") for verb in ("square", "add"))
        square.argtypes, square.restype = [pointer, count], real
        add.argtypes, add.restype = [pointer, pointer, count, real, real], None
    return functions if all(_agrees(functions, kind) for kind in ("float32", "float64")) else None


def _agrees(functions: ctypes.CDLL, kind: str) -> bool:
    """Whether C++ gives the bits of NumPy, with zeros, tiny and large values, and an odd length.

    A compiler can be told (by `CXX`, say) to do strange things to floats.
    """
    generator = np.random.default_rng(0)
    size = 5 * _COLUMNS + 77
    values = generator.normal(size=size) * 10.0 ** generator.integers(-9, 3, size)
    values[2 * _COLUMNS : 3 * _COLUMNS] = 0.0
    values = values.astype(kind)
    total = generator.integers(-(2**40), 2**40, size)
    expected, scale, factor = total.copy(), 1 / 3, 2.0**33 / 7
    _add_in_numpy_(expected, values, scale, factor)
    square, add = (getattr(functions, f"tacit_{verb}_{kind}") for verb in ("square", "add"))
    add(total.ctypes.data, values.ctypes.data, size, scale, factor)
    same = bool(square(values.ctypes.data, size) == _square_in_numpy(values))
    return same and np.array_equal(total, expected)
