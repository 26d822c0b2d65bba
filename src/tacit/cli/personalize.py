"""`tacit personalize`: a released model, made one person's own on that person's side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, number, whole_number
from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.public.pretrain import Progress
    from tacit.runs.personalization import Personalized

EXAMPLES = """
Examples:

`tacit personalize shared/first --user-text my-messages.txt --out my-model`

`tacit predict my-model "see you "`
"""


def personalize(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory, an exported bundle, or another folder with a model.",
            show_default=False,
        ),
    ],
    user_text: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="One person's text: a text to a line, or JSON Lines with text."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The directory to make, for its owner only.")
    ],
    epochs: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Passes over the text.")
    ] = 3.0,
    lr: Annotated[
        float, typer.Option(parser=number, metavar="X", help="The learning rate (Adam).")
    ] = 1e-3,
    round: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="The model after this round.  [default: last]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model further on one person's text, and keep the result for that person.

    The last fifth of the texts is held out to measure on.  The result may repeat what the person
    wrote: it is their private data, is never exported, and belongs on their side.
    """
    from tacit.runs import personalization
    from tacit.runs.stored_model import StoredModel

    personalization.check_free(out)
    texts = personalization.read_texts(user_text)
    found = StoredModel.open(run, round)
    with bar("personalising") as show:

        def advance(now: Progress) -> None:
            show("personalising", now.share, 1.0, f"step {now.step:,}  loss {now.loss:.3f}")

        made = personalization.personalize(
            found, texts, epochs=epochs, learning_rate=lr, progress=advance
        )
    personalization.save(made, found, out)
    if as_json:
        row: dict[str, Any] = {"out": str(out), "run": str(run), "round": found.round}
        json.dump(row | made.as_row(), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(made, out)


def _print(made: Personalized, out: Path) -> None:
    console = Console(highlight=False)
    table = Table(
        title=f"{made.before.targets:,} tokens of the person's last {made.held_out_texts:,} texts"
    )
    table.add_column("model")
    table.add_column("perplexity", justify="right")
    table.add_column("top 1", justify="right")
    for name, metrics in (("as released", made.before), ("personalised", made.after)):
        table.add_row(name, f"{metrics.perplexity:,.1f}", f"{metrics.accuracy_top1:.2%}")
    console.print(table)
    if not made.after.log_prob > made.before.log_prob:
        console.print("It did not get better on this person's later text; try a lower --lr.")
    console.print(
        f"In {out}: the person's own model.  It is as private as their text and is never exported.",
        markup=False,
    )
