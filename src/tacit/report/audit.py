"""An audit as the report tells it: the canaries by cell, and what may be printed of the rest.

The phrases of `tacit audit --phrases` are secrets that somebody is afraid for.  Their verdicts are
in every report, their words in an internal one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.report.inputs import Audit, CanaryRow, PrivateAudit

NOT_AUDITED = "not audited: run `tacit audit RUN`"


def audit_facts(audit: Audit, private: PrivateAudit | None) -> dict[str, Any]:
    """What audit.json says, with its canaries added up by cell; `private` if it is internal."""
    facts = audit.model_dump(mode="json")
    facts["cells"] = [_cell(rows) for rows in _by_cell(audit.rows)]
    if facts["phrases"] is not None:
        known = private.phrases if private is not None else None
        for number, row in enumerate(facts["phrases"]):
            is_known = known is not None and number < len(known)
            row["text"] = known[number].text if known and is_known else f"phrase {number + 1}"
    return facts


def membership_facts(audit: PrivateAudit | None) -> dict[str, Any] | None:
    """What private/audit.json says: for an internal report."""
    if audit is None or audit.membership is None:
        return None
    return audit.membership.model_dump(mode="json")


def _by_cell(rows: Sequence[CanaryRow]) -> list[list[CanaryRow]]:
    cells: dict[tuple[float, float], list[CanaryRow]] = {}
    for row in rows:
        cells.setdefault((row.expected_sharers, row.example_prob), []).append(row)
    return [cells[key] for key in sorted(cells)]


def _cell(rows: Sequence[CanaryRow]) -> dict[str, Any]:
    exposures = [row.exposure for row in rows if row.exposure is not None]
    return {
        "expected_sharers": rows[0].expected_sharers,
        "example_prob": rows[0].example_prob,
        "canaries": len(rows),
        "mean_sharers": sum(row.sharers for row in rows) / len(rows),
        "mean_copies": sum(row.copies for row in rows) / len(rows),
        "memorized_rs": sum(row.memorized_rs for row in rows),
        "memorized_bs": sum(row.memorized_bs for row in rows),
        "mean_exposure": sum(exposures) / len(exposures) if exposures else None,
    }
