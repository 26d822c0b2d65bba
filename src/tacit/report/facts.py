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
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.config.experiment import Experiment
from tacit.privacy.claims import PROJECTED
from tacit.privacy.projection import Projection
from tacit.report import nlu, results
from tacit.report.claim import (
    Tell,
    claim_facts,
    epsilon_over_releases,
    ledger_facts,
    projected_facts,
)
from tacit.report.language import LanguageReport
from tacit.report.nlu import NluReport
from tacit.report.warnings import claim_warnings, note, run_warnings
from tacit.runs import export
from tacit.runs.directory import RunDirectory
from tacit.runs.run import LanguageRun, NluRun, Run
from tacit.tasks.nlu.experiment import NluExperiment

KIND = "tacit report"  # how report.json is told from other files
_VERSIONS = ("torch", "numpy", "scipy", "dp-accounting", "tokenizers")


def open_run(path: Path) -> LanguageRun | NluRun:
    """The run that a directory holds; a directory without one is refused."""
    run = Run.open(path)
    assert isinstance(run, LanguageRun | NluRun)
    return run


def gather(
    run: LanguageRun | NluRun,
    *,
    internal: bool = False,
    projection: Projection | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """The facts of a report, as JSON data.

    `internal` adds what was computed from people's text, `projection` a claim for more people
    beside the actual one, and `tell` is told about the progress.
    """
    result = results.read_object(run.directory.result_file)  # first: the run takes it for whole
    task = _task(run, internal)
    if projection is not None and not isinstance(task, LanguageReport):
        raise ValueError(
            "a projection is for language models: that of an intent and slot model has no cohort"
            " of users to enlarge"
        )
    guarantee, about = run.guarantee(), run.experiment.about
    warnings = [
        *claim_warnings(guarantee),
        *run_warnings(
            guarantee,
            task.provenance,
            progress=(task.done, task.planned, task.leg),
            is_complete=result is not None,
            has_key=run.directory.key_file.exists(),
        ),
        *task.warnings(guarantee),
    ]
    projected = None
    if projection is not None:
        projected = projected_facts(guarantee, projection)
        text = f"Figures that are marked as projected are just that: {PROJECTED}."
        warnings.append(note("projected", text))
    return {
        "kind": KIND,
        "of": task.of,
        "internal": internal,
        "run": {
            "directory": run.path.resolve().name,
            "name": run.experiment.name,
            "paper": about.paper or None,
            "section": about.section or None,
            "says": about.says or None,
            "done": task.done,
            "planned": task.planned,
            "counted": f"{task.leg}s",
            "complete": result is not None,
            "ending": None if result is None else str(result.get("ending") or "complete"),
            "simulation": run.is_simulation,
            **task.about(),
        },
        "claim": claim_facts(guarantee),
        "projected": projected,
        "other_runs": guarantee.others or None,
        "warnings": [
            asdict(warning)
            for warning in sorted(warnings, key=lambda one: one.severity != "serious")
        ],
        "epsilon": epsilon_over_releases(guarantee, run.ledger, tell=tell),
        "metrics": task.metrics(),
        **task.sections(tell),
        "ledger": ledger_facts(run.ledger),
        "versions": {
            "tacit": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in _VERSIONS},
        },
        "experiment": experiment_text(run.experiment),
        "files": _file_facts(run.directory, task.files),
    }


def _task(run: LanguageRun | NluRun, internal: bool) -> LanguageReport | NluReport:
    if isinstance(run, NluRun):
        return NluReport(run, internal=internal)
    return LanguageReport(run, internal=internal)


def experiment_text(experiment: Experiment | NluExperiment) -> str:
    """Every setting as TOML, with whole paths shortened to the names at their ends."""
    if isinstance(experiment, NluExperiment):
        return nlu.without_folders(experiment).to_toml()
    return export.without_folders(experiment).to_toml()


def _file_facts(directory: RunDirectory, names: Sequence[str]) -> list[dict[str, Any]]:
    """The run's public files of these names, and the last model's, by their digests."""
    paths = [directory.path / name for name in names]
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
