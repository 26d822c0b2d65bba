"""Epsilon as the releases were made, by every accountant that is sound for all of them.

The figures come from the ledger alone: the first so many of its entries, composed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.events import Composition
from tacit.privacy.ledger import Ledger
from tacit.report.common_facts import finite

POINTS = 12

Tell = Callable[[str, int, int], None]  # what is being computed, how far, of how much
"""(figures computed, of how many): a thousand rounds take seconds."""


def over_releases(
    ledger: Ledger, points: int = POINTS, tell: Tell | None = None, *, counted: str = "rounds"
) -> dict[str, Any] | None:
    """Epsilon after some of the releases; None where it is 0 or infinite throughout.

    `counted` is what the releases are where each of them is one of those and none was repeated.
    """
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
                done, of = number * len(places) + len(values), len(accountants) * len(places)
                tell("epsilon so far", done, of)
            values.append(finite(accountant.epsilon(Composition.of(events[:place]), delta)))
        curves.append({"accountant": accountant.name, "title": accountant.title, "epsilon": values})
    return {
        "counted": counted if _are_plain(ledger) else "releases charged",
        "after": places,
        "delta": delta,
        "curves": curves,
        "refused": refused,
    }


def _are_plain(ledger: Ledger) -> bool:
    """Whether the n-th release is the n-th of them: none repeated, and nothing else charged."""
    rounds = [entry.round for entry in ledger.entries if entry.kind == "round"]
    return len(rounds) == len(ledger.entries) and rounds == sorted(set(rounds))
