"""`tacit audit`: try to get out of a model what must not be in it.

The run decides what can be looked for.  A language model is searched for canaries and phrases, and
its users may be attacked; a model of intents and slots is attacked utterance by utterance.  An
option that does not fit the run is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, ModelArgument, count, flag, real, refuse_unfit, text
from tacit.cli.output import emit, note, table
from tacit.cli.progress import bar
from tacit.privacy.claims import format_delta, format_epsilon

_FAILED = 1  # the exit code of a gate that does not open

_EXTRACTION = ("--phrases", "--samples", "--ranks", "--beam-width", "--controls")
_MEMBERSHIP = ("--membership", "--references", "--texts", "--max-users")
_ONLY = {"language": (*_EXTRACTION, *_MEMBERSHIP), "nlu": ("--shadow", "--reference")}

_Row = dict[str, Any]


def audit(
    context: typer.Context,
    run: ModelArgument,
    *,
    phrases: Path | None = text(None, "FILE", "Also look for these phrases, one to a line."),
    samples: int = count(2_000_000, "N", "Random suffixes to compare with."),
    ranks: bool = flag("--ranks", "Also the rank among all suffixes, and the exposure."),
    beam_width: int = count(5, "N", "Of the beam search."),
    controls: int = count(100, "N", "Phrases that were never planted."),
    membership: bool = flag("--membership", "Also attack the training users. Internal."),
    references: int = count(0, "N", "Reference models to train for the membership attacks."),
    texts: str = text("fresh", "NAME", "Of the members: fresh, training or all."),
    max_users: int = count(1000, "N", "On either side of a membership attack."),
    shadow: list[Path] | None = text(None, "RUN", "To learn from: a run on another corpus."),
    reference: list[Path] | None = text(None, "RUN", "A run with data.reference, like this one."),
    confidence: float = real(0.95, "X", "Of bounds and intervals."),
    seed: int = count(0, "N", "Of everything that is drawn at random."),
    fail_if: list[str] | None = text(
        None, "CONDITION", 'Exit with 1 if it holds, such as "memorized>0"; may be repeated.'
    ),
    internal: bool = flag("--internal", "Print phrases and their figures into files and logs too."),
    as_json: AsJson = False,
) -> None:
    """Look for planted canaries and phrases in a model, and measure what its users give away.

    Findings about canaries and the verdicts on phrases go to RUN/audit.json; all else about
    phrases, and what is computed from people's text, to RUN/private.

    Of a model of intents and slots: how well the training utterances can be told from others.
    --shadow and --reference are for these, and repeatable.

    Examples:

    `tacit audit runs/private`

    `tacit audit runs/private --phrases secrets.txt --fail-if "memorized>0"`

    `tacit audit runs/private --membership --references 1 --json`

    `tacit audit runs/atis --shadow runs/snips --fail-if "membership_auc>0.6"`
    """
    from tacit.audit.gate import Gate
    from tacit.runs.directory import RunDirectory

    gates = [Gate.parse(text) for text in fail_if or []]
    task = RunDirectory(run).task
    refuse_unfit(context, task, _ONLY)
    render: Callable[[Console, _Row], None]
    with bar("audit") as show:

        def tell(what: str, done: int, of: int) -> None:
            show(what, done, of, f"{done:,} of {of:,}")

        if task == "nlu":
            from tacit.audit.nlu import Scoring, attack_run

            result = attack_run(
                run,
                shadows=shadow or [],
                references=reference or [],
                seed=seed,
                confidence=confidence,
                scoring=Scoring(tell),
            )
            measured, row = result.gate_figures(), {"run": str(run), **result.as_row()}
            render = _print_nlu_attacks
        else:
            from tacit.audit.extraction import Extraction
            from tacit.audit.language import AuditSettings, audit_model, read_phrases, save
            from tacit.runs.stored_model import StoredModel

            settings = AuditSettings(
                Extraction(
                    samples=samples, ranks=ranks, beam_width=beam_width, top=min(5, beam_width)
                ),
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
            findings = audit_model(stored, settings, tell)
            if stored.run is not None:
                save(stored.run, findings)
            measured = findings.figures()
            # JSON is for files and other programs, and what is no terminal may be a log that many
            # can read.
            for_the_owner = internal or (not as_json and sys.stdout.isatty())
            row, render = findings.figures(with_phrases=for_the_owner), _print_findings
    failed = [str(gate) for gate in gates if gate.fails(measured)]
    emit(row | {"failed": failed}, as_json, lambda console: render(console, row))
    if failed:
        note(f"the audit fails: {', '.join(failed)}")
        raise typer.Exit(_FAILED)


def _print_findings(console: Console, figures: _Row) -> None:
    """The audit of a language model: a table of the cells, and a sentence for all else."""
    if figures["rows"]:
        console.print(_cells_table(figures["rows"]))
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
        measured = figures["membership"]
        title = f"membership of {measured['members']} users against {measured['non_members']}"
        console.print(_attacks_table(f"{title} strangers", measured["attacks"]))
        console.print(
            "Computed from people's text: internal, not for publication (private/audit.json)."
        )


def _print_nlu_attacks(console: Console, row: _Row) -> None:
    """The attacks on a model of intents and slots."""
    stated = {(each["attack"], each["duplicates"]): name for name, each in row["stated"].items()}
    attacks = []
    for attack in row["attacks"]:
        name = f"{attack['name']}, duplicates {attack['duplicates']}"
        mark = stated.get((attack["name"], attack["duplicates"]))
        attacks.append(attack | {"name": f"{name} ({mark})" if mark else name})
    title = f"membership of {row['members']} utterances against {row['non_members']} others"
    console.print(_attacks_table(title, attacks))
    console.print(
        "0.5 is a coin; as many members as non-members.  Internal: computed from the training"
        " utterances, and kept in the run's private folder."
    )
    if not row["shadows"]:
        console.print("The paper's attack needs a model of another corpus: --shadow RUN")


def _cells_table(rows: list[dict[str, Any]]) -> Table:
    """Canaries by cell: how widely they were shared, and how many came out."""
    headings = ("sharers expected", "p_e", "canaries", "sharers", "copies", "RS", "BS", "exposure")
    cells: dict[tuple[float, float], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["expected_sharers"], row["example_prob"]), []).append(row)
    return table(
        *(f">{heading}" for heading in headings),
        rows=[
            (
                f"{sharers:g}",
                f"{prob:.0%}",
                str(len(cell)),
                _mean([row["sharers"] for row in cell]),
                _mean([row["copies"] for row in cell]),
                str(sum(row["memorized_rs"] for row in cell)),
                str(sum(row["memorized_bs"] for row in cell)),
                _mean([row["exposure"] for row in cell if row["exposure"] is not None]),
            )
            for (sharers, prob), cell in cells.items()
        ],
        title="canaries memorized, by cell",
        compact=True,
    )


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f}" if values else "-"


def _canary_sentence(figures: dict[str, Any]) -> str:
    sentence = (
        f"Of {figures['canaries']} canaries, {figures['memorized_rs']} are memorized by Random"
        f" Sampling and {figures['memorized_bs']} by Beam Search."
    )
    if controls := figures["controls"]:
        sentence += (
            f"  Of {controls['count']} controls that were never planted:"
            f" {controls['memorized_rs']} and {controls['memorized_bs']}."
        )
    return sentence


def _phrase_table(rows: list[dict[str, Any]]) -> Table:
    return table(
        *("phrase", ">log-perplexity", ">RS", ">BS", ">exposure"),
        rows=[
            (
                row["text"],
                _tenths(row.get("log_perplexity")),
                "memorized" if row["memorized_rs"] else "no",
                "memorized" if row["memorized_bs"] else "no",
                _tenths(row.get("exposure")),
            )
            for row in rows
        ],
        title="phrases",
        compact=True,
    )


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _epsilon_sentence(figures: dict[str, Any]) -> str:
    shown, accounted = figures["empirical_epsilon"], figures["accounted_epsilon"]
    sentence = (
        f"Empirical epsilon from {shown['canaries']} canary clients: at least"
        f" {shown['lower_bound']:.3g} with {100 * shown['confidence']:.6g}% confidence (that many"
        f" can show at most {shown['ceiling']:.3g}; try {shown['try_number']} at this run, and all"
        f" of its tries hold together with {100 * shown['confidence_asked']:.6g}%)"
    )
    if shown["estimate"] is not None:
        sentence += f", estimated {format_epsilon(shown['estimate'])}"
    claim = "Accounted: no guarantee."
    if accounted is not None:
        claim = (
            f"Accounted: user-level epsilon {format_epsilon(accounted)} at delta"
            f" {format_delta(figures['delta'])}, by {figures['accountant']}."
        )
    if figures["synthetic_users"]:
        claim += "  Its users are synthetic: this says nothing about people."
    return "  ".join([f"{sentence}.", claim, *shown["warnings"]])


def _attacks_table(title: str, attacks: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for attack in attacks:
        low, high = attack["auc_interval"]
        rates = ["-" if rate["tpr"] is None else f"{rate['tpr']:.1%}" for rate in attack["tpr_at"]]
        members = f"{attack['members']:,}"
        area = f"{attack['auc']:.3f}"
        rows.append((attack["name"], members, area, f"{low:.3f}-{high:.3f}", *rates))
    headings = ("attack", ">members", ">AUC", ">interval", ">TPR at 1% FPR", ">TPR at 0.1% FPR")
    return table(*headings, rows=rows, title=title, compact=True)
