"""Checks on arguments that a guarantee rests on, and on the fields of what a ledger holds.

Each check returns the value it was called with, or raises `ValueError` naming the quantity, the
value and the bound.  Comparisons are written so that NaN fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def _number(what: str, holds: Callable[[float], bool]) -> Callable[[str, float], float]:
    """The check that a number is what the words `what` say, which `holds` decides."""

    def check(name: str, value: float) -> float:
        if not holds(value):
            raise ValueError(f"{name} must be {what}, got {value}")
        return value

    return check


positive = _number("a finite number above 0", lambda value: 0 < value < math.inf)
non_negative = _number("a finite number of at least 0", lambda value: 0 <= value < math.inf)
probability = _number("above 0 and at most 1", lambda value: 0 < value <= 1)
open_unit = _number("strictly between 0 and 1", lambda value: 0 < value < 1)  # a delta, a quantile
closed_unit = _number("at least 0 and at most 1", lambda value: 0 <= value <= 1)  # a share


def whole(name: str, value: int, *, at_least: int = 0) -> int:
    """A whole number with a lower bound; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return value
