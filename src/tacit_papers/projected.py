"""What the noise of a small run would be worth where more people take part (design rule 10).

`Guarantee.projected` says what that costs; a table may ask for another number of rounds besides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tacit.privacy import guarantee
from tacit.privacy.claims import PROJECTED
from tacit.privacy.guarantee import Guarantee, finite
from tacit_papers.thakkar2020.grid import Projection


def projected(actual: Guarantee, to: Projection) -> Guarantee:
    """The guarantee of the same noise on the average at another cohort and population."""
    there = actual.projected(guarantee.Projection(to.cohort, to.population, to.delta))
    if to.rounds is None:
        return there
    if sum(part.kind == "round" for part in there.parts) > 1:
        raise ValueError(
            f"a projection to {to.rounds:,} rounds needs rounds that are all alike, and those of"
            " this run differ in their noise or sampling"
        )
    parts = [
        replace(part, count=to.rounds) if part.kind == "round" else part for part in there.parts
    ]
    return Guarantee.for_releases(there.header, parts, is_projected=True)


def projected_facts(actual: Guarantee, to: Projection) -> dict[str, Any]:
    """The projected claim as a table's file has it, or why there is none."""
    asked = {"label": PROJECTED, "cohort": to.cohort, "population": to.population}
    try:
        there = projected(actual, to)
    except ValueError as why:
        nothing = {"epsilon": None, "delta": to.delta, "accountant": None}
        return asked | nothing | {"claim": f"Nothing is projected: {why}."}
    return asked | {
        "epsilon": finite(there.value),
        "delta": there.delta,
        "accountant": there.accountant,
        "claim": there.claim,
    }
