"""Epsilon as the releases were made, by every accountant that is sound for all of them.

The figures come from the ledger alone: the first so many of its entries, composed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.events import Composition
from tacit.privacy.ledger import Ledger

POINTS = 12

Tell = Callable[[int, int], None]
"""(figures computed, of how many): a thousand rounds take seconds."""


def over_releases(
    ledger: Ledger, points: int = POINTS, tell: Tell | None = None
) -> dict[str, Any] | None:
    """Epsilon after some of the releases; None where it is 0 or infinite throughout."""
    whole, delta = ledger.composition(), ledger.header.delta
    if not whole.is_private or not whole.costly():
        return None
    events = [entry.event for entry in ledger.entries]
    places = sorted({round(float(x)) for x in np.linspace(1, len(events), points)})
    accountants, refused = sound_accountants(whole)
    curves = []
    for number, accountant in enumerate(accountants):
        values: list[float | None] = []
        for place in places:
            if tell is not None:
                tell(number * len(places) + len(values), len(accountants) * len(places))
            values.append(_finite(accountant.epsilon(Composition.of(events[:place]), delta)))
        curves.append({"accountant": accountant.name, "title": accountant.title, "epsilon": values})
    return {
        "counted": "rounds" if _are_plain_rounds(ledger) else "releases charged",
        "after": places,
        "delta": delta,
        "curves": curves,
        "refused": refused,
    }


def _are_plain_rounds(ledger: Ledger) -> bool:
    """Whether the n-th release is the n-th round: none repeated, and nothing else charged."""
    entries = ledger.entries
    return all(e.kind == "round" and e.round == number for number, e in enumerate(entries))


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
