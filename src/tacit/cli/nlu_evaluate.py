"""`tacit nlu evaluate`: how well a model understands, intent by intent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.nlu_train import metrics_table
from tacit.cli.options import AsJson
from tacit.cli.output import percent
from tacit.cli.progress import bar

EXAMPLES = """
Examples:

`tacit nlu evaluate runs/nlu`

`tacit nlu evaluate runs/nlu --data other.jsonl --json`
"""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="D",
            help="Other utterances, all of them, instead of the run's own test part.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(metavar="NAME", help="Of the run's own data: test or valid.")
    ] = "test",
    as_json: AsJson = False,
) -> None:
    """Semantic error rate, intent accuracy and slot F1, in all and by intent.

    Members' utterances cannot be asked for here: what a model makes of those is private, and
    `tacit nlu attack` measures it.
    """
    from tacit.runs.run import NluRun
    from tacit.tasks.nlu.layouts import load_nlu
    from tacit.tasks.nlu.metrics import by_intent, total
    from tacit.tasks.nlu.predictions import predict

    if part not in ("test", "valid"):
        raise ValueError(f"--part must be test or valid, got {part!r}")
    found = NluRun.open(run)
    if data is None:
        utterances = getattr(found.data(), part)
        what = f"on {part}"
    else:
        other = load_nlu(data, unseen_intents="keep")
        utterances = (*other.train, *other.valid, *other.test)
        what = f"on {data}"
    if not utterances:
        raise ValueError(f"{found.experiment.data.source} has no utterance in {part}")
    stored = found.stored()
    with bar("evaluating") as show:
        answers = predict(
            stored.model,
            stored.encoder,
            stored.labels,
            utterances,
            progress=lambda done, of: show("evaluating", done, of, f"{done:,} utterances"),
        )
    table = by_intent(utterances, answers)
    whole = total(table.values())
    if as_json:
        rows = {intent: metrics.as_row() for intent, metrics in table.items()}
        result = {"run": str(run), "part": what, **whole.as_row(), "by_intent": rows}
        json.dump(result, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    console = Console(highlight=False)
    console.print(metrics_table(whole.as_row(), what))
    shown = Table()
    shown.add_column("intent", overflow="fold")
    for name in ("utterances", "SER", "intent right", "slot F1"):
        shown.add_column(name, justify="right")
    for intent, metrics in table.items():
        row = metrics.as_row()
        shown.add_row(
            intent,
            f"{metrics.utterances:,}",
            percent(row["semantic_error_rate"]),
            percent(row["intent_accuracy"]),
            percent(row["slot_f1"]),
        )
    console.print(shown)
