"""What the report of an intent and slot model reads besides the run itself, checked.

`private/attack.json` holds what a membership attack computed from people's utterances, and is
opened for an internal report only (design rule 5).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tacit.report.inputs import Attack, Part, checked, read_json
from tacit.tasks.nlu.directory import NluDirectory


class NluMetrics(Part):
    """A line of metrics.jsonl, or what result.json says of test: nobody in it is protected."""

    utterances: int
    semantic_error_rate: float | None = None
    intent_accuracy: float | None = None
    slot_f1: float | None = None
    slot_precision: float | None = None
    slot_recall: float | None = None
    exact_match: float | None = None


class EpochMetrics(NluMetrics):
    """On valid; the run counts its epochs as rounds."""

    epoch: int = Field(validation_alias="round")


class Result(Part):
    """The whole of result.json, as far as a report needs it."""

    ending: str
    test: NluMetrics


class Figure(Attack):
    """One attack, with texts that are on both sides kept or left out."""

    members: int
    duplicates: str


class Stated(Part):
    """A figure that was named before anything was measured."""

    attack: str
    duplicates: str


class NluAttack(Part):
    """The whole of private/attack.json."""

    epoch: int
    members: int
    non_members: int
    unit: str
    shadows: tuple[str, ...]
    references: int
    confidence: float
    stated: dict[str, Stated]
    attacks: tuple[Figure, ...]
    absent: dict[str, str]


def metrics(directory: NluDirectory) -> list[EpochMetrics]:
    """On valid, by epoch."""
    return [checked(EpochMetrics, row, directory.metrics_file) for row in directory.metrics()]


def result(directory: NluDirectory) -> Result | None:
    """How the run ended, with its metrics on test; None while it has not."""
    found = read_json(directory.result_file)
    return None if found is None else checked(Result, found, directory.result_file)


def attack(directory: NluDirectory) -> NluAttack | None:
    """What the last attack found: for an internal report only."""
    found = read_json(directory.attack_file)
    return None if found is None else checked(NluAttack, found, directory.attack_file)


def attack_facts(found: NluAttack | None) -> dict[str, Any] | None:
    """The same with a row for each attack, as the page and its ROC show them."""
    if found is None:
        return None
    stated = {(each.attack, each.duplicates): name for name, each in found.stated.items()}
    return found.model_dump(mode="json", exclude={"stated", "attacks"}) | {
        "attacks": [
            figure.model_dump(mode="json", exclude={"duplicates"})
            | {
                "name": f"{figure.name}, duplicates {figure.duplicates}",
                "stated": stated.get((figure.name, figure.duplicates)),
            }
            for figure in found.attacks
        ]
    }
