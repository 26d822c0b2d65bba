"""A run's report: its facts made again from the ledger, and the page made again from its facts.

What it says besides (metrics, audits, other runs on the day that it was written) has to stand on
the page as it stands in report.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.privacy.projection import Projection
from tacit.report.claim import (
    claim_facts,
    epsilon_over_releases,
    ledger_facts,
    projected_facts,
)
from tacit.report.facts import KIND, experiment_text
from tacit.report.page import render
from tacit.report.warnings import claim_warnings
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.verification.evidence import Evidence, read_object
from tacit.verification.findings import Remark
from tacit.verification.words import as_printed, compared

AGAIN = "; write it again with tacit report"


def report(evidence: Evidence) -> Iterator[str]:
    """report.json against the ledger and the files that it lists, report.html against that."""
    page, file = evidence.path / "report.html", evidence.path / "report.json"
    if not file.is_file():
        if page.is_file():
            yield f"{file} is missing, so that nothing says what {page} was made of"
        return
    facts = read_object(file)
    if facts.get("kind") != KIND:
        yield f"{file} is not a report"
        return
    found = [
        *compared(file, facts, _expected(evidence, facts)),
        *_projected(evidence, file, facts),
        *_warnings(evidence, file, facts),
        *_files(evidence, file, facts),
    ]
    yield from (f"{one}{AGAIN}" for one in found)
    if not page.is_file():
        yield f"{page} is missing"
    elif facts["versions"]["tacit"] != __version__:
        yield Remark(f"{page} was written by another version of tacit, and is not drawn again")
    elif page.read_bytes() != render(facts).encode():
        yield f"{page} is not the page that {file.name} makes"


def _expected(evidence: Evidence, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that follow from the ledger and the experiment alone."""
    guarantee, ledger, experiment = evidence.guarantee, evidence.ledger, evidence.experiment
    found: dict[str, Any] = {
        "claim": claim_facts(guarantee),
        "ledger": ledger_facts(ledger),
        "epsilon": epsilon_over_releases(guarantee, ledger),
        "experiment": experiment_text(experiment),
    }
    if isinstance(experiment, NluExperiment):
        found["as_printed"] = as_printed(evidence, experiment)
    return found


def _projected(evidence: Evidence, file: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """What is projected is projected from this run, and says that it is."""
    there = facts.get("projected")
    if there is None:
        return
    to = Projection(there["cohort"], there["population"], there["delta"])
    expected = projected_facts(evidence.guarantee, to)
    yield from compared(file, there, expected, "projected.")


def _warnings(evidence: Evidence, file: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """Whatever a claim needs a warning for has one."""
    said = {(one["name"], one["severity"]) for one in facts["warnings"]}
    for one in claim_warnings(evidence.guarantee):
        if (one.name, one.severity) not in said:
            yield f"{file} does not have the warning {one.name!r}"


def _files(evidence: Evidence, file: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """The files that a report lists are there, with the digests that it gives."""
    for row in facts["files"]:
        named = evidence.path / row["name"]
        if not named.resolve().is_relative_to(evidence.path.resolve()):
            yield f"{file} lists {row['name']!r}, which is not in the run"
        elif not named.is_file():
            yield f"{file} lists {named}, which is missing"
        elif hashlib.sha256(named.read_bytes()).hexdigest() != row["sha256"]:
            yield f"{file} is about another {row['name']} than the one that is there"
