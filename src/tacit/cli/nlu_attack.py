"""`tacit nlu attack`: was this utterance in the training?  How often an attacker is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, number, whole_number
from tacit.cli.progress import bar

FAILED = 1  # the exit code of a gate that does not open
EXAMPLES = """
Examples:

`tacit nlu attack runs/atis --shadow runs/snips`

`tacit nlu attack runs/atis --reference runs/half-1 --reference runs/half-2 --fail-if "membership_auc>0.6"`
"""  # noqa: E501


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory to attack.")],
    *,
    shadow: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            metavar="RUN", help="A run on another corpus, which the attack learns from; repeatable."
        ),
    ] = None,
    reference: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            metavar="RUN",
            help="A run with data.reference, on utterances like these, for RMIA; repeatable.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(parser=number, metavar="P", help="Of the intervals.")
    ] = 0.95,
    seed: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Of the draw that balances.")
    ] = 0,
    fail_if: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="GATE", help='Such as "membership_auc>0.6": exit code 1 if it holds.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try to tell the utterances that a model was trained on from others, and count.

    The result is computed from people's utterances: it goes into the run's private folder, and
    what is printed here is for internal use.
    """
    from tacit.audit.gate import Gate
    from tacit.audit.nlu import Scoring, attack_run

    if not 0 < confidence < 1:
        raise ValueError(f"--confidence must be between 0 and 1, got {confidence}")
    gates = [Gate.parse(text) for text in fail_if or []]
    with bar("scoring") as show:
        result = attack_run(
            run,
            shadows=shadow or [],
            references=reference or [],
            seed=seed,
            confidence=confidence,
            scoring=Scoring(lambda what, done, of: show(what, done, of, f"{done:,} utterances")),
        )
    failed = [str(gate) for gate in gates if gate.fails(result.gate_figures())]
    if as_json:
        row = {"run": str(run), **result.as_row(), "failed": failed}
        json.dump(row, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        console = Console(highlight=False)
        table = Table()
        for name in ("attack", "duplicates"):
            table.add_column(name)
        for name in ("members", "AUC", f"{confidence:.0%} interval", "TPR at 1% FPR"):
            table.add_column(name, justify="right")
        stated = {id(figure): name for name, figure in result.stated.items()}
        for figure in result.figures:
            area, rate = figure.result.auc, figure.result.tpr_at.get(0.01)
            mark = f" ({stated[id(figure)]})" if id(figure) in stated else ""
            table.add_row(
                f"{figure.result.name}{mark}",
                figure.duplicates,
                f"{figure.result.members:,}",
                f"{area.value:.3f}",
                f"{area.low:.3f} to {area.high:.3f}",
                "-" if rate is None or isinstance(rate, str) else f"{rate.tpr:.1%}",
            )
        console.print(table)
        console.print(
            "0.5 is a coin; as many members as non-members.  Internal: computed from the training"
            " utterances, and kept in the run's private folder.",
            markup=False,
        )
        if not shadow:
            console.print(
                "The paper's attack needs a model of another corpus: --shadow RUN", markup=False
            )
        for gate in failed:
            console.print(f"--fail-if {gate} holds: not for release", markup=False)
    if failed:
        raise typer.Exit(FAILED)
