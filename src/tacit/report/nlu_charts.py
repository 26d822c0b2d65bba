"""The pictures of an intent and slot model's report; one with nothing to show is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from tacit.report.curves import (
    Facts,
    epsilon_chart,
    known_points,
    lines_chart,
    percent,
    roc_chart,
)
from tacit.report.svg import Line

ERRORS = {"semantic_error_rate": "SER"}
SUCCESSES = {"intent_accuracy": "intent accuracy", "slot_f1": "slot F1"}


def draw(facts: Facts) -> dict[str, Markup]:
    """All charts by name."""
    rows = facts["metrics"]
    found = {
        "epsilon": epsilon_chart(facts["epsilon"]),
        "errors": _over_epochs("Semantic error rate on valid", "SER in %", rows, ERRORS),
        "successes": _over_epochs("Intents and slots on valid", "in %", rows, SUCCESSES),
    }
    if facts.get("membership"):
        attacks = facts["membership"]["attacks"]
        found["roc"] = roc_chart("Membership attacks on utterances", attacks)
    return {name: chart for name, chart in found.items() if chart is not None}


def _over_epochs(
    title: str, up: str, rows: Sequence[Facts], names: Mapping[str, str]
) -> Markup | None:
    epochs = [row["epoch"] for row in rows]
    lines = [
        Line(label, known_points(epochs, [percent(row[name]) for row in rows]))
        for name, label in names.items()
    ]
    return lines_chart(title, up, "epochs", lines)
