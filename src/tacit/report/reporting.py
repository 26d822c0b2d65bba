"""Any run to report on: a language model's, or an intent and slot model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.privacy.guarantee import Projection
from tacit.report import facts, nlu_facts
from tacit.report.epsilon import Tell
from tacit.runs.run import LanguageRun, NluRun, Run


def opened(path: Path) -> LanguageRun | NluRun:
    """The run of either task in a folder."""
    run = Run.open(path)
    assert isinstance(run, LanguageRun | NluRun)
    return run


def facts_of(
    run: LanguageRun | NluRun,
    *,
    internal: bool = False,
    projection: Projection | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """What a report on it says."""
    if isinstance(run, LanguageRun):
        return facts.gather(run, internal=internal, projection=projection, tell=tell)
    if projection is not None:
        raise ValueError(
            "a projection is for language models: that of an intent and slot model has no cohort"
            " of users to enlarge"
        )
    return nlu_facts.gather(run, internal=internal, tell=tell)
