"""Attacks that ask of every user: was this person's text in the training?

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import logsumexp

from tacit.audit.user_scores import Floats, UserScores
from tacit.privacy import checks


@dataclass(frozen=True)
class Evidence:
    """What the attacked model and the references think of the same users' texts."""

    target: UserScores
    references: tuple[UserScores, ...] = ()

    def only(self, chosen: np.ndarray) -> Evidence:
        return Evidence(self.target.only(chosen), tuple(r.only(chosen) for r in self.references))


class Attack(Protocol):
    """One score per user."""

    needs_references: ClassVar[bool]
    needs_population: ClassVar[bool]

    @property
    def name(self) -> str: ...

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats: ...


@dataclass(frozen=True)
class UserInference:
    """The mean log-ratio to the references, over a user's texts."""

    name: ClassVar[str] = "user_inference"
    needs_references: ClassVar[bool] = True
    needs_population: ClassVar[bool] = False

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        _check_references(self, evidence)
        reference = np.mean([each.log_probs for each in evidence.references], axis=0)
        return evidence.target.text_means(evidence.target.log_probs - reference)


@dataclass(frozen=True)
class LossAttack:
    """Minus the mean loss per token."""

    name: ClassVar[str] = "loss"
    needs_references: ClassVar[bool] = False
    needs_population: ClassVar[bool] = False

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        found: Floats = evidence.target.totals() / evidence.target.token_counts()
        return found


@dataclass(frozen=True)
class Rmia:
    """The share of the population that a user's ratio beats by the factor gamma."""

    needs_references: ClassVar[bool] = True
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
        return "rmia_per_token" if self.per_token else "rmia"

    def scores(self, evidence: Evidence, population: Evidence | None = None) -> Floats:
        if population is None:
            raise ValueError(f"the attack {self.name} needs population users to compare with")
        theirs = np.sort(self._log_ratios(population))
        beaten = np.searchsorted(
            theirs, self._log_ratios(evidence) - math.log(self.gamma), side="right"
        )
        shares: Floats = beaten / len(theirs)
        return shares

    def _log_ratios(self, evidence: Evidence) -> Floats:
        """log p_model(x) - log p(x) of every user."""
        _check_references(self, evidence)
        sizes = evidence.target.token_counts() if self.per_token else 1
        each = np.array([reference.totals() / sizes for reference in evidence.references])
        out = logsumexp(each, axis=0) - math.log(len(each))
        if self.a < 1:
            out = np.logaddexp(math.log((1 + self.a) / 2) + out, math.log((1 - self.a) / 2))
        ratios: Floats = evidence.target.totals() / sizes - out
        return ratios


ATTACKS: tuple[Attack, ...] = (UserInference(), LossAttack(), Rmia(), Rmia(per_token=True))


def _check_references(attack: Attack, evidence: Evidence) -> None:
    if not evidence.references:
        raise no_reference(attack)


def no_reference(attack: Attack) -> ValueError:
    return ValueError(
        f"the attack {attack.name} needs a reference model, trained on users that are not attacked;"
        " give at least one, or run the loss attack only"
    )
