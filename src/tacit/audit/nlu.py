"""The audit of a run of intents and slots: which models attack it, and where the result goes.

A shadow is a run on *another* corpus, trained in the same way.  A reference is a run on part of the
attacked run's own test utterances (`data.reference = "1/2"`), which is thereby taken out of what
the attack is measured on.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.audit.membership import Evidence, Rmia
from tacit.audit.nlu_attack import (
    DEFAULT_A,
    AskedUtterances,
    NluAttackResult,
    attack_utterances,
    evidence_of,
)
from tacit.audit.nlu_shadow import Shadow
from tacit.audit.roc import auc
from tacit.privacy import checks, durable
from tacit.runs.run import NluRun
from tacit.tasks.nlu import predictions
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.predictions import Scored
from tacit.tasks.nlu.utterances import AttackRoles, attack_roles, whole_set

_A_GRID = tuple(tenths / 10 for tenths in range(10, -1, -1))  # choices of RMIA's a

# Where a reference may differ from the attacked run: it has another part of the same set.  An
# utterance with a label that it does not know is left out.
_OF_A_PART = {"identity", "reference", "intents", "tags", "schema_is_counted"}

_Tell = Callable[[str, int, int], None]  # what is being scored, utterances done, of how many

_Trained = tuple[Path, int]  # a run, and the epoch after which its model is meant
_ATTACK_FILE = "attack.json"  # in the private folder of a run


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
) -> NluAttackResult:
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
        rmia=Rmia(a=_a(scoring, others, roles)) if roles else None,
        seed=seed,
        confidence=confidence,
    )
    row = {"run": str(target.path), "epoch": target.leg, **result.as_row()}
    text = json.dumps(row, indent=2, allow_nan=False) + "\n"
    durable.write_whole(target.directory.private / _ATTACK_FILE, text.encode(), mode=0o600)
    return result


def kept_result(run: NluRun) -> dict[str, Any] | None:
    """The JSON of the last attack on a run, or None; internal."""
    file = run.directory.private / _ATTACK_FILE
    if not file.exists():
        return None
    row: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return row


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
        return DEFAULT_A

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
) -> tuple[Evidence, Evidence, Evidence]:
    """Members, non-members and population, with one reference as the target."""
    inside, others = (_known(target, each) for each in (trained, outside))
    order = np.random.default_rng(0).permutation(len(others.target.users))
    is_population = np.zeros(len(order), dtype=bool)
    is_population[order[::2]] = True
    if not len(inside.target.users) or is_population.all():
        raise ValueError(
            "the references know the labels of too few utterances to choose a: give a instead"
        )
    return inside, others.only(~is_population), others.only(is_population)


def _known(target: int, scored: Sequence[Scored]) -> Evidence:
    """As one reference and the others see them: the utterances whose labels all know."""
    known = np.all([each.known for each in scored], axis=0)
    kept = [each.only(known) for each in scored]
    return evidence_of(kept.pop(target), kept)
