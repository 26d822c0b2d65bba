"""All that a report says about a run: report.json, from which the page is made.

Most of it is the same for every run: the claim and what it costs, the warnings, the metrics, what
is not claimed, the ledger, and what the run can be repeated from.  `report.language` and
`report.nlu` add what only one kind of model has.

Guarantee: without `internal` nothing is read from the run's private folder (design rule 5); that a
key is still there is all that is noticed of it.  There is no clock, no host and no path in it: the
same run gives the same report.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tacit import __version__
from tacit.audit.results import read_object
from tacit.privacy.claims import PROJECTED
from tacit.privacy.projection import Projection
from tacit.report.claim import (
    Tell,
    claim_facts,
    epsilon_over_releases,
    ledger_facts,
    projected_facts,
)
from tacit.report.warnings import ReportWarning, claim_warnings, run_warnings
from tacit.runs.directory import RunDirectory
from tacit.runs.file_names import without_folders
from tacit.runs.run import LanguageRun, Run

KIND = "tacit report"  # how report.json is told from other files
# Files of a run that a report gives digests of, as far as they exist: none of them is private.
_FILES = (
    "experiment.toml",
    "ledger.jsonl",
    "metrics.jsonl",
    "tokenizer.json",
    "scaling.json",
    "canaries.json",
    "audit.json",
    "result.json",
)
_VERSIONS = ("torch", "numpy", "scipy", "dp-accounting", "tokenizers")


def report_on(task: str) -> Any:
    """The parts of a report that depend on the task; what another task needs is not imported."""
    if task == "nlu":
        from tacit.report.nlu import NluReport

        return NluReport
    from tacit.report.language import LanguageReport

    return LanguageReport


def gather(
    run: Run,
    *,
    internal: bool = False,
    projection: Projection | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """The facts of a report, as JSON data.

    Args:
        run: a run of any task, finished or not.
        internal: adds what an audit or attack computed from people's text.
        projection: adds the claim that the same noise would give with more people.
        tell: called with what is being computed, how far it is, and of how much.

    Raises:
        ValueError: a file of the run is damaged, or there is nothing to project; in one sentence.
    """
    result = read_object(run.directory.result_file)  # first: the run takes it for whole
    task = report_on(run.experiment.task)(run, internal=internal)
    if projection is not None and not isinstance(run, LanguageRun):
        raise ValueError(
            "a projection is for language models: that of an intent and slot model has no cohort"
            " of users to enlarge"
        )
    experiment, guarantee = run.experiment, run.guarantee()
    warnings = [
        *claim_warnings(guarantee),
        *run_warnings(run, guarantee, task.provenance, task.audited_leg),
        *task.warnings(guarantee),
    ]
    projected = None
    if projection is not None:
        projected = projected_facts(guarantee, projection)
        text = f"Figures that are marked as projected are just that: {PROJECTED}."
        if not projected["delta"] < 1 / projection.population:
            text += (
                f" Their delta is not below 1 in {projection.population:,}: it allows that one of"
                " so many users is given away whole."
            )
        warnings.append(ReportWarning.note("projected", text))
    return {
        "kind": KIND,
        "task": experiment.task,
        "internal": internal,
        "run": _about(run, result) | task.about(),
        "claim": claim_facts(guarantee),
        "projected": projected,
        "other_runs": guarantee.others or None,
        "warnings": [
            asdict(warning)  # the serious ones first, and otherwise as they came
            for warning in sorted(warnings, key=lambda warning: warning.severity != "serious")
        ],
        "epsilon": epsilon_over_releases(guarantee, run.ledger, tell=tell),
        **task.sections(tell),
        "ledger": ledger_facts(run.ledger),
        "versions": _versions(),
        "experiment": without_folders(experiment).to_toml(),
        "files": _file_facts(run.directory),
    }


def _about(run: Run, result: dict[str, Any] | None) -> dict[str, Any]:
    """What the run is called, how far it is, and how it ended, if it did."""
    experiment = run.experiment
    return {
        "directory": run.path.resolve().name,
        "name": experiment.name,
        **experiment.about.model_dump(mode="json"),
        "done": run.leg,
        "planned": experiment.legs,
        "counted": f"{experiment.leg_name}s",
        "complete": result is not None,
        "ending": None if result is None else str(result.get("ending") or "complete"),
        "simulation": run.ledger.header.simulation,
        "model": experiment.model.name,
    }


def _versions() -> dict[str, str]:
    """Of what wrote the report: tacit, Python, and the libraries that figures may depend on."""
    own = {"tacit": __version__, "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in _VERSIONS}


def _file_facts(directory: RunDirectory) -> list[dict[str, Any]]:
    """The run's public files and its last model, by their digests."""
    paths = [directory.path / name for name in _FILES]
    paths.append(directory.checkpoints.read().model_file)
    return [
        {
            "name": str(path.relative_to(directory.path)),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for path in paths
        if path.is_file()
        for data in (path.read_bytes(),)
    ]
