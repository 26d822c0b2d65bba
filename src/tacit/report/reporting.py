"""Any run to report on: a language model's, or an intent and slot model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.privacy.projection import Projection
from tacit.report import facts, nlu_facts
from tacit.report.epsilon import Tell
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.tasks.nlu.directory import NluDirectory
from tacit.tasks.nlu.run import NluRun


def opened(path: Path) -> Run | NluRun:
    """The run that a directory holds; one without is refused."""
    if NluDirectory(path).experiment_file.is_file():
        return NluRun.open(path)
    if path.is_dir() and not RunDirectory(path).experiment_file.is_file():
        raise ValueError(
            f"{path} is not a run directory: it has neither {RunDirectory.experiment_name} nor"
            f" {NluDirectory.experiment_name}"
        )
    return Run.open(path)


def facts_of(
    run: Run | NluRun,
    *,
    internal: bool = False,
    projection: Projection | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """What a report on it says."""
    if isinstance(run, Run):
        return facts.gather(run, internal=internal, projection=projection, tell=tell)
    if projection is not None:
        raise ValueError(
            "a projection is for language models: that of an intent and slot model has no cohort"
            " of users to enlarge"
        )
    return nlu_facts.gather(run, internal=internal, tell=tell)
