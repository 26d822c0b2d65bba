"""`tacit audit`: try to get out of a model what must not be in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson
from tacit.cli.progress import bar
from tacit.privacy.claims import format_delta, format_epsilon

EXAMPLES = """
Examples:

`tacit audit runs/private`

`tacit audit runs/private --phrases secrets.txt --fail-if "memorized>0"`

`tacit audit runs/private --membership --references 1 --json`
"""
FAILED = 1  # the exit code of a gate that does not open


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a folder with a model.")],
    phrases: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Also look for these phrases, one to a line."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Random suffixes to compare with.")] = 2_000_000,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Also the rank among all suffixes, and the exposure.")
    ] = False,
    beam_width: Annotated[int, typer.Option(help="Of the beam search.")] = 5,
    controls: Annotated[int, typer.Option(help="Phrases that were never planted.")] = 100,
    membership: Annotated[
        bool, typer.Option("--membership", help="Also attack the training users. Internal.")
    ] = False,
    references: Annotated[
        int, typer.Option(help="Reference models to train for the membership attacks.")
    ] = 0,
    texts: Annotated[str, typer.Option(help="Of the members: fresh, training or all.")] = "fresh",
    max_users: Annotated[int, typer.Option(help="On either side of a membership attack.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of bounds and intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of random suffixes and controls.")] = 0,
    fail_if: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="CONDITION",
            help='Exit with 1 if it holds, such as "memorized>0"; may be repeated.',
        ),
    ] = None,
    internal: Annotated[
        bool,
        typer.Option("--internal", help="Print phrases and their figures into files and logs too."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for planted canaries and phrases in a model, and measure what its users give away.

    Findings about canaries and the verdicts on phrases go to RUN/audit.json; all else about
    phrases, and what is computed from people's text, to RUN/private/audit.json.
    """
    from tacit.audit.extraction import Extraction
    from tacit.audit.gate import Gate
    from tacit.audit.language import AuditSettings, audit_model, read_phrases, save
    from tacit.runs.stored_model import StoredModel

    gates = [Gate.parse(text) for text in fail_if or []]
    settings = AuditSettings(
        Extraction(samples=samples, ranks=ranks, beam_width=beam_width, top=min(5, beam_width)),
        controls=controls,
        phrases=() if phrases is None else read_phrases(phrases),
        membership=membership or references > 0,
        references=references,
        texts=texts,
        max_users=max_users,
        confidence=confidence,
        seed=seed,
    )
    stored = StoredModel.open(run)
    with bar("audit") as show:
        found = audit_model(
            stored, settings, lambda what, done, of: show(what, done, of, f"{done:,} of {of:,}")
        )
    if stored.run is not None:
        save(stored.run, found)
    failed = [str(gate) for gate in gates if gate.fails(found.figures())]
    # JSON is for files and other programs, and what is no terminal may be a log that many can read.
    for_the_owner = internal or (not as_json and sys.stdout.isatty())
    figures = found.figures(with_phrases=for_the_owner)
    if as_json:
        json.dump(figures | {"failed": failed}, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        print_findings(Console(), figures)
    if failed:
        print(f"tacit: the audit fails: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(FAILED)


def print_findings(console: Console, figures: dict[str, Any]) -> None:
    """For people: a table of the cells, and a sentence for everything else."""
    if figures["rows"]:
        console.print(cells_table(figures["rows"]))
        console.print(_canary_sentence(figures))
    if figures["phrases"]:
        console.print(_phrase_table(figures["phrases"]))
        if "log_perplexity" not in figures["phrases"][0]:
            console.print(
                "The phrases and their figures are shown on a terminal, or by --internal."
            )
    if figures["empirical_epsilon"]:
        console.print(_epsilon_sentence(figures))
    if "membership" in figures:
        console.print(_membership_table(figures["membership"]))
        console.print(
            "Computed from people's text: internal, not for publication (private/audit.json)."
        )


def cells_table(rows: list[dict[str, Any]]) -> Table:
    """Canaries by cell: how widely they were shared, and how many came out."""
    table = Table(box=SIMPLE_HEAD, title="canaries memorized, by cell", title_justify="left")
    columns = ["sharers expected", "p_e", "canaries", "sharers", "copies", "RS", "BS", "exposure"]
    for name in columns:
        table.add_column(name, justify="right")
    cells: dict[tuple[float, float], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["expected_sharers"], row["example_prob"]), []).append(row)
    for (sharers, prob), mine in cells.items():
        exposures = [row["exposure"] for row in mine if row["exposure"] is not None]
        table.add_row(
            f"{sharers:g}",
            f"{prob:.0%}",
            str(len(mine)),
            _mean([row["sharers"] for row in mine]),
            _mean([row["copies"] for row in mine]),
            str(sum(row["memorized_rs"] for row in mine)),
            str(sum(row["memorized_bs"] for row in mine)),
            f"{sum(exposures) / len(exposures):.1f}" if exposures else "-",
        )
    return table


def _mean(values: list[int]) -> str:
    return f"{sum(values) / len(values):.1f}"


def _canary_sentence(figures: dict[str, Any]) -> str:
    said = (
        f"Of {figures['canaries']} canaries, {figures['memorized_rs']} are memorized by Random"
        f" Sampling and {figures['memorized_bs']} by Beam Search."
    )
    if controls := figures["controls"]:
        said += (
            f"  Of {controls['count']} controls that were never planted:"
            f" {controls['memorized_rs']} and {controls['memorized_bs']}."
        )
    return said


def _phrase_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="phrases", title_justify="left")
    for name in ("phrase", "log-perplexity", "RS", "BS", "exposure"):
        table.add_column(name, justify="left" if name == "phrase" else "right")
    for row in rows:
        table.add_row(
            row["text"],
            _tenths(row.get("log_perplexity")),
            "memorized" if row["memorized_rs"] else "no",
            "memorized" if row["memorized_bs"] else "no",
            _tenths(row.get("exposure")),
        )
    return table


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _epsilon_sentence(figures: dict[str, Any]) -> str:
    found = figures["empirical_epsilon"]
    accounted = figures["accounted_epsilon"]
    estimate = found["estimate"]
    said = (
        f"Empirical epsilon from {found['canaries']} canary clients: at least"
        f" {found['lower_bound']:.3g} with {100 * found['confidence']:.6g}% confidence (so many can"
        f" show {found['ceiling']:.3g} at most; try {found['try_number']} at this run, and all of"
        f" its tries hold together with {100 * found['confidence_asked']:.6g}%)"
    )
    if estimate is not None:
        said += f", estimated {format_epsilon(estimate)}"
    claim = "Accounted: no guarantee."
    if accounted is not None:
        claim = (
            f"Accounted: user-level epsilon {format_epsilon(accounted)} at delta"
            f" {format_delta(figures['delta'])}, by {figures['accountant']}."
        )
    if figures["synthetic_users"]:
        claim += "  Its users are synthetic: this says nothing about people."
    return "  ".join([f"{said}.", claim, *found["warnings"]])


def _membership_table(found: dict[str, Any]) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        title=f"membership of {found['members']} users against {found['non_members']} strangers",
        title_justify="left",
    )
    for name in ("attack", "AUC", "interval", "TPR at 1% FPR", "TPR at 0.1% FPR"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    for attack in found["attacks"]:
        low, high = attack["auc_interval"]
        rates = ["-" if rate["tpr"] is None else f"{rate['tpr']:.1%}" for rate in attack["tpr_at"]]
        table.add_row(attack["name"], f"{attack['auc']:.3f}", f"{low:.3f}-{high:.3f}", *rates)
    return table
