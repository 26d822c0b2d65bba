"""The demo's audit: the same canaries in four models, from no protection to privacy."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.audit.auditing import Audit
    from tacit.models.base import LanguageModel
    from tacit.runs.run import LanguageRun as Run

POOLED_EPOCHS, POOLED_RATE = 4.0, 0.5
WIDELY = 30.0  # sharers of the canaries that show where the guarantee of a user ends


def pooled_model(run: Run, start: LanguageModel, epochs: float) -> LanguageModel:
    """Plain SGD on all records of all users, as is done where nobody thinks of privacy."""
    import copy

    from tacit.tasks.language.central_sgd import RecordTraining
    from tacit.tasks.language.people import People
    from tacit.tasks.language.planted_tokens import planted_tokens
    from tacit.tasks.language.records import Records

    model = copy.deepcopy(start)
    people = People.of(run.experiment)
    cache = planted_tokens(people, run.experiment, run.tokenizer, run.directory.private)
    records = Records.of((cache.tokens(user) for user in range(len(cache))), run.tokenizer.bos)
    training = RecordTraining("sgd", "iid", POOLED_RATE, epochs=epochs)
    with bar("training on pooled records") as show:
        training.train(
            model,
            records,
            bos=run.tokenizer.bos,
            progress=lambda now: show(
                "training on pooled records", now.step, now.steps, f"{now.step} of {now.steps}"
            ),
        )
    return model


def audit_all(
    runs: Mapping[str, Run], pooled: LanguageModel, wanted: Audit, cores: int
) -> dict[str, dict[str, Any]]:
    """Findings by model; those about runs are kept with the runs."""
    from tacit.audit.auditing import Findings, audit_canaries, audit_run, save
    from tacit.tasks.language.planting import read_planted

    first = next(iter(runs.values()))
    done: dict[str, tuple[int, int]] = {}
    with bar("looking for canaries") as show, ThreadPoolExecutor(cores) as pool:

        def tell(name: str, what: str, count: int, of: int) -> None:
            share = (count / of + what.endswith("planted")) / 2  # canaries, and then controls
            done[name] = (round(1000 * share), 1000)
            total = 1000 * (len(runs) + 1)
            show("looking for canaries", sum(d for d, _ in done.values()), total, "")

        def look(name: str) -> dict[str, Any]:
            def progress(what: str, count: int, of: int) -> None:
                tell(name, what, count, of)

            if name not in runs:
                planted = read_planted(first.path)
                return audit_canaries(pooled, first.tokenizer, planted, wanted, progress)
            found: Findings = audit_run(runs[name], wanted, progress)
            save(runs[name], found)
            return found.public

        names = ["pooled", *runs]
        return dict(zip(names, pool.map(look, names), strict=True))


def print_memorized(
    console: Console, findings: Mapping[str, dict[str, Any]], labels: Mapping[str, str]
) -> None:
    """One line for each model, from no protection to privacy."""
    rows = findings["pooled"]["rows"]
    few = [row for row in rows if row["expected_sharers"] != WIDELY]
    many = [row for row in rows if row["expected_sharers"] == WIDELY]
    table = Table(
        title=f"Sentences planted in few people's text: how many of {len(few)} come out",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("trained by")
    for name in ("random sampling", "beam search", f"shared by {WIDELY:g}", "controls"):
        table.add_column(name, justify="right")
    for name, found in findings.items():
        mine = [row for row in found["rows"] if row["expected_sharers"] != WIDELY]
        shared = [row for row in found["rows"] if row["expected_sharers"] == WIDELY]
        controls = found["controls"]
        table.add_row(
            labels[name],
            str(sum(row["memorized_rs"] for row in mine)),
            str(sum(row["memorized_bs"] for row in mine)),
            f"{sum(row['memorized_rs'] for row in shared)} of {len(many)}",
            f"{controls['memorized_rs']} of {controls['count']}",
            style="bold" if name == list(findings)[-1] else None,
        )
    console.print(table)
    copies = sum(row["copies"] for row in rows)
    console.print(
        f"Planted: {copies:,} copies of {len(rows)} sentences of five random words.  What clipping"
        " does is not credited to noise: it has its own row.  A guarantee for one user is none for"
        f" {WIDELY:g} who share a sentence.  Controls were not planted.\n"
    )
