"""How the clip norm S changes over the rounds.

The noise is z times the sensitivity, so that lowering S lowers sigma with it at constant z: every
round costs the same (McMahan et al. 2018, section 3, "Adjusting noise and clipping").

Guarantee: a schedule is a public function of the round; the event does not change.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from tacit.mechanisms.clippers import check_clip_norm, total_norm
from tacit.mechanisms.parts import Part
from tacit.privacy import checks


@dataclass(frozen=True)
class ClipState:
    """The clip norms of a round: public, being derived from constants and earlier releases."""

    norms: tuple[float, ...]
    round: int = 0

    @property
    def total_norm(self) -> float:
        """S of this round."""
        return total_norm(self.norms)


@dataclass(frozen=True)
class ClipSchedule(Part, abc.ABC):
    """S as a function of the round."""

    @abc.abstractmethod
    def norm(self, initial: float, round: int) -> float:
        """S in `round`, counted from 0, when the plan's clipper starts with `initial`."""

    def state(self, initial: tuple[float, ...], round: int) -> ClipState:
        """The norms of `round`.  Those of several layers keep their proportions."""
        checks.whole("round", round)
        start = total_norm(initial)
        now = self.norm(start, round)
        return ClipState(
            initial if now == start else tuple(norm * (now / start) for norm in initial), round
        )


@dataclass(frozen=True)
class ConstantClip(ClipSchedule):
    """The clipper's own S in every round."""

    kind: ClassVar[str] = "constant"

    def norm(self, initial: float, round: int) -> float:
        return initial


@dataclass(frozen=True)
class StepClip(ClipSchedule):
    """A new S from each of the given rounds on, such as ((4885, 7.9),)."""

    steps: tuple[tuple[int, float], ...]
    kind: ClassVar[str] = "steps"

    def __post_init__(self) -> None:
        rounds = [checks.whole("steps' round", round, at_least=1) for round, _ in self.steps]
        if not rounds or rounds != sorted(set(rounds)):
            raise ValueError(
                f"steps must have at least one round, in increasing order, got {rounds}"
            )
        for _, norm in self.steps:
            check_clip_norm("steps' clip_norm", norm)

    def norm(self, initial: float, round: int) -> float:
        return next((norm for start, norm in reversed(self.steps) if start <= round), initial)


@dataclass(frozen=True)
class GeometricClip(ClipSchedule):
    """S times `factor` each round, but not below `final_norm`."""

    factor: float
    final_norm: float
    kind: ClassVar[str] = "geometric"

    def __post_init__(self) -> None:
        checks.probability("factor", self.factor)
        check_clip_norm("final_norm", self.final_norm)

    def norm(self, initial: float, round: int) -> float:
        return max(initial * self.factor**round, min(initial, self.final_norm))


@dataclass(frozen=True)
class LinearClip(ClipSchedule):
    """In equal steps to `final_norm`, which holds from `final_round` on."""

    final_round: int
    final_norm: float
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        checks.whole("final_round", self.final_round, at_least=1)
        check_clip_norm("final_norm", self.final_norm)

    def norm(self, initial: float, round: int) -> float:
        done = min(round / self.final_round, 1.0)
        return initial * (1 - done) + self.final_norm * done
