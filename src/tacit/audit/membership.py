"""Membership attacks: was this record in the training?  How often an attacker is right about it.

A record is a user with all texts (`tacit.audit.users`) or an utterance with its labels
(`tacit.audit.nlu`).  The two tasks say how likely each model finds a record; everything else is the
same for both and is here.

Records have roles.  Members were trained on, non-members were not, and reference models were
trained on neither: some records are likely under any model, and what gives a member away is that
*this* model finds it likelier than models do that were trained alike on others.  Each attack gives
a record one score, higher for likelier members, from log p under the models:

- User inference (Kandpal et al. 2023): the mean over a user's texts of
  log p_model(text) - log p_reference(text).  Several references: the mean of their log p.
- The loss attack (Yeom et al. 2018): minus the mean loss per token.  It needs no reference, and
  takes people who write plainly for members.
- RMIA (Zarifzadeh et al. 2024): the share of population records z with LR(x, z) >= gamma, where
  LR(x, z) = [p_model(x) / p(x)] / [p_model(z) / p(z)].  p(x) comes from references that saw neither
  x nor z, by the paper's offline form: p(x) = ((1 + a) p_out(x) + (1 - a)) / 2, p_out being the
  references' mean.  The probability of all of a user's texts is so small that any a < 1 would
  leave nothing of p_out, so the default is a = 1.  Where the target is better or worse than the
  references at everything, a sum over texts mostly says how much a user wrote; with `per_token`,
  p(x) is the geometric mean per token.

As the z are the same for all x, the score of RMIA is a step function of p_model(x) / p(x) with as
many steps as there are z: below a false-positive rate of one in |z| it cannot tell records apart.
RMIA's population is not measured: a record compared with itself would bias the scores.

A result is computed from members' text: internal (design rule 5), for `private/` and reports with
`--internal`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from tacit.audit.roc import Floats, Ints, TprAtFpr, auc, roc_curve, tpr_at
from tacit.privacy import checks

KEPT, LEFT_OUT = "kept", "left out"
# Attacks by strength, as expected before anything was measured.  A gate looks at the first of them
# that was run: the best of several would be no honest figure.
_GATED = ("user_inference", "rmia", "shadow", "loss")
# The figures that results state, by attack and duplicates, under a name fixed in advance as well:
# what Dupuy et al. 2021 have in Table 1, and what should be the strongest attack.
_STATED = {f"shadow, duplicates {KEPT}": "paper", f"rmia, duplicates {LEFT_OUT}": "strongest"}
_RATES = (0.01, 0.001)  # false-positive rates at which the true-positive rate is stated

Mask = npt.NDArray[np.bool_]
Units = tuple[Sequence[str], Sequence[str]]  # whose each member and each non-member is
Masks = tuple[Mask, Mask]  # of the members, of the non-members


@dataclass(frozen=True, eq=False)
class Likelihoods:
    """How likely the attacked model and each reference find the same records."""

    target: Floats  # [records]: log p of all of a record, in nats
    references: Floats  # [references, records]: the same
    tokens: Ints  # [records]: how many tokens, or labels, that is
    texts: Ints  # [records]: in how many texts

    def only(self, chosen: Mask) -> Likelihoods:
        """The evidence about some of the records."""
        return Likelihoods(
            self.target[chosen],
            self.references[:, chosen],
            self.tokens[chosen],
            self.texts[chosen],
        )


class MembershipAttack:
    """One score per record, higher for likelier members."""

    needs_references: ClassVar[bool] = True
    needs_population: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Under which results state it."""
        raise NotImplementedError

    def scores(self, evidence: Likelihoods, population: Likelihoods | None = None) -> Floats:
        """One score for each record that the evidence is about, in its order."""
        raise NotImplementedError

    def check_references(self, count: int) -> None:
        """`ValueError` if the attack needs reference models and there are none."""
        if self.needs_references and not count:
            raise ValueError(
                f"the attack {self.name} needs a reference model, trained on records that are not"
                " attacked; give at least one, or run the loss attack only"
            )


class UserInference(MembershipAttack):
    """User inference: the mean log-ratio to the references, over a user's texts."""

    name = "user_inference"

    def scores(self, evidence: Likelihoods, population: Likelihoods | None = None) -> Floats:
        self.check_references(len(evidence.references))
        ratios: Floats = (evidence.target - evidence.references.mean(axis=0)) / evidence.texts
        return ratios


class LossAttack(MembershipAttack):
    """The loss attack: minus the mean loss per token."""

    name = "loss"
    needs_references = False

    def scores(self, evidence: Likelihoods, population: Likelihoods | None = None) -> Floats:
        means: Floats = evidence.target / evidence.tokens
        return means


@dataclass(frozen=True)
class Rmia(MembershipAttack):
    """RMIA: the share of the population that a record's ratio beats by the factor gamma.

    `a` is that of the offline form of p(x), and `per_token` takes geometric means per token; see
    the module.
    """

    needs_population: ClassVar[bool] = True
    gamma: float = 1.0
    a: float = 1.0
    per_token: bool = False

    def __post_init__(self) -> None:
        checks.positive("gamma", self.gamma)
        if not 0 <= self.a <= 1:
            raise ValueError(f"a must be from 0 to 1, got {self.a}")

    @property
    def name(self) -> str:
        """rmia, or rmia_per_token."""
        return "rmia_per_token" if self.per_token else "rmia"

    def scores(self, evidence: Likelihoods, population: Likelihoods | None = None) -> Floats:
        if population is None:
            raise ValueError(f"the attack {self.name} needs a population to compare with")
        compared = np.sort(self._log_ratios(population))
        ratios = self._log_ratios(evidence) - math.log(self.gamma)
        shares: Floats = np.searchsorted(compared, ratios, side="right") / len(compared)
        return shares

    def _log_ratios(self, evidence: Likelihoods) -> Floats:
        """log p_model(x) - log p(x) of every record."""
        self.check_references(len(evidence.references))
        sizes = evidence.tokens if self.per_token else 1
        out = logsumexp(evidence.references / sizes, axis=0) - math.log(len(evidence.references))
        if self.a < 1:
            out = np.logaddexp(math.log((1 + self.a) / 2) + out, math.log((1 - self.a) / 2))
        ratios: Floats = evidence.target / sizes - out
        return ratios


# The attacks on users; the first that can be run is the one that a gate looks at.
ATTACKS: tuple[MembershipAttack, ...] = (
    UserInference(),
    LossAttack(),
    Rmia(),
    Rmia(per_token=True),
)


@dataclass(frozen=True)
class AttackResult:
    """How well one attack tells members from non-members: plain figures, as JSON has them."""

    name: str
    members: int
    non_members: int
    confidence: float
    auc: float
    auc_interval: tuple[float, float]
    tpr_at: tuple[TprAtFpr, ...]  # at each of `_RATES`
    roc: tuple[tuple[float, float], ...]  # (false-positive rate, true-positive rate), thinned
    member_units: int  # users or texts
    non_member_units: int
    excluded: Mapping[str, tuple[int, int]]  # why -> how many members, how many non-members
    duplicates: str | None = None  # texts on both sides: kept, or left out; None for users
    stated: str | None = None  # the name under which it was chosen before anything was measured

    @property
    def title(self) -> str:
        """The attack, and what was done with duplicates if that was a choice."""
        return _title(self.name, self.duplicates)


@dataclass(frozen=True, kw_only=True)
class MembershipResult:
    """All attacks on one model.  Internal: it is computed from members' text."""

    leg: int | None = None  # the round or epoch after which the model was attacked
    members: int
    non_members: int
    references: int  # models on records of the same corpus that an attack compares with
    confidence: float
    attacks: tuple[AttackResult, ...]
    absent: Mapping[str, str]  # "attack, duplicates ..." -> why there is no such figure
    unit: str = "user"  # of the intervals: user or text
    texts: str | None = None  # which texts of the members were scored: fresh, training or all
    shadows: tuple[str, ...] = ()  # the corpora of models from which an attack was learnt
    population: int = 0
    a: float | None = None  # RMIA's, if it was chosen
    seed: int = 0

    def figure(self, attack: str, duplicates: str | None = None) -> AttackResult:
        """The figure of this attack; `ValueError` if there is none."""
        title = _title(attack, duplicates)
        figures = {figure.title: figure for figure in self.attacks}
        if title not in figures:
            reason = self.absent.get(title, f"there are: {'; '.join(figures)}")
            raise ValueError(f"there is no figure of {title!r}; {reason}")
        return figures[title]

    @property
    def stated(self) -> dict[str, AttackResult]:
        """The figures that were named before anything was measured, by that name."""
        return {figure.stated: figure for figure in self.attacks if figure.stated}

    def gate_figures(self) -> dict[str, Any]:
        """What `tacit.audit.gate` looks at: the AUC of one attack that was named in advance."""
        figures = {each.name: each for each in self.attacks if each.duplicates != KEPT}
        for name in _GATED:
            if name in figures:
                value, interval = figures[name].auc, list(figures[name].auc_interval)
                return {"membership_auc": {"attack": name, "value": value, "interval": interval}}
        return {}

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"internal": True} | asdict(self)


@dataclass(frozen=True, eq=False)
class ScoredAttack:
    """The scores that one attack gives, and which records it must leave out, by the reason."""

    name: str
    scores: tuple[Floats, Floats]  # of the members, of the non-members
    left_out: Mapping[str, Masks]


def measure_attacks(
    attacks: Sequence[ScoredAttack],
    units: Units,
    *,
    confidence: float,
    duplicates: Masks | None = None,
    seed: int | None = None,
) -> tuple[tuple[AttackResult, ...], dict[str, str]]:
    """ROC, AUC and true-positive rates of each attack, and why a figure is absent.

    Args:
        attacks: their scores for all records.
        units: whose each member and each non-member is; intervals take units for independent.
        confidence: of the intervals.
        duplicates: records that are on both sides; with it there are two figures of each attack,
            one with these records and one without.
        seed: draws as many of the larger side as the smaller one has; without it all are measured.

    Raises:
        ValueError: an attack has to leave out a whole side, duplicates aside.
    """
    variants: dict[str | None, dict[str, Masks]] = {None: {}}
    if duplicates is not None:
        variants = {KEPT: {}, LEFT_OUT: {"duplicates": duplicates}}
    figures: list[AttackResult] = []
    absent: dict[str, str] = {}
    for attack in attacks:
        for variant, also in variants.items():
            excluded, chosen = _choose(units, {**also, **attack.left_out}, seed)
            if all(map(len, chosen)):
                figures.append(_measure(attack, units, chosen, excluded, variant, confidence))
            elif variant == LEFT_OUT:
                absent[_title(attack.name, variant)] = _none_left(attack.name, units, excluded)
            else:
                raise ValueError(_none_left(attack.name, units, excluded))
    return tuple(figures), absent


def check_disjoint(groups: Mapping[str, set[str]]) -> None:
    """Refuse users who are in two groups at once."""
    roles = list(groups)
    for index, role in enumerate(roles):
        for other in roles[index + 1 :]:
            if shared := len(groups[role] & groups[other]):
                raise ValueError(
                    f"{shared} users are among both the {role} and the {other}; the groups must"
                    " be disjoint"
                )


def _choose(
    units: Units, left_out: Mapping[str, Masks], seed: int | None
) -> tuple[dict[str, tuple[int, int]], tuple[Ints, Ints]]:
    """How many are left out, by the first reason that holds, and the indices of those measured."""
    kept = [np.ones(len(side), dtype=bool) for side in units]
    excluded: dict[str, tuple[int, int]] = {}
    for reason, masks in left_out.items():
        inside, outside = (int((own & mask).sum()) for own, mask in zip(kept, masks, strict=True))
        excluded[reason] = (inside, outside)
        kept = [own & ~mask for own, mask in zip(kept, masks, strict=True)]
    if seed is None:
        return excluded, (np.flatnonzero(kept[0]), np.flatnonzero(kept[1]))
    orders = [np.random.default_rng([seed, side]).permutation(len(kept[side])) for side in (0, 1)]
    drawn = [order[own[order]] for order, own in zip(orders, kept, strict=True)]
    count = min(map(len, drawn))
    excluded["for_balance"] = (len(drawn[0]) - count, len(drawn[1]) - count)
    return excluded, (drawn[0][:count], drawn[1][:count])


def _measure(
    attack: ScoredAttack,
    units: Units,
    chosen: tuple[Ints, Ints],
    excluded: Mapping[str, tuple[int, int]],
    duplicates: str | None,
    confidence: float,
) -> AttackResult:
    """The figures of one attack on the records that were chosen.

    The AUC uses all scores; a true-positive rate uses the first of each unit, since its interval
    needs independent scores.
    """
    inside, outside = (all[own] for all, own in zip(attack.scores, chosen, strict=True))
    owners = tuple(np.array(side)[own] for side, own in zip(units, chosen, strict=True))
    firsts = [np.unique(side, return_index=True)[1] for side in owners]
    area = auc(inside, outside, confidence=confidence, units=(owners[0], owners[1]))
    singles = inside[firsts[0]], outside[firsts[1]]
    return AttackResult(
        name=attack.name,
        members=len(inside),
        non_members=len(outside),
        confidence=confidence,
        auc=area.value,
        auc_interval=(area.low, area.high),
        tpr_at=tuple(tpr_at(*singles, rate, confidence=confidence) for rate in _RATES),
        roc=roc_curve(inside, outside).thinned().as_points(),
        member_units=len(firsts[0]),
        non_member_units=len(firsts[1]),
        excluded=excluded,
        duplicates=duplicates,
        stated=_STATED.get(_title(attack.name, duplicates)),
    )


def _title(attack: str, duplicates: str | None) -> str:
    return attack if duplicates is None else f"{attack}, duplicates {duplicates}"


def _none_left(
    name: str,
    units: Units,
    excluded: Mapping[str, tuple[int, int]],
) -> str:
    counts = ", ".join(
        f"{reason.replace('_', ' ')} {inside} and {outside}"
        for reason, (inside, outside) in excluded.items()
        if inside or outside
    )
    return (
        f"of {len(units[0])} members and {len(units[1])} non-members none are left on one side for"
        f" the attack {name} (left out: {counts}): give more of them"
    )
