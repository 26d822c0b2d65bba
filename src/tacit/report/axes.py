"""Axes of charts: where a value stands, which round values are marked, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From values to places: 0 at its low end, 1 at its high one."""

    label: str
    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, is_log: bool = False) -> Axis:
        """An axis that holds the values: from 0 on, or on a logarithmic scale of positive ones."""
        if is_log:
            low, high = min(values), max(values)
            room = 1.05 if high > low else 2.0
            return cls(label, low / room, high * room, is_log=True)
        high = max([0.0, *values])
        return cls(label, 0.0, 1.05 * high if high > 0 else 1.0)

    def place(self, value: float) -> float:
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values on the axis."""
        if self.is_log:
            return _log_ticks(self.low, self.high, about)
        step = _round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [(first + number) * step for number in range(count)]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= step * (1 - 1e-9))


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    """Powers of ten, or 1, 2 and 5 times them, or between those where the axis is narrow."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for sizes in ((1,), (1, 2, 5)):
        found = [m * 10.0**power for power in range(first, last + 1) for m in sizes]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / (about + 1))]
    return [value for value in Axis("", low, high).ticks(2 * about) if value > 0]


def short(value: float) -> str:
    """A number in few letters."""
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        mantissa, _, power = f"{value:.3g}".partition("e")
        if not power:
            mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.6g}"
