"""What accuracy to expect of a plan: how far a training gets by the law, and the law's error.

    accuracy = accuracy of the start + POINTS x the fall of the loss

`planner.law` says how far the loss will fall, in units of what a rehearsal on test people gained.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.planner.choice import Choice
from tacit.planner.rehearsal import Rehearsal

POINTS = 0.058  # of accuracy for a nat
ERROR = 0.01  # of accuracy: docs/results/own-text.md has how often it held


@dataclass(frozen=True)
class Outlook:
    """The accuracy that is expected, and by how much that may be off."""

    accuracy: float
    error: float = ERROR

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} ± {100 * self.error:.1f}"


def expect(rehearsal: Rehearsal, choice: Choice) -> Outlook:
    """What a training by this choice should reach on test people."""
    fall = max(0.0, rehearsal.gain) * choice.progress
    return Outlook(min(1.0, rehearsal.before.accuracy_top1 + POINTS * fall))
