"""What a report says that follows from the ledger alone: the claim, its cost over time, its length.

Guarantee: there is no path, no clock and no other run in any of it, so that anyone with the ledger
can make these facts again and compare.  `tacit verify` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from tacit.privacy.accountants import accountant_named, sound_accountants
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import PostProcessing
from tacit.privacy.guarantee import Guarantee, ReleaseGroup, finite, grouped
from tacit.privacy.ledger import Ledger
from tacit.privacy.projection import Projection

_POINTS = 12  # on a curve of epsilon

Tell = Callable[[str, int, int], None]
"""(what is being computed, how far it is, of how much): a thousand rounds take seconds."""


def claim_facts(guarantee: Guarantee) -> dict[str, Any]:
    """The claim in words, and everything that it is made from.

    It repeats the ledger's header and adds what follows from the releases; an epsilon is null where
    it is infinite or not known.
    """
    header = guarantee.header
    return header.to_json() | {
        "sentence": guarantee.claim,
        "private": finite(guarantee.value) is not None,
        "meaningful": guarantee.is_meaningful,
        "about_people": header.about_people,
        "epsilon": {name: finite(value) for name, value in guarantee.epsilon.items()},
        "accountant": guarantee.accountant,
        "accountant_asked_for": header.accountant,
        "rounds_charged": guarantee.rounds,
        "releases": [asdict(part) | {"event": part.event.to_json()} for part in guarantee.parts],
        "excluded": list(guarantee.excluded),
        "prior_costs": [
            cost.to_json()
            | {"epsilon": None if cost.releases is None else finite(guarantee.cost_of(cost))}
            for cost in header.prior_costs
        ],
        "not_for_release": guarantee.why_not_for_release,
    }


def projected_facts(guarantee: Guarantee, to: Projection) -> dict[str, Any]:
    """The facts of a claim for a training that did not take place, labelled as that (rule 10).

    What such a claim is, and what it costs, is up to `Guarantee.projected`.
    """
    if not guarantee.header.about_people:
        raise ValueError("a run with synthetic users has no claim about people to be projected")
    if not guarantee.rounds:
        raise ValueError("a projection needs a run that has done at least one round")
    return {"label": PROJECTED, "cohort": to.cohort, **claim_facts(guarantee.projected(to))}


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """How long the ledger is, how it ends, and what it holds."""
    header, head = ledger.header, ledger.head
    rounds = Counter((e.branch, e.round) for e in ledger.entries if e.kind == "round")
    return {
        "run_id": header.run_id,
        "entries": head.entries,
        "head": head.hash,
        "kinds": dict(Counter(entry.kind for entry in ledger.entries)),
        "branch": header.branch,
        "parent": header.parent.to_json() if header.parent else None,
        "charged_again": sorted(round for (_, round), count in rounds.items() if count > 1),
    }


def epsilon_over_releases(
    guarantee: Guarantee, ledger: Ledger, tell: Tell | None = None
) -> dict[str, Any] | None:
    """Epsilon after some of the releases, by every accountant that is sound for all of them.

    The figures after n releases are those of the guarantee that the first n would give, so that
    the last ones are the claim's own.  None where epsilon is 0 or infinite throughout.
    """
    header = ledger.header
    costly = [one for one in ledger.entries if not isinstance(one.event, PostProcessing)]
    if guarantee.reasons or not costly:
        return None
    counts = sorted({round(float(x)) for x in np.linspace(1, len(costly), _POINTS)})
    curves: dict[str, list[float | None]] = {name: [] for name in guarantee.epsilon}
    releases: list[ReleaseGroup] = []
    for number, (before, count) in enumerate(pairwise([0, *counts])):
        if tell is not None:
            tell("epsilon so far", number, len(counts))
        releases += grouped(costly[before:count])
        is_last = count == len(costly)
        so_far = guarantee if is_last else Guarantee.for_releases(header, releases)
        for name, curve in curves.items():
            curve.append(finite(so_far.epsilon[name]))
    rounds = [entry.round for entry in costly if entry.kind == "round"]
    is_plain = len(rounds) == len(costly) and rounds == sorted(set(rounds))
    _, refused = sound_accountants(ledger.composition())
    return {
        # The n-th release is the n-th round if none was repeated and nothing else was charged.
        "counted": header.counted if is_plain else "releases charged",
        "after": counts,
        "delta": header.delta,
        "curves": [
            {"accountant": name, "title": accountant_named(name).title, "epsilon": curve}
            for name, curve in curves.items()
        ],
        "refused": refused,
    }
