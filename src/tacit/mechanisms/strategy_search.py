"""The best strategy of a kind for a number of rounds and a participation."""

from __future__ import annotations

from tacit.mechanisms.participation import Participation
from tacit.mechanisms.strategies import (
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
    Strategy,
)

KINDS = ("blt", "banded", "square-root", "tree")


def best(
    kind: str,
    rounds: int,
    participation: Participation,
    *,
    bands: int | None = None,
    buffers: int = 4,
) -> Strategy:
    """A strategy of this kind; nothing is searched for yet."""
    if kind == "blt":
        return BufferedToeplitz((0.9, 0.5), (0.1, 0.3))
    if kind == "tree":
        return BinaryTree()
    return SquareRootToeplitz(bands or participation.separation)
