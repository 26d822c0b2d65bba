"""What accuracy to expect of a plan: a law fitted to trials, and its error.

A rehearsal on test people (`planner.rehearsal`) says how fast this text is learnt: the loss falls
by g nats a token in six rounds without noise.  Trials on other corpora say the rest:

    loss after training   = loss of the start - g h(travel)
    h(travel)             = H_6 + SLOPE log(travel / 6)      (at least 0)
    travel                = rounds x the share of the full learning rate that the noise allows
    accuracy              = accuracy of the start + POINTS x the fall of the loss

h grows with the logarithm of the distance that the server travels, as losses of language models do
with training.  Noise that a model bears (`choice.BEARABLE_NOISE`) does not enter h: more of it
shortens the travel.  The trials, the fit and how far it was off on trials that it was not fitted to
are in docs/results/own-text.md, as far as they were run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.planner.choice import Choice
from tacit.planner.rehearsal import ROUNDS, Rehearsal

H_6 = 0.82  # with the noise and the falling rate of a real training, against 1 in rehearsal
SLOPE = 0.58
POINTS = 0.057  # of accuracy for a nat
ERROR = 0.01  # of accuracy: an aim, until enough trainings were held against it


@dataclass(frozen=True)
class Outlook:
    """The accuracy that is expected, and by how much that may be off."""

    accuracy: float
    error: float = ERROR

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} ± {100 * self.error:.0f}"


def expect(rehearsal: Rehearsal, choice: Choice) -> Outlook:
    """What a training by this choice should reach on test people."""
    travel = choice.rounds * choice.rate_share
    share = max(0.0, H_6 + SLOPE * math.log(travel / ROUNDS))
    fall = max(0.0, rehearsal.gain) * share
    return Outlook(min(1.0, rehearsal.before.accuracy_top1 + POINTS * fall))
