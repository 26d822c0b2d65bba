"""How often one user may contribute to the rounds of a run.

Noise that is partly taken back in later rounds hides a user only if it is known how the user's
contributions can line up with what is taken back.  This is the rule that a sampler enforces and
that a sensitivity is worked out for ("min-separation", Choquette-Choo et al. 2023,
arXiv 2306.08153).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tacit.mechanisms.parts import PlanPart
from tacit.privacy import checks
from tacit.privacy.records import at_least


@dataclass(frozen=True)
class Participation(PlanPart):
    """Two rounds of one user are at least `separation` apart; at most `at_most` of them in all.

    With a separation of 1 a user may take part in every round, with 2 in every other one.
    """

    separation: Annotated[int, at_least(1)]
    at_most: Annotated[int, at_least(1)] | None = None
    kind: ClassVar[str] = "participation"

    def times(self, rounds: int) -> int:
        """In how many of the first `rounds` rounds one user can take part."""
        checks.whole("rounds", rounds)
        fit = -(-rounds // self.separation)
        return fit if self.at_most is None else min(fit, self.at_most)
