"""`tacit export`: the one bundle that is meant for sharing.

Everything else in a run directory is for its owner only.  What must not be released is refused, or
marked on the model card if that is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from tacit.cli.options import (
    AsJson,
    Round,
    RunArgument,
    flag,
    text,
)
from tacit.cli.output import emit, new_directory

if TYPE_CHECKING:
    from tacit.privacy.guarantee import Guarantee
    from tacit.runs.export import Facts
    from tacit.runs.run import LanguageRun

EXAMPLES = """
Examples:

`tacit export runs/first --out shared/first`

`tacit export runs/simulated --out here --not-for-release`
"""


def export(
    run: RunArgument,
    out: Annotated[Path | None, text("DIR", "The directory to make. [default: RUN-export]")] = None,
    round: Round = None,
    not_for_release: Annotated[
        bool,
        flag(
            "--not-for-release",
            "Export a simulation or a run without a guarantee; the card says what it is.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model, its tokenizer, its ledger and a model card with the claim.

    Nothing of the run's private folder is in it.  Everything else in a run directory is for its
    owner only.
    """
    from tacit.privacy.ledger import Ledger
    from tacit.runs import export as bundles
    from tacit.runs.personalization import refuse_personal
    from tacit.runs.run import LanguageRun

    out = out or Path(f"{run}-export")
    refuse_personal(run)
    opened = LanguageRun.open(run)
    claimed = opened.guarantee()
    why_not = claimed.why_not_for_release
    if why_not and not not_for_release:
        raise ValueError(
            f"{run} is not for release: {why_not}; to export it all the same, marked as such, add"
            " --not-for-release"
        )
    if not why_not and not_for_release:
        why_not = "the person who exported it says so"
    facts = _facts(opened, claimed, round)
    with new_directory(out) as folder:
        words = opened.tokenizer_at(facts.round).to_json()
        bundles.write(folder, opened.directory, facts, words, why_not)
    row = {
        "out": str(out),
        "run": str(run),
        "round": facts.round,
        "files": list(bundles.FILES),
        "not_for_release": why_not,
        "complete": facts.is_complete,
        "claim": claimed.claim,
        "head": Ledger.read(out / "ledger.jsonl").head.to_json(),
    }
    emit(row, as_json, lambda console: _print(console, row))


def _print(console: Console, row: dict[str, Any]) -> None:
    files = ", ".join(row["files"])
    console.print(f"In {row['out']}: {files}, of the model after round {row['round']}.")
    if row["not_for_release"]:
        console.print(f"Not for release: {row['not_for_release']}.")
    if not row["complete"]:
        console.print("The training is not finished: further rounds that are released cost more.")
    console.print(row["claim"])


def _facts(run: LanguageRun, claimed: Guarantee, round: int | None) -> Facts:
    """What the model card says; weights that started from one person's model are refused."""
    from tacit.models import weights
    from tacit.models.base import parameter_count
    from tacit.runs.export import Facts
    from tacit.runs.personalization import refuse_personal_weights

    checkpoint = run.directory.checkpoints.read(round)
    refuse_personal_weights(run.path, weights.trained_on(checkpoint.model_file))
    model, words = run.model(checkpoint.leg), run.tokenizer_at(checkpoint.leg)
    measured = [row for row in run.metrics() if row["round"] == checkpoint.leg]
    return Facts(
        round=checkpoint.leg,
        is_complete=run.is_complete,
        key_exists=run.directory.key_file.exists(),
        guarantee=claimed,
        head=run.ledger.head,
        model=f"{run.experiment.model.name} with {parameter_count(model):,} parameters",
        tokenizer=f"{words.kind} tokenizer of {words.vocab_size:,} tokens, {words.provenance}",
        metrics=measured[-1] if measured else None,
    )
