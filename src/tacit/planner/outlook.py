"""What accuracy to expect of a plan: how far a training gets by the law, and the law's error.

`planner.law` says how far the loss will fall.  Accuracy follows the loss L, in nats: from trial to
trial, and from corpus to corpus, it grew by

    SLOPE k^(3/2) (1 / L after - 1 / L before),

where k is the share of known words: an unknown one is never guessed right, and its loss falls, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.planner.choice import Choice
from tacit.planner.rehearsal import Rehearsal

SLOPE = 1.5
_LEAST = 2.0  # nats: no model of words has less
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
    start = rehearsal.start
    after = start.loss - choice.fall
    known = 1 - start.unknown_rate
    gained = 1 / max(after, _LEAST) - 1 / max(start.loss, _LEAST)
    gained *= SLOPE * known * math.sqrt(known)
    return Outlook(min(1.0, max(0.0, start.accuracy_top1 + gained)))
