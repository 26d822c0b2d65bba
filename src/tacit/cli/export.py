"""`tacit export`: the one bundle that is meant for sharing.

Everything else in a run directory is for its owner only.  What must not be released is refused, or
marked on the model card if that is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tacit.cli.options import AsJson, Round, RunArgument, flag, text
from tacit.cli.output import check_new_directory, emit

if TYPE_CHECKING:
    from tacit.runs.export import Exported


def export(
    run: RunArgument,
    out: Path | None = text(None, "DIR", "The directory to make. [default: RUN-export]"),
    round: Round = None,
    not_for_release: bool = flag(
        "--not-for-release",
        "Export a simulation or a run without a guarantee; the card says what it is.",
    ),
    as_json: AsJson = False,
) -> None:
    """Write a model, its tokenizer, its ledger and a model card with the claim.

    Nothing of the run's private folder is in it.  Everything else in a run directory is for its
    owner only.

    Examples:

    `tacit export runs/first --out shared/first`

    `tacit export runs/simulated --out here --not-for-release`
    """
    from tacit.runs.export import export_run

    out = out or Path(f"{run}-export")
    check_new_directory(out)
    exported = export_run(run, out, round, not_for_release=not_for_release)
    emit(exported.as_row(), as_json, lambda console: _print(console, exported))


def _print(console: Console, exported: Exported) -> None:
    """What was written where, what qualifies it, and the claim."""
    files = ", ".join(exported.files)
    model = f"the model after {exported.leg_name} {exported.leg}"
    console.print(f"In {exported.out}: {files}, of {model}.")
    if exported.not_for_release:
        console.print(f"Not for release: {exported.not_for_release}.")
    if not exported.complete:
        console.print(
            f"The training is not finished: further {exported.leg_name}s that are released cost"
            " more."
        )
    console.print(exported.claim)
