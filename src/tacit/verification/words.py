"""Every epsilon and every word of the claim, wherever they stand beside the ledger."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.nlu.directory import NluDirectory
from tacit.nlu.experiment import NluExperiment
from tacit.nlu.run import NluRun
from tacit.report.common_facts import claim_facts, ledger_facts
from tacit.report.page import render
from tacit.runs.directory import digest_of_result
from tacit.runs.experiment import Experiment
from tacit.verification.evidence import Evidence, read_object
from tacit.verification.findings import Remark

TOLERANCE = 1e-9  # of epsilons: another machine's arithmetic may differ in the last digits


def figures(evidence: Evidence) -> Iterator[str]:
    """Every sound accountant gives a figure; the claim is by the one asked for, or by the least."""
    found = evidence.guarantee
    if any(math.isnan(value) or value < 0 for value in found.epsilon.values()):
        yield f"{evidence.ledger.path}: an accountant gives no epsilon for what it has charged"


def result(evidence: Evidence) -> Iterator[str]:
    """result.json: its own digest, the claim and its figures, and how far the run got."""
    if (found := evidence.result) is None:
        return
    file = evidence.directory.result_file
    stated = found.get("sha256")
    if stated != digest_of_result(found):
        yield f"{file} was changed: it does not have the digest that it was written with"
    row = evidence.guarantee.as_row()
    del row["other_runs"]  # about others, as of the day that the run ended
    row["simulation"] = evidence.ledger.header.simulation
    experiment, done = evidence.experiment, evidence.last.round
    if isinstance(experiment, Experiment):
        row |= {"charged_rounds": row["rounds"], "rounds": done}
        planned = experiment.rounds
    else:
        row |= {"epochs": done, "method": experiment.training.method}
        row["as_printed"] = _as_printed(evidence, experiment)
        planned = experiment.training.epochs
    yield from _compared(file, found, row)
    if found.get("ending") == "complete" and done < planned:
        yield f"{file} says that the run is complete, after {done} of {planned}"
    if not isinstance(found.get("key_kept"), bool):
        yield f"{file} does not say whether the run's key was kept"


def _as_printed(evidence: Evidence, experiment: NluExperiment) -> list[dict[str, object]] | None:
    assert isinstance(evidence.directory, NluDirectory)
    run = NluRun(evidence.directory, experiment, evidence.ledger, evidence.last.round)
    return run.as_printed()


def report(evidence: Evidence) -> Iterator[str]:
    """report.json's claim and ledger, the files that it was made from, and the page made of it."""
    page, file = evidence.path / "report.html", evidence.path / "report.json"
    if not file.is_file():
        if page.is_file():
            yield f"{file} is missing, so that nothing says what {page} was made of"
        return
    facts = read_object(file)
    hint = "; write it again with tacit report" if facts.get("kind") == "tacit report" else ""
    sections = {
        "claim": claim_facts(evidence.guarantee, evidence.ledger),
        "ledger": ledger_facts(evidence.ledger),
    }
    for name, expected in sections.items():
        there = facts.get(name)
        if not isinstance(there, dict):
            yield f"{file} has no section {name!r}{hint}"
            continue
        yield from (f"{one}{hint}" for one in _compared(file, there, expected, f"{name}."))
    yield from (f"{one}{hint}" for one in _files(evidence, file, facts))
    if not page.is_file():
        yield f"{page} is missing"
    elif facts.get("versions", {}).get("tacit") != __version__:
        yield Remark(f"{page} was written by another version of tacit, and is not drawn again")
    elif page.read_bytes() != render(facts).encode():
        yield f"{page} is not the page that {file.name} makes"


def _files(evidence: Evidence, file: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """The files that a report lists are there, with the digests that it gives."""
    for row in facts["files"]:
        named = evidence.path / row["name"]
        if not named.resolve().is_relative_to(evidence.path.resolve()):
            yield f"{file} lists {row['name']!r}, which is not in the run"
        elif not named.is_file():
            # A checkpoint may have been pruned since, and then the ledger has grown as well.
            yield f"{file} lists {named}, which is missing"
        elif hashlib.sha256(named.read_bytes()).hexdigest() != row["sha256"]:
            yield f"{file} is about another {row['name']} than the one that is there"


def audit(evidence: Evidence) -> Iterator[str]:
    """What audit.json says was accounted, if it is about the last model."""
    file = evidence.path / "audit.json"
    if evidence.is_bundle or not file.is_file():
        return
    found, guarantee = read_object(file), evidence.guarantee
    if found.get("round") != evidence.last.round:
        yield Remark(f"{file} is about round {found.get('round')}: run tacit audit again")
        return
    row = guarantee.as_row()
    epsilon = row["epsilon"]
    assert isinstance(epsilon, dict)
    expected = {"accounted_epsilon": epsilon[guarantee.accountant], "delta": guarantee.delta}
    yield from _compared(file, found, expected)


def _compared(
    file: Path, found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Each value under its name, as JSON has it."""
    for name, value in expected.items():
        if name not in found:
            yield f"{file} does not say {prefix}{name}"
        elif not _same(found[name], json.loads(json.dumps(value))):
            yield (
                f"{file} says of {prefix}{name} what does not follow from the ledger:"
                f" {_short(found[name])} instead of {_short(value)}"
            )


def _same(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of a float."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is float and type(other) is float:
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
