"""The exact law of a cohort on a tiny population, by listing every outcome."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import comb

Law = dict[tuple[int, ...], Fraction]


def poisson(users: int, q: Fraction) -> Law:
    """Every user flips a coin of its own."""
    law: Law = {}
    for coins in product((False, True), repeat=users):
        heads = tuple(user for user, coin in enumerate(coins) if coin)
        law[heads] = q ** len(heads) * (1 - q) ** (users - len(heads))
    return law


def truncated_poisson(slots: int, users: int, q: Fraction, cap: int) -> Law:
    """Every slot flips a coin; of more than `cap` heads, a uniform subset stays."""
    law: Law = {}
    for heads, probability in poisson(slots, q).items():
        size = min(len(heads), cap)
        for kept in combinations(heads, size):
            _add(law, kept, users, probability / comb(len(heads), size))
    return law


def fixed_size(slots: int, users: int, cohort: int) -> Law:
    """Every subset of `cohort` slots is equally likely."""
    law: Law = {}
    for kept in combinations(range(slots), cohort):
        _add(law, kept, users, Fraction(1, comb(slots, cohort)))
    return law


def _add(law: Law, kept: tuple[int, ...], users: int, probability: Fraction) -> None:
    actual = tuple(slot for slot in kept if slot < users)
    law[actual] = law.get(actual, Fraction(0)) + probability
