"""Membership inference against a model of intents and slots: was this utterance in its training?

Each attack gives an utterance a score that is higher for likelier members:

- `shadow` (`tacit.audit.nlu_shadow`): a classifier of sorted scores, learnt on a model of another
  corpus;
- `shadow_rescaled`: the same on features that are standardised by the target's own utterances;
- `rmia` (Zarifzadeh et al. 2024): the likelihood of the labels relative to reference models';
- `loss` (Yeom et al. 2018): the log-likelihood of the labels itself.

Two figures are stated, and which ones was settled before anything was measured; the best of several
would be no honest figure:

- `paper`: the shadow attack with duplicates kept, as in Dupuy et al. 2021, Table 1;
- `strongest`: RMIA with duplicates left out.

Members and non-members are balanced by a seeded draw (Dupuy et al. 2021, section 4.1); all attacks
draw in the same order.  Left out, and counted by reason:

- utterances with a label that the target or a reference does not know, where an attack needs it;
- RMIA: whose words, or whose user, a reference was trained on or the population has.  A reference
  must have seen neither x nor z;
- duplicates, in one of two figures of each attack: texts that are on both sides.  A non-member with
  a member's words is none as far as the model can tell.  They are left out on *both* sides.  To
  drop the non-members alone would leave rare texts to one side, and a model that met no member
  would seem to know the others.

RMIA is that of `tacit.audit.membership`, each utterance a text of its own.  What p(x) means is
different: the probability of a user's whole text is tiny, while that of an utterance's labels is
often near 1.  So the paper's offline form p(x) = ((1 + a) p_out(x) + (1 - a)) / 2 says something
for every a from 0 to 1: with a = 0, p(x) stays between 1/2 and 1, and a label that no reference
expects counts little; with a = 1, p(x) = p_out(x), and a rare utterance wins by a huge ratio, which
is often the weakest attack of all.  Where no a is chosen it is 0.3.

All of it is computed from members' text: internal (design rule 5), for `private/` and reports with
`--internal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.audit.membership import (
    POPULATION_SHARE,
    AttackResult,
    Evidence,
    Rmia,
    gate_figure,
    measure,
)
from tacit.audit.nlu_shadow import Shadow, ShadowAttack
from tacit.audit.roc import Floats, Ints
from tacit.audit.users import UserScores
from tacit.corpus.hashing import role_draw
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.predictions import Scored
from tacit.tasks.nlu.utterances import unit

KEPT, LEFT_OUT = "kept", "left out"
SHADOW, SHADOW_RESCALED, RMIA, LOSS = "shadow", "shadow_rescaled", "rmia", "loss"
_STATED = {"paper": (SHADOW, KEPT), "strongest": (RMIA, LEFT_OUT)}
# The figure that a gate looks at is the first of these that was run.
_GATED = ((RMIA, LEFT_OUT), (SHADOW, LEFT_OUT), (LOSS, LEFT_OUT))

DEFAULT_A = 0.3

_Mask = npt.NDArray[np.bool_]
_Masks = tuple[_Mask, _Mask]  # of the members, of the non-members


@dataclass(frozen=True, eq=False)
class AskedUtterances:
    """Utterances that an attack is asked about, with what the target and each reference say."""

    utterances: tuple[Utterance, ...]
    target: Scored
    references: tuple[Scored, ...] = ()

    def __post_init__(self) -> None:
        if not self.utterances:
            raise ValueError("there are no utterances to attack; give at least one")
        for scored in (self.target, *self.references):
            if len(scored) != len(self.utterances):
                raise ValueError(
                    f"{len(self.utterances)} utterances and scores of {len(scored)}: score each"
                    " utterance once, in the same order"
                )

    def __len__(self) -> int:
        return len(self.utterances)

    def only(self, indices: Ints) -> AskedUtterances:
        """Some of them, by index, in the order asked for."""
        return AskedUtterances(
            tuple(self.utterances[index] for index in indices.tolist()),
            self.target.only(indices),
            tuple(each.only(indices) for each in self.references),
        )

    def unknown_to_any(self) -> _Mask:
        """Where the target or a reference does not know a label."""
        known: _Mask = np.all([each.known for each in (self.target, *self.references)], axis=0)
        return ~known

    def said_among(self, others: Iterable[Utterance]) -> _Mask:
        """Where some other utterance has the same words, whatever its labels."""
        words = {other.tokens for other in others}
        return np.array([utterance.tokens in words for utterance in self.utterances])

    def met_among(self, others: Iterable[Utterance]) -> _Mask:
        """Where some other utterance has the same words or is of the same user."""
        others = list(others)
        users = {other.user for other in others} - {None}
        same_user: _Mask = np.array([each.user in users for each in self.utterances])
        return self.said_among(others) | same_user


_Sides = tuple[AskedUtterances, AskedUtterances]  # members, non-members


@dataclass(frozen=True)
class UtteranceAttack(AttackResult):
    """How well one attack tells members from non-members, and which were left out of it."""

    duplicates: str  # texts on both sides: kept, or left out
    member_units: int  # users or texts
    non_member_units: int
    excluded: Mapping[str, tuple[int, int]]  # why -> how many members, how many non-members

    @property
    def key(self) -> tuple[str, str]:
        """The attack, and whether duplicates are kept."""
        return self.name, self.duplicates


@dataclass(frozen=True)
class NluAttackResult:
    """All attacks on one model, each with duplicates kept and left out."""

    attacks: tuple[UtteranceAttack, ...]
    absent: Mapping[str, str]  # "attack, duplicates ..." -> why there is no such figure
    members: int
    non_members: int
    unit: str  # of the intervals: user or text
    shadows: tuple[str, ...]  # the corpora of models from which an attack was learnt
    references: int  # models on utterances of the same corpus that an attack compares with
    population: int
    a: float | None  # RMIA's, if it was run
    gamma: float | None
    seed: int
    confidence: float

    def figure(self, attack: str, duplicates: str = KEPT) -> UtteranceAttack:
        """The figure of this attack; `ValueError` if there is none."""
        for figure in self.attacks:
            if figure.key == (attack, duplicates):
                return figure
        name = _described(attack, duplicates)
        others = "; ".join(_described(*figure.key) for figure in self.attacks)
        reason = self.absent.get(name, f"there are: {others}")
        raise ValueError(f"there is no figure of {name!r}; {reason}")

    @property
    def stated(self) -> dict[str, UtteranceAttack]:
        """The figures named in advance, of those whose attack was run."""
        figures = {figure.key: figure for figure in self.attacks}
        return {name: figures[key] for name, key in _STATED.items() if key in figures}

    def gate_figures(self) -> dict[str, Any]:
        """What `tacit.audit.gate` looks at: one attack, named in advance by what was given."""
        figures = {figure.key: figure for figure in self.attacks}
        for key in _GATED:
            if key in figures:
                return gate_figure(key[0], figures[key].auc, figures[key].auc_interval)
        return {}

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        names = ("duplicates", "auc", "auc_interval")
        stated = {
            name: {"attack": each.name} | {figure: getattr(each, figure) for figure in names}
            for name, each in self.stated.items()
        }
        return {"internal": True, "stated": stated} | asdict(self)


def _described(attack: str, duplicates: str) -> str:
    return f"{attack}, duplicates {duplicates}"


@dataclass(frozen=True)
class _Method:
    """An attack that is ready to use, and whom it must leave out."""

    name: str
    scores: Callable[[AskedUtterances], Floats]
    left_out: Mapping[str, _Masks]


def attack_utterances(
    members: AskedUtterances,
    non_members: AskedUtterances,
    *,
    shadows: Sequence[Shadow] = (),
    population: AskedUtterances | None = None,
    seen_by_references: Sequence[Utterance] = (),
    rmia: Rmia | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> NluAttackResult:
    """Run every attack for which there is what it needs: shadows, references.

    `seen_by_references` is all that the references were trained on.  Without `population`, a
    quarter of the non-members, chosen by a digest, is RMIA's and is not measured by it.  Take its
    `a` from `tacit.audit.nlu.choose_a` where there are several references.
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
        methods = [*_shadow(shadows, sides), *methods]
    figures: list[UtteranceAttack] = []
    absent: dict[str, str] = {}
    duplicates = {
        "duplicates": (
            members.said_among(non_members.utterances),
            non_members.said_among(members.utterances),
        )
    }
    for method in methods:
        for which, also in ((KEPT, {}), (LEFT_OUT, duplicates)):
            excluded, chosen = _chosen(sides, {**also, **method.left_out}, seed)
            if all(map(len, chosen)):
                asked = members.only(chosen[0]), non_members.only(chosen[1])
                figures.append(_figure(method, asked, which, excluded, confidence))
            elif which == KEPT:
                raise ValueError(_none_left(method.name, sides, excluded))
            else:
                absent[_described(method.name, which)] = _none_left(method.name, sides, excluded)
    with_users = all(each.user is not None for side in sides for each in side.utterances)
    return NluAttackResult(
        attacks=tuple(figures),
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


def _shadow(shadows: Sequence[Shadow], sides: _Sides) -> list[_Method]:
    """The shadow attack, standardised by the shadows and by the target's own utterances."""
    trained = ShadowAttack.train(shadows)
    rescaled = trained.rescaled(*(side.target for side in sides))
    return [
        _Method(SHADOW, lambda asked: trained.scores(asked.target), {}),
        _Method(SHADOW_RESCALED, lambda asked: rescaled.scores(asked.target), {}),
    ]


def _loss(sides: _Sides) -> _Method:
    """The loss attack, without utterances whose labels the target does not know."""
    unknown = (~sides[0].target.known, ~sides[1].target.known)
    return _Method(LOSS, lambda asked: asked.target.log_likelihood, {"unknown_labels": unknown})


def _rmia(
    attack: Rmia, sides: _Sides, population: AskedUtterances, seen: Sequence[Utterance]
) -> _Method:
    known = np.flatnonzero(~population.unknown_to_any())
    if not known.size:
        raise ValueError(
            f"the models know all labels of none of the {len(population)} population utterances:"
            " give others"
        )
    usable = population.only(known)
    compared = evidence_of(usable.target, usable.references)
    met = (*seen, *population.utterances)
    return _Method(
        RMIA,
        lambda asked: attack.scores(evidence_of(asked.target, asked.references), compared),
        {
            "met_by_references_or_population": (sides[0].met_among(met), sides[1].met_among(met)),
            "unknown_labels": (sides[0].unknown_to_any(), sides[1].unknown_to_any()),
        },
    )


def _set_aside(non_members: AskedUtterances) -> AskedUtterances:
    """The non-members that are population: all of a user's utterances, all copies of a text."""
    aside = [
        role_draw("nlu population", unit(each)) < POPULATION_SHARE
        for each in non_members.utterances
    ]
    if not any(aside) or all(aside):
        raise ValueError(
            f"{len(non_members)} non-members are too few to set a population aside for the attack"
            " rmia; give a population, or more non-members"
        )
    return non_members.only(np.flatnonzero(aside))


def _chosen(
    sides: _Sides, left_out: Mapping[str, _Masks], seed: int
) -> tuple[dict[str, tuple[int, int]], tuple[Ints, Ints]]:
    """How many are left out, by the first reason that holds; and as many indices of each side."""
    kept = [np.ones(len(side), dtype=bool) for side in sides]
    excluded: dict[str, tuple[int, int]] = {}
    for reason, masks in left_out.items():
        counts = [int((own & mask).sum()) for own, mask in zip(kept, masks, strict=True)]
        excluded[reason] = (counts[0], counts[1])
        kept = [own & ~mask for own, mask in zip(kept, masks, strict=True)]
    drawn = []
    for number, own in enumerate(kept):
        order = np.random.default_rng([seed, number]).permutation(len(own))
        drawn.append(order[own[order]])
    count = min(map(len, drawn))
    excluded["for_balance"] = (len(drawn[0]) - count, len(drawn[1]) - count)
    return excluded, (drawn[0][:count], drawn[1][:count])


def _figure(
    method: _Method,
    asked: _Sides,
    duplicates: str,
    excluded: Mapping[str, tuple[int, int]],
    confidence: float,
) -> UtteranceAttack:
    """Measure one attack on the utterances that were chosen, with their units."""
    inside, outside = (np.array([unit(each) for each in side.utterances]) for side in asked)
    result = measure(
        method.name, *map(method.scores, asked), confidence=confidence, units=(inside, outside)
    )
    return UtteranceAttack(
        **vars(result),
        duplicates=duplicates,
        member_units=len(np.unique(inside)),
        non_member_units=len(np.unique(outside)),
        excluded=excluded,
    )


def _none_left(name: str, sides: _Sides, excluded: Mapping[str, tuple[int, int]]) -> str:
    counts = ", ".join(
        f"{reason.replace('_', ' ')} {inside} and {outside}"
        for reason, (inside, outside) in excluded.items()
        if inside or outside
    )
    return (
        f"of {len(sides[0])} members and {len(sides[1])} non-members none are left on one side for"
        f" the attack {name} (left out: {counts}): give more utterances"
    )


def _check(sides: _Sides, population: AskedUtterances | None, seen: Sequence[Utterance]) -> None:
    members, non_members = sides
    users = [{each.user for each in side.utterances} - {None} for side in sides]
    if shared := users[0] & users[1]:
        raise ValueError(
            f"{len(shared)} users are among both the members and the non-members; each user must be"
            " on one side only"
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


def evidence_of(target: Scored, references: Sequence[Scored]) -> Evidence:
    """What RMIA compares: each utterance as a user with one text; all labels must be known."""
    return Evidence(_as_users(target), tuple(map(_as_users, references)))


def _as_users(scored: Scored) -> UserScores:
    count = len(scored)
    labels = np.array([1 + len(each) for each in scored.tokens], dtype=np.int64)  # the intent, tags
    return UserScores(
        tuple(map(str, range(count))), np.arange(count + 1), scored.log_likelihood, labels
    )
