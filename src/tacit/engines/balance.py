"""Which process computes which users, so that all of them end at about the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced(costs: Sequence[float], parts: int) -> list[list[int]]:
    """The places 0..len(costs)-1 in so many parts of about equal cost, each in ascending order.

    The dearest comes first, and each goes to the part that has least so far.  No part then costs
    more than 4/3 - 1/(3 parts) of the best there is (Graham 1969), nor more than the mean by more
    than one user.  It is a function of its arguments: ties go to the earlier place and part.
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    result: list[list[int]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        load, part = loads[0]
        result[part].append(place)
        heapq.heapreplace(loads, (load + costs[place], part))
    return [sorted(part) for part in result]
