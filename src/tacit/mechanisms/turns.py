"""Whose turn it is: users in groups, one group after the other.

A user's group follows from the user's own id and a public number alone, so that whoever comes or
goes moves nobody else; nobody has a turn again before all other groups had theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def turn_of(key: str, separation: int) -> int:
    """The group of the user with this (hashed) id, as uniform as SHA-256."""
    return int.from_bytes(hashlib.sha256(f"turn {key}".encode()).digest()[:8]) % separation


@dataclass(frozen=True)
class Turns:
    """The users of each group, by number and sorted."""

    groups: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, keys: Iterable[str], separation: int) -> Turns:
        """Everybody in a group; some groups may be empty."""
        turns = np.fromiter((turn_of(key, separation) for key in keys), np.int64)
        order = np.argsort(turns, kind="stable")
        ends = np.cumsum(np.bincount(turns, minlength=separation))
        return cls(tuple(np.split(order, ends[:-1])))

    def of_round(self, round: int) -> NDArray[np.int64]:
        """Those who may take part in a round."""
        return self.groups[round % len(self.groups)]


@dataclass(frozen=True)
class Position:
    """Where in its horizon a round is: the first `rounds` rounds of it include this one."""

    horizon: str
    rounds: int


FIRST = Position("planned", 1)
"""That of a round which is only planned, and by itself."""
