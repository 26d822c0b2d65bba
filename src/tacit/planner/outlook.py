"""What accuracy to expect of a plan: a law fitted to trials, and its error.

A rehearsal on test people (`planner.rehearsal`) says how fast this text is learnt: the loss falls
by g nats a token in six rounds without noise.  Trials on other corpora say the rest:

    loss after training   = loss of the start - g h(travel)
    h(travel)             = MOST travel / (travel + HALF)
    travel                = rounds x the share of the full learning rate that the noise allows
    accuracy              = accuracy of the start + POINTS x the fall of the loss

h grows with the distance that the server travels and comes to an end: what is left to learn from
these people by this model, in units of what the rehearsal learnt.  Noise that a model bears
(`choice.BEARABLE_NOISE`) does not enter h: more of it shortens the travel.  The trials, the fit and
how far it was off are in docs/results/own-text.md, as far as they were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.planner.choice import Choice
from tacit.planner.rehearsal import Rehearsal

MOST = 2.15  # times what a rehearsal gains: what a training of any length gains
HALF = 10.0  # rounds after which it has half of that
POINTS = 0.052  # of accuracy for a nat
ERROR = 0.015  # of accuracy: the worst of the trials that the law was fitted to


@dataclass(frozen=True)
class Outlook:
    """The accuracy that is expected, and by how much that may be off."""

    accuracy: float
    error: float = ERROR

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} ± {100 * self.error:.1f}"


def expect(rehearsal: Rehearsal, choice: Choice) -> Outlook:
    """What a training by this choice should reach on test people."""
    travel = choice.rounds * choice.rate_share
    fall = max(0.0, rehearsal.gain) * MOST * travel / (travel + HALF)
    return Outlook(min(1.0, rehearsal.before.accuracy_top1 + POINTS * fall))
