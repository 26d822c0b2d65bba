"""Membership inference against a model of intents and slots: was this utterance in its training?

Each attack gives an utterance a score that is higher for likelier members:

- `shadow` (`attack_shadow`): a classifier of sorted scores, learnt on a model of another corpus;
- `shadow_rescaled`: the same on features that are standardised by the target's own utterances;
- `rmia` (`attack_rmia`): the likelihood of the labels relative to reference models';
- `loss` (Yeom et al. 2018): the log-likelihood of the labels itself.

Members and non-members are balanced by a seeded draw (Dupuy et al. 2021, section 4.1); all attacks
draw in the same order.  Left out, and counted by reason:

- utterances with a label that the target or a reference does not know, where an attack needs it;
- RMIA: whose words, or whose user, a reference was trained on or the population has.  A reference
  must have seen neither x nor z;
- duplicates, in one of two figures of each attack: texts that are on both sides.  A non-member with
  a member's words is none as far as the model can tell.  They are left out on *both* sides.  To
  drop the non-members alone would leave rare texts to one side, and a model that met nobody
  would seem to know the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.audit.attacks import Rmia
from tacit.audit.membership import POPULATION_SHARE, RATES, AttackResult
from tacit.audit.nlu_attack_result import (
    KEPT,
    LEFT_OUT,
    LOSS,
    RMIA,
    SHADOW,
    SHADOW_RESCALED,
    AttackFigure,
    NluAttackResult,
    described,
)
from tacit.audit.nlu_attack_rmia import DEFAULT_A, evidence
from tacit.audit.nlu_attack_shadow import Shadow, ShadowAttack
from tacit.audit.roc import TprAtFpr, auc, roc_curve, tpr_at, why_refused
from tacit.privacy import checks
from tacit.tasks.nlu.attack_candidates import Candidates, Mask, is_population, unit
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.scored import Floats, Ints

Masks = tuple[Mask, Mask]  # of the members, of the non-members
Sides = tuple[Candidates, Candidates]  # members, non-members


@dataclass(frozen=True)
class _Method:
    """An attack that is ready to use, and whom it must leave out."""

    name: str
    scores: Callable[[Candidates], Floats]
    left_out: Mapping[str, Masks]


def attack(
    members: Candidates,
    non_members: Candidates,
    *,
    shadows: Sequence[Shadow] = (),
    population: Candidates | None = None,
    seen_by_references: Sequence[Utterance] = (),
    shadow_attack: ShadowAttack | None = None,
    rmia: Rmia | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    rates: Sequence[float] = RATES,
) -> NluAttackResult:
    """Run every attack for which there is what it needs: shadows, references.

    `seen_by_references` is all that the references were trained on.  Without `population`, a
    quarter of the non-members, chosen by a digest, is RMIA's and is not measured by it.  Take its
    `a` from `attack_rmia.chosen_a` where there are several references.
    """
    checks.whole("seed", seed)
    sides = (members, non_members)
    _check(sides, population, seen_by_references)
    if rmia is not None and not members.references:
        raise ValueError(
            "the attack rmia has no reference models; let at least one score both sides"
        )
    methods = [_loss(sides)]
    if members.references:
        rmia = rmia or Rmia(a=DEFAULT_A)
        population = population or _set_aside(non_members)
        methods.insert(0, _rmia(rmia, sides, population, seen_by_references))
    if shadows:
        methods = [*_shadow(shadow_attack or ShadowAttack(), shadows, sides), *methods]
    figures: list[AttackFigure] = []
    absent: dict[str, str] = {}
    duplicates = {"duplicates": _each_way(sides)}
    for method in methods:
        for which, also in ((KEPT, {}), (LEFT_OUT, duplicates)):
            excluded, chosen = _chosen(sides, {**also, **method.left_out}, seed)
            if all(map(len, chosen)):
                asked = members.only(chosen[0]), non_members.only(chosen[1])
                figures.append(_figure(method, asked, which, excluded, confidence, rates))
            elif which == KEPT:
                raise ValueError(_nobody(method.name, sides, excluded))
            else:
                absent[described(method.name, which)] = _nobody(method.name, sides, excluded)
    with_users = all(each.user is not None for side in sides for each in side.utterances)
    return NluAttackResult(
        figures=tuple(figures),
        absent=absent,
        members=len(members),
        non_members=len(non_members),
        unit="user" if with_users else "text",
        shadows=tuple(shadow.name for shadow in shadows),
        references=len(members.references),
        population=len(population) if members.references and population else 0,
        a=rmia.a if members.references and rmia else None,
        gamma=rmia.gamma if members.references and rmia else None,
        seed=seed,
        confidence=confidence,
    )


def _shadow(attack: ShadowAttack, shadows: Sequence[Shadow], sides: Sides) -> list[_Method]:
    trained = attack.trained(shadows)
    rescaled = trained.rescaled(*(side.target for side in sides))
    return [
        _Method(SHADOW, lambda asked: trained.scores(asked.target), {}),
        _Method(SHADOW_RESCALED, lambda asked: rescaled.scores(asked.target), {}),
    ]


def _loss(sides: Sides) -> _Method:
    unknown = (~sides[0].target.known, ~sides[1].target.known)
    return _Method(LOSS, lambda asked: asked.target.log_likelihood, {"unknown_labels": unknown})


def _rmia(attack: Rmia, sides: Sides, population: Candidates, seen: Sequence[Utterance]) -> _Method:
    known = np.flatnonzero(~population.unknown_to_any())
    if not known.size:
        raise ValueError(
            f"the models know all labels of none of the {len(population)} population utterances:"
            " give others"
        )
    usable = population.only(known)
    against = evidence(usable.target, usable.references)
    met = (*seen, *population.utterances)
    return _Method(
        RMIA,
        lambda asked: attack.scores(evidence(asked.target, asked.references), against),
        {
            "met_by_references_or_population": (sides[0].met_among(met), sides[1].met_among(met)),
            "unknown_labels": (sides[0].unknown_to_any(), sides[1].unknown_to_any()),
        },
    )


def _set_aside(non_members: Candidates) -> Candidates:
    """The non-members that are population: all of a user's utterances, all copies of a text."""
    aside = [is_population(each, POPULATION_SHARE) for each in non_members.utterances]
    if not any(aside) or all(aside):
        raise ValueError(
            f"{len(non_members)} non-members are too few to set a population aside for the attack"
            " rmia; give a population, or more non-members"
        )
    return non_members.only(np.flatnonzero(aside))


def _each_way(sides: Sides) -> Masks:
    """Whose words are on the other side, too."""
    members, non_members = sides
    return members.said_among(non_members.utterances), non_members.said_among(members.utterances)


def _chosen(
    sides: Sides, left_out: Mapping[str, Masks], seed: int
) -> tuple[dict[str, tuple[int, int]], tuple[Ints, Ints]]:
    """How many are left out, by the first reason that holds; and as many places of each side."""
    kept = [np.ones(len(side), dtype=bool) for side in sides]
    excluded: dict[str, tuple[int, int]] = {}
    for reason, masks in left_out.items():
        counts = [int((mine & mask).sum()) for mine, mask in zip(kept, masks, strict=True)]
        excluded[reason] = (counts[0], counts[1])
        kept = [mine & ~mask for mine, mask in zip(kept, masks, strict=True)]
    drawn = []
    for place, mine in enumerate(kept):
        order = np.random.default_rng([seed, place]).permutation(len(mine))
        drawn.append(order[mine[order]])
    count = min(map(len, drawn))
    excluded["for_balance"] = (len(drawn[0]) - count, len(drawn[1]) - count)
    return excluded, (drawn[0][:count], drawn[1][:count])


def _figure(
    method: _Method,
    asked: Sides,
    duplicates: str,
    excluded: Mapping[str, tuple[int, int]],
    confidence: float,
    rates: Sequence[float],
) -> AttackFigure:
    inside, outside = (method.scores(side) for side in asked)
    units = [np.array([unit(each) for each in side.utterances]) for side in asked]
    # One of each unit, the first drawn: the interval of a rate needs independent scores.
    firsts = [np.unique(each, return_index=True)[1] for each in units]
    one_inside, one_outside = inside[firsts[0]], outside[firsts[1]]
    found: dict[float, TprAtFpr | str] = {}
    for rate in rates:
        reason = why_refused(len(one_outside), rate)
        found[rate] = reason or tpr_at(one_inside, one_outside, rate, confidence=confidence)
    area = auc(
        inside,
        outside,
        confidence=confidence,
        member_users=units[0],
        non_member_users=units[1],
    )
    return AttackFigure(
        AttackResult(
            method.name, len(inside), len(outside), area, found, roc_curve(inside, outside)
        ),
        duplicates,
        (len(one_inside), len(one_outside)),
        excluded,
    )


def _nobody(name: str, sides: Sides, excluded: Mapping[str, tuple[int, int]]) -> str:
    counts = ", ".join(
        f"{reason.replace('_', ' ')} {inside} and {outside}"
        for reason, (inside, outside) in excluded.items()
        if inside or outside
    )
    return (
        f"of {len(sides[0])} members and {len(sides[1])} non-members none are left on one side for"
        f" the attack {name} (left out: {counts}): give more utterances"
    )


def _check(sides: Sides, population: Candidates | None, seen: Sequence[Utterance]) -> None:
    members, non_members = sides
    shared = {each.user for each in members.utterances} & {
        each.user for each in non_members.utterances
    }
    if shared - {None}:
        raise ValueError(
            f"{len(shared - {None})} users are among both the members and the non-members; each"
            " user must be on one side only"
        )
    references = len(members.references)
    for name, group in (("non-members", non_members), ("population", population)):
        if group is not None and len(group.references) != references:
            raise ValueError(
                f"{references} references scored the members and {len(group.references)} the"
                f" {name}: let every reference score both"
            )
    if references and not seen:
        raise ValueError(
            "seen_by_references is empty: say what the references were trained on, since they must"
            " not have seen what is attacked"
        )
