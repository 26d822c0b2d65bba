"""`tacit verify`: everything that a run or a bundle says about privacy, against its ledger.

For somebody who received a bundle: the check needs neither the corpus nor the machine that the
model was trained on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from tacit.cli.options import AsJson, argument
from tacit.cli.output import emit, table

if TYPE_CHECKING:
    from tacit.verification.verifying import Findings

_DIFFERS = 1  # the exit code


def verify(
    path: Path = argument(..., "PATH", "A run directory or an exported bundle."),
    as_json: AsJson = False,
) -> None:
    """Verify a run or a bundle by itself: chain, charges, epsilon, every word of the claim.

    Exits with 0 if nothing differs from the ledger, and else with 1, after a sentence for each
    difference.  Needs neither the corpus nor the machine that it was trained on.

    Examples:

    `tacit verify runs/first`

    `tacit verify shared/first --json`
    """
    from tacit.verification.verifying import verify as check

    findings = check(path)
    emit(findings, as_json, lambda console: _print(console, findings))
    if findings.differences:
        raise typer.Exit(_DIFFERS)


def _print(console: Console, findings: Findings) -> None:
    """Each check in a line, then every difference in a sentence; without any, the claim."""
    console.print(
        table(
            *("checked", "what", "differences"),
            title=f"the {findings.kind} {findings.path}",
            rows=[
                (check.name, check.what, str(len(check.differences) or "none"))
                for check in findings.checks
            ],
        )
    )
    for remark in findings.remarks:
        console.print(f"Not checked: {remark}.", soft_wrap=True)
    for difference in findings.differences:
        console.print(difference, soft_wrap=True)
    if not findings.differences:
        assert findings.head is not None
        console.print(f"Nothing differs. Head: {findings.head.hash}", soft_wrap=True)
        console.print(findings.claim)
