"""Every epsilon and every word of the claim in the files that training and audits leave."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit.config.experiment import Experiment
from tacit.runs.directory import RunDirectory, digest_of_result
from tacit.runs.run import NluRun
from tacit.tasks.nlu.experiment import NluExperiment
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
    experiment, done = evidence.experiment, evidence.last.leg
    if isinstance(experiment, Experiment):
        row |= {"charged_rounds": row["rounds"], "rounds": done}
        planned = experiment.rounds
    else:
        row |= {"epochs": done, "method": experiment.training.method}
        row["as_printed"] = as_printed(evidence, experiment)
        planned = experiment.training.epochs
    yield from compared(file, found, row)
    if found.get("ending") == "complete" and done < planned:
        yield f"{file} says that the run is complete, after {done} of {planned}"
    if not isinstance(found.get("key_kept"), bool):
        yield f"{file} does not say whether the run's key was kept"


def as_printed(evidence: Evidence, experiment: NluExperiment) -> list[dict[str, object]] | None:
    """The figures of `edp-sgd-paper` for the epochs done."""
    assert isinstance(evidence.directory, RunDirectory)
    run = NluRun(evidence.directory, experiment, evidence.ledger, evidence.last.leg)
    return run.as_printed()


def audit(evidence: Evidence) -> Iterator[str]:
    """What audit.json says was accounted, if it is about the last model."""
    file = evidence.path / "audit.json"
    if evidence.is_bundle or not file.is_file():
        return
    found, guarantee = read_object(file), evidence.guarantee
    if found.get("round") != evidence.last.leg:
        yield Remark(f"{file} is about round {found.get('round')}: run tacit audit again")
        return
    row = guarantee.as_row()
    epsilon = row["epsilon"]
    assert isinstance(epsilon, dict)
    expected = {"accounted_epsilon": epsilon[guarantee.accountant], "delta": guarantee.delta}
    yield from compared(file, found, expected)


def compared(
    file: Path, found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Each value under its name, as JSON has it; what else there is on top is left alone."""
    for name, value in json.loads(json.dumps(expected)).items():
        where, there = f"{prefix}{name}", found.get(name)
        if name not in found:
            yield f"{file} does not say {where}"
        elif isinstance(there, dict) and isinstance(value, dict):
            yield from compared(file, there, value, f"{where}.")
            for other in there.keys() - value.keys():
                yield f"{file} says something of {where}.{other}, and the ledger nothing"
        elif not _same(there, value):
            yield (
                f"{file} says of {where} what does not follow from the ledger: {_short(there)}"
                f" instead of {_short(value)}"
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
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
