"""`tacit verify`: everything that a run or a bundle says about privacy, against its ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson

if TYPE_CHECKING:
    from tacit.verification import Findings

EXAMPLES = """
Examples:

`tacit verify runs/first`

`tacit verify shared/first --json`
"""
DIFFERS = 1  # the exit code


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A run directory or an exported bundle.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Verify a run or a bundle by itself: chain, charges, epsilon, every word of the claim.

    Exits with 0 if nothing differs from the ledger, and else with 1, after a sentence for each
    difference.  Needs neither the corpus nor the machine that it was trained on.
    """
    from tacit.verification import verify as verified

    found = verified(path)
    if as_json:
        json.dump(found.as_row(), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(found)
    if found.differences:
        raise typer.Exit(DIFFERS)


def _print(found: Findings) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(title=f"the {found.kind} {found.path}")
    for column in ("checked", "what", "differences"):
        table.add_column(column)
    for check in found.checks:
        table.add_row(check.name, check.what, str(len(check.differences) or "none"))
    console.print(table)
    for remark in found.remarks:
        console.print(f"Not checked: {remark}.", soft_wrap=True)
    for difference in found.differences:
        console.print(difference, soft_wrap=True)
    if not found.differences:
        assert found.head is not None
        console.print(f"Nothing differs. Head: {found.head.hash}", soft_wrap=True)
        console.print(found.claim)
