"""Membership attacks: was this person's text in the training?  How often an attacker is right.

Each attack gives every user one score, higher for likelier members, from log p of the user's texts
under the attacked model and under reference models that never met the user.

- User inference (Kandpal et al. 2023): the mean over a user's texts of
  log p_model(text) - log p_reference(text).  Several references: the mean of their log p.
- The loss attack (Yeom et al. 2018): minus the mean loss per token.  It needs no reference, and
  takes people who write plainly for members.
- RMIA (Zarifzadeh et al. 2024): the share of population users z with LR(x, z) >= gamma, where
  LR(x, z) = [p_model(x) / p(x)] / [p_model(z) / p(z)].  Here x is all that a user shows: log
  p_model(x) is the sum over the user's texts.  p(x) comes from references that saw neither x nor z,
  by the paper's offline form: p(x) = ((1 + a) p_out(x) + (1 - a)) / 2, p_out the references' mean.
  The probability of whole texts is so small that any a < 1 would leave nothing of p_out, so the
  default is a = 1.  Where the target is better or worse than the references at everything, a sum
  mostly says how much a user wrote; with `per_token`, p(x) is the geometric mean per token.

As the z are the same for all x, the score of RMIA is a step function of p_model(x) / p(x) with as
many steps as there are z: below a false-positive rate of one in |z| it cannot tell anybody apart.
RMIA's population is not among those that are measured: a user compared with itself would bias the
scores.

A result is computed from members' text: internal, for `private/` and reports with `--internal`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from tacit.audit.roc import Floats, TprAtFpr, auc, roc_curve, tpr_at
from tacit.audit.users import (
    FRESH,
    Reference,
    UserScores,
    UserTexts,
    check_roles,
    check_texts,
    score_users,
)
from tacit.corpus.hashing import role_draw
from tacit.evaluation.scoring import Predictor
from tacit.privacy import checks

_RATES = (0.01, 0.001)  # false-positive rates at which the true-positive rate is stated
POPULATION_SHARE = 0.25  # of the non-members, where no population is given


@dataclass(frozen=True)
class Evidence:
    """What the attacked model and the references think of the same users' texts."""

    target: UserScores
    references: tuple[UserScores, ...] = ()

    def only(self, chosen: npt.NDArray[np.bool_]) -> Evidence:
        """The evidence about some of the users."""
        return Evidence(self.target.only(chosen), tuple(r.only(chosen) for r in self.references))


class Attack:
    """One score per user, higher for likelier members."""

    needs_references: ClassVar[bool] = True
    needs_population: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Under which results state it."""
        raise NotImplementedError

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        """One score for each user that the evidence is about, in its order."""
        raise NotImplementedError


class UserInference(Attack):
    """User inference: the mean log-ratio to the references, over a user's texts."""

    name = "user_inference"

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        _check_references(self, evidence.references)
        reference = np.mean([each.log_probs for each in evidence.references], axis=0)
        return evidence.target.text_means(evidence.target.log_probs - reference)


class LossAttack(Attack):
    """The loss attack: minus the mean loss per token."""

    name = "loss"
    needs_references = False

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        means: Floats = evidence.target.totals() / evidence.target.token_counts()
        return means


@dataclass(frozen=True)
class Rmia(Attack):
    """RMIA: the share of the population that a user's ratio beats by the factor gamma.

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

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        if population is None:
            raise ValueError(f"the attack {self.name} needs population users to compare with")
        compared = np.sort(self._log_ratios(population))
        ratios = self._log_ratios(evidence) - math.log(self.gamma)
        shares: Floats = np.searchsorted(compared, ratios, side="right") / len(compared)
        return shares

    def _log_ratios(self, evidence: Evidence) -> Floats:
        """log p_model(x) - log p(x) of every user."""
        _check_references(self, evidence.references)
        sizes = evidence.target.token_counts() if self.per_token else 1
        each = np.array([reference.totals() / sizes for reference in evidence.references])
        out = logsumexp(each, axis=0) - math.log(len(each))
        if self.a < 1:
            out = np.logaddexp(math.log((1 + self.a) / 2) + out, math.log((1 - self.a) / 2))
        ratios: Floats = evidence.target.totals() / sizes - out
        return ratios


# The first that can be run is the one whose AUC is stated: the best of several would be no honest
# figure.
ATTACKS: tuple[Attack, ...] = (
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


def gate_figure(attack: str, auc: float, interval: Sequence[float]) -> dict[str, Any]:
    """What `tacit.audit.gate` looks at: the AUC of one attack that was named in advance.

    The best of several attacks would be no honest figure.
    """
    return {"membership_auc": {"attack": attack, "value": auc, "interval": list(interval)}}


def measure(
    name: str,
    members: Floats,
    non_members: Floats,
    *,
    confidence: float,
    units: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
) -> AttackResult:
    """ROC, AUC and true-positive rates of an attack's scores.

    `units` says whose each score is, of members and of non-members, if a user has several.  The AUC
    uses all scores; a true-positive rate uses the first of each unit, since its interval needs
    independent scores.
    """
    inside, outside = members, non_members
    if units is not None:
        inside, outside = (
            scores[np.unique(each, return_index=True)[1]]
            for scores, each in zip((members, non_members), units, strict=True)
        )
    area = auc(members, non_members, confidence=confidence, units=units)
    return AttackResult(
        name,
        len(members),
        len(non_members),
        confidence,
        area.value,
        (area.low, area.high),
        tuple(tpr_at(inside, outside, rate, confidence=confidence) for rate in _RATES),
        roc_curve(members, non_members).thinned().as_points(),
    )


@dataclass(frozen=True)
class MembershipResult:
    """All attacks on one model.  Internal: it is computed from members' text."""

    texts: str  # which texts of the members were scored: fresh, training or all
    members: int
    non_members: int
    references: int
    confidence: float
    attacks: tuple[AttackResult, ...]

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"internal": True} | asdict(self)


def attack_users(
    target: Predictor,
    members: UserTexts,
    non_members: UserTexts,
    references: Sequence[Reference] = (),
    *,
    bos: int,
    attacks: Sequence[Attack] = ATTACKS,
    population: UserTexts | None = None,
    texts: str = FRESH,
    confidence: float = 0.95,
) -> MembershipResult:
    """Attack every user and count how often each attack is right.

    `texts` says which of the members' texts these are, for the record.  Without `population`, a
    quarter of the non-members, chosen by a hash of their ids, is RMIA's and is not measured by it.
    """
    check_texts(texts)
    if not attacks:
        raise ValueError("there is no attack to run; give at least one")
    for attack in attacks:
        if attack.needs_references:
            _check_references(attack, references)
    for reference in references:
        reference.check_fits(target)
    groups = {"members": members, "non-members": non_members}
    if population is not None:
        groups["population users"] = population
    check_roles(groups, references)
    needed = references if any(attack.needs_references for attack in attacks) else ()
    evidence = {
        role: Evidence(
            score_users(target, group, bos=bos),
            tuple(score_users(reference.model, group, bos=bos) for reference in needed),
        )
        for role, group in groups.items()
    }
    results = []
    for attack in attacks:
        outside, compared = evidence["non-members"], evidence.get("population users")
        if attack.needs_population and compared is None:
            outside, compared = _set_aside(outside)
        scores = (attack.scores(side, compared) for side in (evidence["members"], outside))
        results.append(measure(attack.name, *scores, confidence=confidence))
    return MembershipResult(
        texts, len(members), len(non_members), len(needed), confidence, tuple(results)
    )


def _set_aside(non_members: Evidence) -> tuple[Evidence, Evidence]:
    """Non-members to measure on, and a population."""
    users = non_members.target.users
    chosen = np.array([role_draw("population", user) < POPULATION_SHARE for user in users])
    if not chosen.any() or chosen.all():
        raise ValueError(
            f"{len(users)} non-members are too few to set a population aside for the attack rmia;"
            " give population users, or more non-members"
        )
    return non_members.only(~chosen), non_members.only(chosen)


def _check_references(attack: Attack, references: Sequence[object]) -> None:
    if not references:
        raise ValueError(
            f"the attack {attack.name} needs a reference model, trained on users that are not"
            " attacked; give at least one, or run the loss attack only"
        )
