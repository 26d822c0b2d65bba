"""The membership attack on a run: which models, which utterances, and where the result goes.

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

from tacit.audit.attacks import Rmia
from tacit.audit.nlu_attack import attack
from tacit.audit.nlu_attack_result import NluAttackResult
from tacit.audit.nlu_attack_rmia import DEFAULT_A, chosen_a
from tacit.audit.nlu_attack_shadow import Shadow
from tacit.privacy import durable
from tacit.runs.run import NluRun
from tacit.tasks.nlu.attack_candidates import AttackRoles, Candidates, attack_roles
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.model_files import StoredModel
from tacit.tasks.nlu.predictions import scored
from tacit.tasks.nlu.scored import Scored
from tacit.tasks.nlu.utterances import whole_set

# What a reference may have otherwise than the attacked run: it has another part of the same set.
# Where it does not know a label, an utterance with it is left out.
_OF_A_PART = {"identity", "reference", "intents", "tags", "schema_is_counted"}

Tell = Callable[[str, int, int], None]  # what is being scored, utterances done, of how many
Scorer = Callable[[Sequence[Utterance], str], Scored]  # and what they are


@dataclass
class Scoring:
    """Scores by run, with progress.

    Where one is used for attacks on several runs, what shadows and references say is computed once.
    """

    tell: Tell | None = None
    _kept: dict[tuple[Path, tuple[Utterance, ...]], Scored] = field(default_factory=dict)

    def by_helper(self, run: NluRun) -> Scorer:
        """What the model of a shadow or a reference says of utterances."""
        score = self.by(run)

        def kept(utterances: Sequence[Utterance], what: str) -> Scored:
            key = (run.path.resolve(), tuple(utterances))
            if key not in self._kept:
                self._kept[key] = score(utterances, what)
            return self._kept[key]

        return kept

    def by(self, run: NluRun) -> Scorer:
        """What the model of a run says of utterances."""
        loaded = functools.cache(run.stored)
        return lambda utterances, what: self._score(loaded(), utterances, what)

    def _score(self, stored: StoredModel, utterances: Sequence[Utterance], what: str) -> Scored:
        told = self.tell
        return scored(
            stored.model,
            stored.encoder,
            stored.labels,
            utterances,
            progress=(lambda done, of: told(what, done, of)) if told else None,
        )


def attack_run(
    run: str | Path,
    *,
    shadows: Sequence[str | Path] = (),
    references: Sequence[str | Path] = (),
    seed: int = 0,
    confidence: float = 0.95,
    scoring: Scoring | None = None,
) -> NluAttackResult:
    """Attack the model of a run, and keep the result in its private folder."""
    scoring = scoring or Scoring()
    target = NluRun.open(run)
    others = [NluRun.open(path) for path in references]
    _check_references(target, others)
    data = whole_set(target.experiment)
    roles = attack_roles(data.test, len(others)) if others else None
    members = data.train
    non_members = roles.non_members if roles else data.test
    own, scorers = scoring.by(target), [scoring.by_helper(other) for other in others]

    def candidates(utterances: Sequence[Utterance], what: str) -> Candidates:
        each = tuple(score(utterances, f"{what}, references") for score in scorers)
        return Candidates(tuple(utterances), own(utterances, what), each)

    result = attack(
        candidates(members, "members"),
        candidates(non_members, "non-members"),
        shadows=[_shadow(Path(path), target, scoring) for path in shadows],
        population=candidates(roles.population, "population") if roles else None,
        seen_by_references=roles.seen if roles else (),
        rmia=Rmia(a=_a(scorers, roles)) if roles else None,
        seed=seed,
        confidence=confidence,
    )
    row = {"run": str(target.path), "epoch": target.leg, **result.as_row()}
    text = json.dumps(row, indent=2, allow_nan=False) + "\n"
    durable.write_whole(target.directory.private / "attack.json", text.encode(), mode=0o600)
    return result


def kept_result(run: NluRun) -> dict[str, Any] | None:
    """What the last attack on a run found; internal."""
    file = run.path / "private" / "attack.json"
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _shadow(path: Path, target: NluRun, scoring: Scoring) -> Shadow:
    run = NluRun.open(path)
    if run.experiment.data.identity == target.experiment.data.identity:
        raise ValueError(
            f"the shadow {path} was trained on the attacked run's own data: a shadow is a model on"
            " another corpus (a reference, on utterances of the same, is given by --reference)"
        )
    data, score = run.data(), scoring.by_helper(run)
    return Shadow(
        data.name,
        score(data.train, f"{data.name}, members"),
        score(data.test, f"{data.name}, non-members"),
    )


def _check_references(target: NluRun, references: Sequence[NluRun]) -> None:
    count = len(references)
    found = sorted(run.experiment.data.reference or "" for run in references)
    wanted = [f"{place}/{count}" for place in range(1, count + 1)]
    same = target.experiment.data.model_dump(exclude=_OF_A_PART)
    for run in references:
        if run.experiment.data.model_dump(exclude=_OF_A_PART) != same:
            raise ValueError(
                f"the reference {run.path} was trained on other data than the attacked run: train"
                " it with the same [data] and a `reference`"
            )
    if found != wanted:
        raise ValueError(
            f"{count} references must have data.reference {', '.join(wanted)}, got"
            f" {', '.join(each or 'none' for each in found)}"
        )


def _a(scorers: Sequence[Scorer], roles: AttackRoles) -> float:
    """Chosen on the references alone; with one of them there is nothing to choose by."""
    if len(scorers) < 2:
        return DEFAULT_A
    trained = [[score(part, "references") for score in scorers] for part in roles.references]
    outside = [score(roles.population, "references") for score in scorers]
    return chosen_a(trained, outside)
