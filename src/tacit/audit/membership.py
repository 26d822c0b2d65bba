"""How often attacks on users are right: members and strangers in, ROC curves out.

The attacks themselves are in `tacit.audit.attacks`.  RMIA's population is no part of those that are
measured: a user compared with itself would bias the scores.

A result is computed from members' text: internal, for `private/` and reports with `--internal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.audit.attacks import ATTACKS, Attack, Evidence, no_reference
from tacit.audit.references import Reference, check_roles, draw
from tacit.audit.roc import Auc, RocCurve, TprAtFpr, auc, roc_curve, tpr_at, why_refused
from tacit.audit.user_scores import (
    FRESH,
    TEXTS,
    Model,
    UserTexts,
    score_users,
)

RATES = (0.01, 0.001)
POPULATION_SHARE = 0.25  # of the non-members, where no population is given


@dataclass(frozen=True)
class AttackResult:
    """How well one attack tells members from non-members."""

    attack: str
    members: int
    non_members: int
    auc: Auc
    tpr_at: Mapping[float, TprAtFpr | str]  # or why there is none
    roc: RocCurve

    def as_row(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "members": self.members,
            "non_members": self.non_members,
            "auc": self.auc.value,
            "auc_interval": [self.auc.low, self.auc.high],
            "tpr_at": {f"{rate:g}": _tpr_row(found) for rate, found in self.tpr_at.items()},
            "roc": self.roc.thinned().as_points(),
        }


@dataclass(frozen=True)
class MembershipResult:
    """All attacks on one model.  Internal: it is computed from members' text."""

    texts: str  # which texts of the members were scored: fresh, training or all
    members: int
    non_members: int
    references: int
    confidence: float
    attacks: tuple[AttackResult, ...]

    def __getitem__(self, name: str) -> AttackResult:
        """The result of the attack of this name."""
        for result in self.attacks:
            if result.attack == name:
                return result
        names = ", ".join(result.attack for result in self.attacks)
        raise ValueError(f"there is no result of an attack {name!r}; there are {names}")

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "internal": True,
            "texts": self.texts,
            "members": self.members,
            "non_members": self.non_members,
            "references": self.references,
            "confidence": self.confidence,
            "attacks": [result.as_row() for result in self.attacks],
        }


def attack(
    target: Model,
    members: UserTexts,
    non_members: UserTexts,
    references: Sequence[Reference | Model] = (),
    *,
    bos: int,
    attacks: Sequence[Attack] = ATTACKS,
    population: UserTexts | None = None,
    texts: str = FRESH,
    confidence: float = 0.95,
    rates: Sequence[float] = RATES,
) -> MembershipResult:
    """Attack every user and count.

    `texts` says which of the members' texts these are, for the record.  Without `population`, a
    quarter of the non-members, chosen by a hash of their ids, is RMIA's and is not measured by it.
    """
    known = tuple(each if isinstance(each, Reference) else Reference(each) for each in references)
    _check(target, known, attacks, texts)
    groups = {"members": members, "non-members": non_members}
    if population is not None:
        groups["population users"] = population
    check_roles(groups, known)
    wanted = known if any(each.needs_references for each in attacks) else ()
    evidence = {role: _evidence(target, wanted, group, bos) for role, group in groups.items()}
    results = tuple(_result(each, evidence, confidence=confidence, rates=rates) for each in attacks)
    return MembershipResult(texts, len(members), len(non_members), len(wanted), confidence, results)


def _evidence(
    target: Model, references: Sequence[Reference], texts: UserTexts, bos: int
) -> Evidence:
    return Evidence(
        score_users(target, texts, bos=bos),
        tuple(score_users(reference.model, texts, bos=bos) for reference in references),
    )


def _result(
    attack: Attack,
    evidence: Mapping[str, Evidence],
    *,
    confidence: float,
    rates: Sequence[float],
) -> AttackResult:
    outside, population = evidence["non-members"], evidence.get("population users")
    if attack.needs_population and population is None:
        outside, population = _set_aside(outside)
    inside = attack.scores(evidence["members"], population)
    others = attack.scores(outside, population)
    found: dict[float, TprAtFpr | str] = {}
    for rate in rates:
        reason = why_refused(len(others), rate)
        found[rate] = reason or tpr_at(inside, others, rate, confidence=confidence)
    return AttackResult(
        attack.name,
        len(inside),
        len(others),
        auc(inside, others, confidence=confidence),
        found,
        roc_curve(inside, others),
    )


def _set_aside(non_members: Evidence) -> tuple[Evidence, Evidence]:
    """Non-members to measure on, and a population."""
    users = non_members.target.users
    below = int(POPULATION_SHARE * 2**64)
    chosen = np.array([draw("population", user) < below for user in users])
    if not chosen.any() or chosen.all():
        raise ValueError(
            f"{len(users)} non-members are too few to set a population aside for the attack rmia;"
            " give population users, or more non-members"
        )
    return non_members.only(~chosen), non_members.only(chosen)


def _check(
    target: Model, references: Sequence[Reference], attacks: Sequence[Attack], texts: str
) -> None:
    if texts not in TEXTS:
        raise ValueError(f"texts must be one of {', '.join(TEXTS)}, got {texts!r}")
    if not attacks:
        raise ValueError("there is no attack to run; give at least one")
    for each in attacks:
        if each.needs_references and not references:
            raise no_reference(each)
    for reference in references:
        reference.check_fits(target)


def _tpr_row(found: TprAtFpr | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"tpr": None, "reason": found}
    return found.as_row()
