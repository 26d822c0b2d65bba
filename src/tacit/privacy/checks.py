"""Checks on arguments that a guarantee rests on, and on the fields of what a ledger holds.

Each check returns the value it was called with, or raises `ValueError` naming the quantity, the
value and the bound.  Comparisons are written so that NaN fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_options: ContextVar[Mapping[str, str] | None] = ContextVar("options", default=None)


@contextmanager
def naming_options(**renamed: str) -> Iterator[None]:
    """Let messages name arguments as they are typed at the command line, such as --max-texts.

    `renamed` has the options that are not called after their arguments.
    """
    token = _options.set(renamed)
    try:
        yield
    finally:
        _options.reset(token)


def argument(name: str) -> str:
    """An argument's name for a message: Python's, or while `naming_options` the option's."""
    options = _options.get()
    return name if options is None else options.get(name, f"--{name.replace('_', '-')}")


def _number(what: str, holds: Callable[[float], bool]) -> Callable[[str, float], float]:
    """The check that a number is what the words `what` say, which `holds` decides."""

    def check(name: str, value: float) -> float:
        if not holds(value):
            raise ValueError(f"{argument(name)} must be {what}, got {value}")
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
        raise ValueError(f"{argument(name)} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{argument(name)} must be at least {at_least}, got {value}")
    return value
