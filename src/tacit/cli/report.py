"""`tacit report`: a run as one page, for the people who have to believe its claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.cli.options import AsJson, RunArgument, count, flag, real, text
from tacit.cli.output import emit
from tacit.runs.progress import bar


def report(
    run: RunArgument,
    out: Path | None = text(None, "FILE", "The page; facts beside it.  [default: RUN/report.html]"),
    internal: bool = flag("--internal", "With what was computed from people's text."),
    projected_cohort: int | None = count(None, "N", "Also projected to N users a round."),
    projected_population: int | None = count(None, "N", "Users in all, of that."),
    projected_delta: float | None = real(None, "DELTA", "The delta of that."),
    as_json: AsJson = False,
) -> None:
    """Write one page with the claim, its warnings, epsilon, the curves and the audit.

    It needs no network.  Nothing of the run's private folder is in it without --internal, and an
    internal page is not to be passed on.  Its facts go beside it, ending in .json.

    With --projected-cohort and --projected-population it also says what the same noise would cost
    with other numbers of users, at --projected-delta: by default the run's own if the population is
    the run's, else N^-1.1.  Without them it projects as the experiment's [projection] says.

    Examples:

    `tacit report runs/first`

    `tacit report runs/first --out shared/first.html`

    `tacit report runs/first --projected-cohort 5000 --projected-population 1000000`

    `tacit report runs/nlu --internal`
    """
    from tacit.privacy.projection import Projection
    from tacit.report.facts import gather
    from tacit.report.page import Target
    from tacit.runs.run import LanguageRun, Run

    projection = None
    if projected_cohort is not None and projected_population is not None:
        projection = Projection(projected_cohort, projected_population, projected_delta)
    elif projected_cohort is not None or projected_population is not None:
        raise ValueError("--projected-cohort and --projected-population go together; give both")
    elif projected_delta is not None:
        raise ValueError(
            "--projected-delta needs --projected-cohort and --projected-population; give all three"
        )
    opened, target = Run.open(run), Target(out or run / "report.html")
    if projection is None and isinstance(opened, LanguageRun):
        projection = opened.projection()
    with bar("reading the run") as show:
        facts = gather(
            opened,
            internal=internal,
            projection=projection,
            tell=lambda what, done, of: show(what, done, of, f"{done:,} of {of:,}"),
        )
    target.write(facts)
    row = {
        "run": str(run),
        "task": facts["task"],
        "page": str(target.page),
        "facts": str(target.facts),
        "internal": internal,
        "audited": facts.get("audit") is not None,
        "claim": facts["claim"]["sentence"],
        "projected_claim": facts["projected"]["sentence"] if projection else None,
        "warnings": facts["warnings"],
    }
    emit(row, as_json, lambda console: _print(console, row))


def _print(console: Console, row: dict[str, Any]) -> None:
    console.print(f"The report is {row['page']}, and its facts are in {row['facts']}.")
    if row["internal"]:
        console.print("It is internal: it may hold figures of real users.  Do not pass it on.")
    console.print(row["claim"])
    if row["projected_claim"]:
        console.print(f"Beside it: {row['projected_claim']}")
    for warning in row["warnings"]:
        console.print(f"{warning['severity'].capitalize()}: {warning['text']}")
