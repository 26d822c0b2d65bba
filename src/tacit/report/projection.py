"""A projected claim as a report shows it, beside the actual one (design rule 10).

What a projection is, and what it costs, is `Guarantee.projected`'s to say.
"""

from __future__ import annotations

from typing import Any

from tacit.privacy.claims import PROJECTED
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.projection import Projection
from tacit.report.common_facts import claim_facts


def projected_facts(guarantee: Guarantee, ledger: Ledger, to: Projection) -> dict[str, Any]:
    """The same facts as of the actual claim, for a training that did not take place."""
    if not guarantee.header.about_people:
        raise ValueError("a run with synthetic users has no claim about people to be projected")
    if not guarantee.rounds:
        raise ValueError("a projection needs a run that has done at least one round")
    there = guarantee.projected(to)
    return {"label": PROJECTED, "cohort": to.cohort, **claim_facts(there, ledger)}
