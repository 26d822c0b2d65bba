"""The server's learning rate over the rounds: a public function of the round's number.

At a constant rate the last rounds put as much noise into the model as the first ones, and nothing
after them takes it out again.  A rate that falls lets early rounds move far and late rounds add
little.  A warm-up spares the first rounds, in which Adam knows little of the averages' sizes.

The rate is applied to what was released, so a schedule costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from tacit.models.base import check_share
from tacit.privacy.records import Count, Record, one_of


@dataclass(frozen=True)
class RateSchedule(Record):
    """The learning rate of a round as a share of the full one.

    The first `warmup_rounds` rise to the full rate in equal steps.  From there it stays
    ("constant"), or falls along a line or half a cosine towards `final_share`.
    """

    kind: Annotated[str, one_of("constant", "cosine", "linear")] = "constant"
    warmup_rounds: Count = 0
    final_share: Annotated[float, check_share] = 0.0

    def share(self, round: int, rounds: int) -> float:
        """The share of the full rate in `round`, counted from 0, of `rounds` in all.

        `final_share` would be reached one round after the last: no round that was paid for is
        applied at a rate of 0.
        """
        if round < self.warmup_rounds:
            return (round + 1) / (self.warmup_rounds + 1)
        done = (round - self.warmup_rounds) / (rounds - self.warmup_rounds)
        fallen = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}
        return 1 - (1 - self.final_share) * fallen[self.kind]
