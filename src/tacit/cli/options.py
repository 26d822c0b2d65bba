"""Options that mean the same in every command that has them."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from tacit.cli.values import number, whole_number

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that is in DIR.")]
KeepKey = Annotated[
    bool, typer.Option("--keep-key", help="Keep the run key at the end; the result says so.")
]
Seed = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        parser=whole_number, metavar="N", help="Repeatable: a simulation, not for release."
    ),
]
TargetEpsilon = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(parser=number, metavar="EPSILON", help="Solve for the noise that meets it."),
]
