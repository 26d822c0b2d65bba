"""Membership inference against a model of intents and slots: was this utterance in its training?

The records of these attacks are utterances, and the likelihood of one is that of its labels.  What
an attack is, and how it is measured, is in `tacit.audit.membership`; here are

- `rmia` and `loss`, on the likelihood of the labels;
- `shadow` (`tacit.audit.nlu_shadow`): a classifier of sorted scores, learnt on a shadow, that is,
  a run on *another* corpus that was trained in the same way;
- `shadow_rescaled`: the same on features that are standardised by the target's own utterances.

A reference is a run on part of the attacked run's own test utterances (`data.reference = "1/2"`),
which is thereby taken out of what the attack is measured on.

Members and non-members are balanced by a seeded draw (Dupuy et al. 2021, section 4.1); all attacks
draw in the same order.  Left out, and counted by reason:

- utterances with a label that the target or a reference does not know, where an attack needs it;
- RMIA: whose words, or whose user, a reference was trained on or the population has.  A reference
  must have seen neither x nor z;
- duplicates, in one of two figures of each attack: texts that are on both sides.  A non-member with
  a member's words is none as far as the model can tell.  They are left out on *both* sides.  To
  drop the non-members alone would leave rare texts to one side, and a model that met no member
  would seem to know the others.

What p(x) means in RMIA is not the same as for users: the probability of a user's whole text is
tiny, while that of an utterance's labels is often near 1.  So the paper's offline form
p(x) = ((1 + a) p_out(x) + (1 - a)) / 2 says something for every a from 0 to 1: with a = 0, p(x)
stays between 1/2 and 1, and a label that no reference expects counts little; with a = 1,
p(x) = p_out(x), and a rare utterance wins by a huge ratio, which is often the weakest attack of
all.  Where no a is chosen it is 0.3.

All of it is computed from members' text: internal (design rule 5), for `private/` and reports with
`--internal`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tacit.audit.membership import (
    Likelihoods,
    LossAttack,
    Mask,
    Masks,
    MembershipResult,
    Rmia,
    ScoredAttack,
    check_disjoint,
    measure_attacks,
)
from tacit.audit.nlu_shadow import Shadow, ShadowAttack
from tacit.audit.results import read
from tacit.audit.roc import auc
from tacit.privacy import checks, durable
from tacit.runs.run import NluRun
from tacit.tasks.nlu import predictions
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.predictions import Scored
from tacit.tasks.nlu.utterances import AttackRoles, attack_roles, unit, whole_set

_ATTACK_FILE = "attack.json"  # in the private folder of a run
_DEFAULT_A = 0.3
_A_GRID = tuple(tenths / 10 for tenths in range(10, -1, -1))  # choices of RMIA's a

# Where a reference may differ from the attacked run: it has another part of the same set.  An
# utterance with a label that it does not know is left out.
_OF_A_PART = {"identity", "reference", "intents", "tags", "schema_is_counted"}

_Tell = Callable[[str, int, int], None]  # what is being scored, utterances done, of how many

_Trained = tuple[Path, int]  # a run, and the epoch after which its model is meant


@dataclass(frozen=True, eq=False)
class AskedUtterances:
    """Utterances that an attack is asked about, with what the target and each reference say."""

    utterances: tuple[Utterance, ...]
    target: Scored
    references: tuple[Scored, ...] = ()

    def __post_init__(self) -> None:
        for scored in (self.target, *self.references):  # one score would pass for that of all
            if len(scored) != len(self.utterances):
                raise ValueError(
                    f"{len(self.utterances)} utterances and scores of {len(scored)}: score each"
                    " utterance once, in the same order"
                )

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def users(self) -> set[str]:
        """All speakers that are known."""
        return {each.user for each in self.utterances if each.user is not None}

    def unknown_to_any(self) -> Mask:
        """Where the target or a reference does not know a label."""
        known: Mask = np.all([each.known for each in (self.target, *self.references)], axis=0)
        return ~known

    def said_among(self, others: Iterable[Utterance]) -> Mask:
        """Where some other utterance has the same words, whatever its labels."""
        words = {other.tokens for other in others}
        return np.array([utterance.tokens in words for utterance in self.utterances], dtype=bool)

    def met_among(self, others: Iterable[Utterance]) -> Mask:
        """Where some other utterance has the same words or is of the same user."""
        others = list(others)
        users = {other.user for other in others} - {None}
        same_user: Mask = np.array([each.user in users for each in self.utterances], dtype=bool)
        return self.said_among(others) | same_user


def attack_utterances(
    members: AskedUtterances,
    non_members: AskedUtterances,
    *,
    shadows: Sequence[Shadow] = (),
    population: AskedUtterances | None = None,
    seen_by_references: Sequence[Utterance] = (),
    a: float = _DEFAULT_A,
    seed: int = 0,
    confidence: float = 0.95,
) -> MembershipResult:
    """Run every attack for which there is what it needs: shadows, references.

    Args:
        members: utterances that the target was trained on.
        non_members: utterances that no model was trained on.
        shadows: what the shadow attacks are learnt from.
        population: what RMIA compares with, scored by the same references.
        seen_by_references: all that the references were trained on.
        a: RMIA's; take it from `choose_a` where there are several references.
        seed: of the draw that balances the sides.
        confidence: of the intervals.
    """
    checks.whole("seed", seed)
    check_disjoint({"members": members.users, "non-members": non_members.users})
    sides = (members, non_members)
    inside, outside = (_likelihoods(side.target, side.references) for side in sides)
    scored: list[ScoredAttack] = []
    if shadows:
        plain = ShadowAttack.train(shadows)
        for name, attack in {
            "shadow": plain,
            "shadow_rescaled": plain.rescaled(members.target, non_members.target),
        }.items():
            scores = attack.scores(members.target), attack.scores(non_members.target)
            scored.append(ScoredAttack(name, scores, {}))
    if members.references or non_members.references:
        compared, met = _population(sides, population, seen_by_references)
        rmia = Rmia(a=a)
        left_out = {
            "met_by_references_or_population": _on_both(sides, lambda side: side.met_among(met)),
            "unknown_labels": _on_both(sides, AskedUtterances.unknown_to_any),
        }
        with np.errstate(invalid="ignore"):  # NaN is for unknown labels, which are left out
            scores = rmia.scores(inside, compared), rmia.scores(outside, compared)
        scored.append(ScoredAttack(rmia.name, scores, left_out))
    loss = LossAttack()
    unknown = _on_both(sides, lambda side: ~side.target.known)
    scores = loss.scores(inside), loss.scores(outside)
    scored.append(ScoredAttack(loss.name, scores, {"unknown_labels": unknown}))
    figures, absent = measure_attacks(
        scored,
        (list(map(unit, members.utterances)), list(map(unit, non_members.utterances))),
        duplicates=(
            members.said_among(non_members.utterances),
            non_members.said_among(members.utterances),
        ),
        seed=seed,
        confidence=confidence,
    )
    with_users = all(each.user is not None for side in sides for each in side.utterances)
    return MembershipResult(
        members=len(members),
        non_members=len(non_members),
        references=len(members.references),
        confidence=confidence,
        attacks=figures,
        absent=absent,
        unit="user" if with_users else "text",
        shadows=tuple(shadow.name for shadow in shadows),
        population=len(population) if population else 0,
        a=a if members.references else None,
        seed=seed,
    )


def _likelihoods(target: Scored, references: Sequence[Scored]) -> Likelihoods:
    """log p of each utterance's labels, which count as one token; NaN where one is unknown."""
    ones = np.ones(len(target), np.int64)
    others = np.array([scored.log_likelihood for scored in references]).reshape(-1, len(target))
    return Likelihoods(target.log_likelihood, others, ones, ones)


def _on_both(
    sides: tuple[AskedUtterances, AskedUtterances], mask: Callable[[AskedUtterances], Mask]
) -> Masks:
    return mask(sides[0]), mask(sides[1])


def _population(
    sides: tuple[AskedUtterances, AskedUtterances],
    population: AskedUtterances | None,
    seen: Sequence[Utterance],
) -> tuple[Likelihoods, tuple[Utterance, ...]]:
    """What RMIA compares with, and the utterances that it must not be asked about."""
    references = len(sides[0].references)
    for name, group in (("non-members", sides[1]), ("population", population)):
        if group is not None and len(group.references) != references:
            raise ValueError(
                f"{references} references scored the members and {len(group.references)} the"
                f" {name}: let every reference score both"
            )
    if population is None or not seen:
        raise ValueError(
            "the attack rmia needs a population, and seen_by_references: what the references were"
            " trained on, since they must not have seen what is attacked"
        )
    unknown = population.unknown_to_any()
    if unknown.all():
        raise ValueError(
            f"the models know all labels of none of the {len(population)} population utterances:"
            " give others"
        )
    compared = _likelihoods(population.target, population.references).only(~unknown)
    return compared, (*seen, *population.utterances)


@dataclass
class Scoring:
    """What the models of runs say of utterances, with progress; each is asked once and remembered.

    So where one is used for attacks on several runs, shadows and references are computed once.
    """

    tell: _Tell | None = None
    _models: dict[_Trained, NluModel] = field(default_factory=dict)
    _kept: dict[tuple[_Trained, tuple[Utterance, ...]], Scored] = field(default_factory=dict)

    def score(self, run: NluRun, utterances: Sequence[Utterance], what: str) -> Scored:
        """The scores that the model of a run gives to utterances; `what` they are, for progress."""
        model = (run.path.resolve(), run.leg)
        key = (model, tuple(utterances))
        if key not in self._kept:
            if model not in self._models:
                self._models[model] = run.stored()
            progress = functools.partial(self.tell, what) if self.tell else None
            self._kept[key] = predictions.score(self._models[model], utterances, progress=progress)
        return self._kept[key]


def attack_run(
    run: str | Path,
    *,
    shadows: Sequence[str | Path] = (),
    references: Sequence[str | Path] = (),
    seed: int = 0,
    confidence: float = 0.95,
    scoring: Scoring | None = None,
) -> MembershipResult:
    """Attack the model of a run, and keep the result in its private folder.

    `scoring` may be shared between attacks on several runs.  Raises `ValueError` if a shadow was
    trained on the run's own data, or the references are not the parts of its test utterances.
    """
    checks.open_unit("confidence", confidence)  # a mistake in it is found before any work
    scoring = scoring or Scoring()
    target = NluRun.open(run)
    others = [NluRun.open(path) for path in references]
    _check_references(target, others)
    data = whole_set(target.experiment)
    roles = attack_roles(data.test, len(others)) if others else None
    non_members = roles.non_members if roles else data.test

    def asked(utterances: Sequence[Utterance], what: str) -> AskedUtterances:
        own = scoring.score(target, utterances, what)
        each = tuple(scoring.score(run, utterances, f"{what}, references") for run in others)
        return AskedUtterances(tuple(utterances), own, each)

    result = attack_utterances(
        asked(data.train, "members"),
        asked(non_members, "non-members"),
        shadows=[_shadow(Path(path), target, scoring) for path in shadows],
        population=asked(roles.population, "population") if roles else None,
        seen_by_references=roles.seen if roles else (),
        a=_a(scoring, others, roles) if roles else _DEFAULT_A,
        seed=seed,
        confidence=confidence,
    )
    result = replace(result, leg=target.leg)
    text = json.dumps(result.as_row(), indent=2, allow_nan=False) + "\n"
    durable.write_whole(target.directory.private / _ATTACK_FILE, text.encode())
    return result


def kept_result(run: NluRun) -> MembershipResult | None:
    """The last attack on a run, or None; internal."""
    return read(MembershipResult, run.directory.private / _ATTACK_FILE)


def _shadow(path: Path, target: NluRun, scoring: Scoring) -> Shadow:
    run = NluRun.open(path)
    if run.experiment.data.identity == target.experiment.data.identity:
        raise ValueError(
            f"the shadow {path} was trained on the attacked run's own data: a shadow is a model on"
            " another corpus (a reference, on utterances of the same, is given by --reference)"
        )
    data = run.data()
    return Shadow(
        data.name,
        scoring.score(run, data.train, f"{data.name}, members"),
        scoring.score(run, data.test, f"{data.name}, non-members"),
    )


def _check_references(target: NluRun, references: Sequence[NluRun]) -> None:
    same = target.experiment.data.model_dump(exclude=_OF_A_PART)
    for run in references:
        if run.experiment.data.model_dump(exclude=_OF_A_PART) != same:
            raise ValueError(
                f"the reference {run.path} was trained on other data than the attacked run: train"
                " it with the same [data] and a `reference`"
            )
    count = len(references)
    parts = sorted(run.experiment.data.reference or "" for run in references)
    expected = [f"{part}/{count}" for part in range(1, count + 1)]
    if parts != expected:
        raise ValueError(
            f"{count} references must have data.reference {', '.join(expected)}, got"
            f" {', '.join(part or 'none' for part in parts)}"
        )


def _a(scoring: Scoring, references: Sequence[NluRun], roles: AttackRoles) -> float:
    """RMIA's a, chosen on the references alone; with one of them there is nothing to choose by."""
    if len(references) < 2:
        return _DEFAULT_A

    def scores(utterances: Sequence[Utterance]) -> list[Scored]:
        return [scoring.score(run, utterances, "references") for run in references]

    return choose_a([scores(part) for part in roles.references], scores(roles.population))


def choose_a(trained: Sequence[Sequence[Scored]], outside: Sequence[Scored]) -> float:
    """RMIA's a: that with the largest mean AUC when each reference is attacked by the others.

    The target plays no part in it, or the figure would be that of an attack fitted to its own test.
    Of equals, the largest is taken.  `trained[r][s]` is what reference s says of the
    utterances that reference r was trained on, and no other was; `outside[s]` is what it says of
    utterances that none was trained on.
    """
    count = len(outside)
    if count < 2 or len(trained) != count or any(len(each) != count for each in trained):
        raise ValueError(
            f"a needs at least 2 references to be chosen, each scoring what every one was trained"
            f" on, got {count} references and {[len(each) for each in trained]}: give a instead"
        )
    cases = [_case(index, trained[index], outside) for index in range(count)]

    def mean_auc(a: float) -> float:
        attack = Rmia(a=a)
        areas = [
            auc(attack.scores(inside, population), attack.scores(others, population)).value
            for inside, others, population in cases
        ]
        return float(np.mean(areas))

    return max(_A_GRID, key=mean_auc)  # the first of equals


def _case(
    target: int, trained: Sequence[Scored], outside: Sequence[Scored]
) -> tuple[Likelihoods, Likelihoods, Likelihoods]:
    """Members, non-members and population, with one reference as the target."""
    inside, others = (_known(target, each) for each in (trained, outside))
    order = np.random.default_rng(0).permutation(len(others.target))
    is_population = np.zeros(len(order), dtype=bool)
    is_population[order[::2]] = True
    if not len(inside.target) or is_population.all():
        raise ValueError(
            "the references know the labels of too few utterances to choose a: give a instead"
        )
    return inside, others.only(~is_population), others.only(is_population)


def _known(target: int, scored: Sequence[Scored]) -> Likelihoods:
    """As one reference and the others see them: the utterances whose labels all know."""
    others = [*scored]
    evidence = _likelihoods(others.pop(target), others)
    return evidence.only(np.all([each.known for each in scored], axis=0))
