"""What membership attacks on a model of intents and slots found.

Two figures are stated, and which ones was settled before anything was measured; the best of
several would be no honest figure:

- `paper`: the shadow attack with duplicates kept, as in Dupuy et al. 2021, Table 1;
- `strongest`: RMIA with duplicates left out.

All of it is computed from members' text: internal (design rule 5), for `private/` and reports with
`--internal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit.audit.membership import AttackResult

KEPT, LEFT_OUT = "kept", "left out"
SHADOW, SHADOW_RESCALED, RMIA, LOSS = "shadow", "shadow_rescaled", "rmia", "loss"
STATED = {"paper": (SHADOW, KEPT), "strongest": (RMIA, LEFT_OUT)}
# What a gate looks at: the first of these that was run.
_GATED = ((RMIA, LEFT_OUT), (SHADOW, LEFT_OUT), (LOSS, LEFT_OUT))


@dataclass(frozen=True)
class AttackFigure:
    """How well one attack tells members from non-members, and who was left out of it."""

    result: AttackResult
    duplicates: str  # texts on both sides: kept, or left out
    units: tuple[int, int]  # users or texts, of members and of non-members
    excluded: Mapping[str, tuple[int, int]]  # why -> how many members, how many non-members

    def as_row(self) -> dict[str, Any]:
        members, non_members = self.units
        return {
            **self.result.as_row(),
            "duplicates": self.duplicates,
            "member_units": members,
            "non_member_units": non_members,
            "excluded": {
                reason: {"members": inside, "non_members": outside}
                for reason, (inside, outside) in self.excluded.items()
            },
        }


@dataclass(frozen=True)
class NluAttackResult:
    """All attacks on one model, each with duplicates kept and left out."""

    figures: tuple[AttackFigure, ...]
    absent: Mapping[str, str]  # "attack, duplicates ..." -> why there is no such figure
    members: int
    non_members: int
    unit: str  # of the intervals: user or text
    shadows: tuple[str, ...]
    references: int
    population: int
    a: float | None  # RMIA's, if it was run
    gamma: float | None
    seed: int
    confidence: float

    def figure(self, attack: str, duplicates: str = KEPT) -> AttackFigure:
        """The figure of this name; `ValueError` if there is none."""
        for found in self.figures:
            if (found.result.attack, found.duplicates) == (attack, duplicates):
                return found
        name = described(attack, duplicates)
        there = "; ".join(described(each.result.attack, each.duplicates) for each in self.figures)
        reason = self.absent.get(name, f"there are: {there}")
        raise ValueError(f"there is no figure of {name!r}; {reason}")

    @property
    def stated(self) -> dict[str, AttackFigure]:
        """The figures named in advance, of those whose attack was run."""
        found = {(each.result.attack, each.duplicates): each for each in self.figures}
        return {name: found[key] for name, key in STATED.items() if key in found}

    def gate_figures(self) -> dict[str, Any]:
        """What `tacit.audit.gate` looks at: one attack, named in advance by what was given."""
        found = {(each.result.attack, each.duplicates): each.result for each in self.figures}
        for key in _GATED:
            if key in found:
                chosen = found[key]
                interval = [chosen.auc.low, chosen.auc.high]
                value = {"attack": key[0], "value": chosen.auc.value, "interval": interval}
                return {"membership_auc": value}
        return {}

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "internal": True,
            "stated": {
                name: {
                    "attack": each.result.attack,
                    "duplicates": each.duplicates,
                    "auc": each.result.auc.value,
                    "auc_interval": [each.result.auc.low, each.result.auc.high],
                }
                for name, each in self.stated.items()
            },
            "members": self.members,
            "non_members": self.non_members,
            "unit": self.unit,
            "shadows": list(self.shadows),
            "references": self.references,
            "population": self.population,
            "a": self.a,
            "gamma": self.gamma,
            "seed": self.seed,
            "confidence": self.confidence,
            "attacks": [each.as_row() for each in self.figures],
            "absent": dict(self.absent),
        }


def described(attack: str, duplicates: str) -> str:
    return f"{attack}, duplicates {duplicates}"
