"""`tacit audit`: try to get out of a model what must not be in it.

The run decides what can be looked for.  A language model is searched for canaries and phrases, and
its users may be attacked; a model of intents and slots is attacked utterance by utterance.  An
option that does not fit the run is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, ModelArgument, count, flag, real, refuse_unfit, text
from tacit.cli.output import emit, note, table
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.runs.progress import bar

if TYPE_CHECKING:
    from tacit.audit.language import AuditFindings, AuditSettings
    from tacit.audit.membership import MembershipResult
    from tacit.audit.results import PublicAudit, Verdict

_FAILED = 1  # the exit code of a gate that does not open

_EXTRACTION = ("--phrases", "--samples", "--ranks", "--beam-width", "--controls")
_MEMBERSHIP = ("--membership", "--references", "--texts", "--max-users")
_ONLY = {"language": (*_EXTRACTION, *_MEMBERSHIP), "nlu": ("--shadow", "--reference")}

_Tell = Callable[[str, int, int], None]


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
    from tacit.audit.extraction import Extraction
    from tacit.audit.gate import Gate
    from tacit.audit.language import AuditSettings, read_phrases
    from tacit.audit.nlu import Scoring, attack_run
    from tacit.runs.directory import RunDirectory

    gates = [Gate.parse(text) for text in fail_if or []]
    task = RunDirectory(run).task
    refuse_unfit(context, task, _ONLY)
    with bar("audit") as show:

        def tell(what: str, done: int, of: int) -> None:
            show(what, done, of, f"{done:,} of {of:,}")

        if task == "nlu":
            result = attack_run(
                run,
                shadows=shadow or [],
                references=reference or [],
                seed=seed,
                confidence=confidence,
                scoring=Scoring(tell),
            )
            measured, row = result.gate_figures(), {"run": str(run), **result.as_row()}
        else:
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
            findings = _audit_language(run, settings, tell)
            # JSON is for files and other programs, and what is no terminal may be a log that many
            # can read.
            for_the_owner = internal or (not as_json and sys.stdout.isatty())
            measured, row = findings.figures(), findings.figures(with_phrases=for_the_owner)

    def render(console: Console) -> None:
        if task == "nlu":
            _print_nlu_attacks(console, result)
        else:
            _print_findings(console, findings, for_the_owner)

    failed = [str(gate) for gate in gates if gate.fails(measured)]
    emit(row | {"failed": failed}, as_json, render)
    if failed:
        note(f"the audit fails: {', '.join(failed)}")
        raise typer.Exit(_FAILED)


def _audit_language(run: Path, settings: AuditSettings, tell: _Tell) -> AuditFindings:
    """Audit a language model, and keep the findings with its run if it has one."""
    from tacit.audit.language import audit_model, save
    from tacit.runs.stored_model import StoredModel

    stored = StoredModel.open(run)
    findings = audit_model(stored, settings, tell)
    if stored.run is not None:
        save(stored.run, findings)
    return findings


def _print_findings(console: Console, findings: AuditFindings, with_phrases: bool) -> None:
    """The audit of a language model: a table of the cells, and a sentence for all else."""
    public, membership = findings.public, findings.internal.membership
    if public.rows:
        console.print(_cells_table(public))
        console.print(_canary_sentence(public))
    if public.phrases:
        known = findings.internal.phrases if with_phrases else None
        console.print(_phrase_table(known or public.phrases))
        if not known:
            console.print(
                "The phrases and their figures are shown on a terminal, or by --internal."
            )
    if public.empirical_epsilon:
        console.print(_epsilon_sentence(public))
    if membership:
        title = f"membership of {membership.members} users against {membership.non_members}"
        console.print(_attacks_table(f"{title} strangers", membership))
        console.print(
            "Computed from people's text: internal, not for publication (private/audit.json)."
        )


def _print_nlu_attacks(console: Console, result: MembershipResult) -> None:
    """The attacks on a model of intents and slots."""
    title = f"membership of {result.members} utterances against {result.non_members} others"
    console.print(_attacks_table(title, result))
    console.print(
        "0.5 is a coin; as many members as non-members.  Internal: computed from the training"
        " utterances, and kept in the run's private folder."
    )
    if not result.shadows:
        console.print("The paper's attack needs a model of another corpus: --shadow RUN")


def _cells_table(audit: PublicAudit) -> Table:
    """Canaries by cell: how widely they were shared, and how many came out."""
    headings = ("sharers expected", "p_e", "canaries", "sharers", "copies", "RS", "BS", "exposure")
    return table(
        *(f">{heading}" for heading in headings),
        rows=[
            (
                f"{cell.expected_sharers:g}",
                f"{cell.example_prob:.0%}",
                str(cell.canaries),
                _tenths(cell.mean_sharers),
                _tenths(cell.mean_copies),
                str(cell.memorized_rs),
                str(cell.memorized_bs),
                _tenths(cell.mean_exposure),
            )
            for cell in audit.cells()
        ],
        title="canaries memorized, by cell",
        compact=True,
    )


def _canary_sentence(audit: PublicAudit) -> str:
    counts = audit.counts()
    sentence = (
        f"Of {counts['canaries']} canaries, {counts['memorized_rs']} are memorized by Random"
        f" Sampling and {counts['memorized_bs']} by Beam Search."
    )
    if controls := audit.controls:
        sentence += (
            f"  Of {controls.count} controls that were never planted:"
            f" {controls.memorized_rs} and {controls.memorized_bs}."
        )
    return sentence


def _phrase_table(phrases: Sequence[Verdict]) -> Table:
    return table(
        *("phrase", ">log-perplexity", ">RS", ">BS", ">exposure"),
        rows=[
            (
                phrase.text,
                _tenths(getattr(phrase, "log_perplexity", None)),
                "memorized" if phrase.memorized_rs else "no",
                "memorized" if phrase.memorized_bs else "no",
                _tenths(getattr(phrase, "exposure", None)),
            )
            for phrase in phrases
        ],
        title="phrases",
        compact=True,
    )


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _epsilon_sentence(audit: PublicAudit) -> str:
    shown = audit.empirical_epsilon
    assert shown is not None
    assert shown.confidence_asked is not None
    sentence = (
        f"Empirical epsilon from {shown.canaries} canary clients: at least"
        f" {shown.lower_bound:.3g} with {100 * shown.confidence:.6g}% confidence (that many"
        f" can show at most {shown.ceiling:.3g}; try {shown.try_number} at this run, and all"
        f" of its tries hold together with {100 * shown.confidence_asked:.6g}%)"
    )
    if shown.estimate is not None:
        sentence += f", estimated {format_epsilon(shown.estimate)}"
    claim = "Accounted: no guarantee."
    if audit.accounted_epsilon is not None and audit.delta is not None:
        claim = (
            f"Accounted: user-level epsilon {format_epsilon(audit.accounted_epsilon)} at delta"
            f" {format_delta(audit.delta)}, by {audit.accountant}."
        )
    if audit.synthetic_users:
        claim += "  Its users are synthetic: this says nothing about people."
    return "  ".join([f"{sentence}.", claim, *shown.warnings])


def _attacks_table(title: str, result: MembershipResult) -> Table:
    rows = []
    for attack in result.attacks:
        low, high = attack.auc_interval
        rates = ["-" if rate.tpr is None else f"{rate.tpr:.1%}" for rate in attack.tpr_at]
        name = f"{attack.title} ({attack.stated})" if attack.stated else attack.title
        area, interval = f"{attack.auc:.3f}", f"{low:.3f}-{high:.3f}"
        rows.append((name, f"{attack.members:,}", area, interval, *rates))
    headings = ("attack", ">members", ">AUC", ">interval", ">TPR at 1% FPR", ">TPR at 0.1% FPR")
    return table(*headings, rows=rows, title=title, compact=True)
