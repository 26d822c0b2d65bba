"""How much a user counts (McMahan et al. 2018, section 2): w_k = min(n_k / w-hat, 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tacit.mechanisms.fixed_point import WHOLE_WEIGHT
from tacit.mechanisms.parts import Part
from tacit.privacy import checks


@dataclass(frozen=True)
class UserWeighting(Part):
    """By examples up to a public cap w-hat; without a cap every user has weight 1."""

    user_weight_cap: float | None = None
    kind: ClassVar[str] = "user-weighting"

    def __post_init__(self) -> None:
        if self.user_weight_cap is not None:
            checks.positive("user_weight_cap", self.user_weight_cap)

    def weigh(self, examples: int) -> int:
        """w_k of a user with `examples` examples, rounded down to whole units of 2^-30."""
        checks.whole("examples", examples)
        if self.user_weight_cap is None:
            return WHOLE_WEIGHT
        return math.floor(min(examples / self.user_weight_cap, 1.0) * WHOLE_WEIGHT)
