"""Epsilon as the releases were made, by every accountant that is sound for all of them.

The figures are those of the guarantee that the first so many entries of the ledger would give, so
that the last of them are the claim's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.privacy.accountants import accountant_named, sound_accountants
from tacit.privacy.events import PostProcessing
from tacit.privacy.guarantee import Guarantee, ReleaseGroup, finite
from tacit.privacy.ledger import Ledger

POINTS = 12

Tell = Callable[[str, int, int], None]  # what is being computed, how far, of how much
"""(figures computed, of how many): a thousand rounds take seconds."""


def over_releases(
    guarantee: Guarantee, ledger: Ledger, points: int = POINTS, tell: Tell | None = None
) -> dict[str, Any] | None:
    """Epsilon after some of the releases; None where it is 0 or infinite throughout."""
    header = ledger.header
    costly = [one for one in ledger.entries if not isinstance(one.event, PostProcessing)]
    if guarantee.reasons or not costly:
        return None
    releases = [ReleaseGroup(entry.kind, entry.event, 1, entry.estimator) for entry in costly]
    places = sorted({round(float(x)) for x in np.linspace(1, len(releases), points)})
    values: dict[str, list[float | None]] = {name: [] for name in guarantee.epsilon}
    for number, place in enumerate(places):
        if tell is not None:
            tell("epsilon so far", number, len(places))
        so_far = guarantee
        if place < len(releases):
            so_far = Guarantee.for_releases(header, releases[:place])
        for name, found in values.items():
            found.append(finite(so_far.epsilon[name]))
    rounds = [entry.round for entry in costly if entry.kind == "round"]
    is_plain = len(rounds) == len(costly) and rounds == sorted(set(rounds))
    _, refused = sound_accountants(ledger.composition())
    return {
        # The n-th release is the n-th round if none was repeated and nothing else was charged.
        "counted": header.counted if is_plain else "releases charged",
        "after": places,
        "delta": header.delta,
        "curves": [
            {"accountant": name, "title": accountant_named(name).title, "epsilon": found}
            for name, found in values.items()
        ],
        "refused": refused,
    }
