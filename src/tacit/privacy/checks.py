"""Checks on arguments that a guarantee rests on, and on the fields of what a ledger holds.

Each check returns the value it was called with, or raises `ValueError` naming the quantity, the
value and the bound.  Comparisons are written so that NaN fails.
"""

from __future__ import annotations

import math


def positive(name: str, value: float) -> float:
    """A finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return value


def non_negative(name: str, value: float) -> float:
    """A finite number of at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return value


def probability(name: str, value: float) -> float:
    """A probability in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
    return value


def open_unit(name: str, value: float) -> float:
    """A number strictly between 0 and 1, as a delta or a quantile is."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must be strictly between 0 and 1, got {value}")
    return value


def closed_unit(name: str, value: float) -> float:
    """A number from 0 to 1, as a share of something is."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be at least 0 and at most 1, got {value}")
    return value


def whole(name: str, value: int, *, at_least: int = 0) -> int:
    """A whole number with a lower bound; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return value
