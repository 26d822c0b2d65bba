"""An audit as the report tells it: the canaries by cell, and what may be printed of the rest.

The phrases of `tacit audit --phrases` are secrets that somebody is afraid for.  The verdicts on
them are in every report; their words, and the figures by which they could be found, in an internal
one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.report.inputs import Audit, CanaryRow, Phrase, PrivateAudit, Verdict

NOT_AUDITED = "not audited: run `tacit audit RUN`"


def audit_facts(audit: Audit, private: PrivateAudit | None) -> dict[str, Any]:
    """What audit.json says, with its canaries added up by cell; `private` if it is internal."""
    facts = audit.model_dump(mode="json")
    facts["cells"] = [_cell(rows) for rows in _by_cell(audit.rows)]
    if audit.phrases is not None:
        facts["phrases"] = _phrases(audit.phrases, _known(audit, private))
    return facts


def _known(audit: Audit, private: PrivateAudit | None) -> Sequence[Phrase]:
    """The phrases of the same audit, where the report may have them."""
    if private is None or private.round not in (None, audit.round):
        return ()
    return private.phrases or ()


def _phrases(verdicts: Sequence[Verdict], known: Sequence[Phrase]) -> list[dict[str, Any]]:
    """A row for each, with the same names in every report: what is not to be told is null."""
    hidden = dict.fromkeys(Phrase.model_fields)
    rows = []
    for number, verdict in enumerate(verdicts):
        row = hidden | verdict.model_dump(mode="json") | {"text": f"phrase {number + 1}"}
        if number < len(known):
            row = known[number].model_dump(mode="json")
        rows.append(row)
    return rows


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
