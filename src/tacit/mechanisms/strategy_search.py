from __future__ import annotations
from tacit.mechanisms.participation import Participation
from tacit.mechanisms.strategies import *
KINDS = ("blt", "banded", "square-root", "tree")
def best(kind, rounds, participation, *, bands=None, buffers=4):
    if kind == "blt": return BufferedToeplitz((0.9, 0.5), (0.1, 0.3))
    if kind == "tree": return BinaryTree()
    return SquareRootToeplitz(bands or participation.separation)
