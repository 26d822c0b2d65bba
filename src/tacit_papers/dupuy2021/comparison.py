"""Ways of training an intent and slot model side by side: Tables 1 and 2 of Dupuy et al. 2021.

Every variant of a recipe is trained into a folder of its own, attacked, and becomes a row.  Runs
that are there are not repeated, and one that was interrupted goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.audit.membership import AttackResult
from tacit.audit.nlu import Scoring, attack_run, kept_result
from tacit.privacy.guarantee import finite
from tacit.runs.directory import RunDirectory
from tacit.runs.run import NluRun
from tacit.tasks.nlu.experiment import NluExperiment
from tacit_papers.dupuy2021.printed import figures_of_run, published_epsilon_of_run

_SGD = "sgd"
_LEAST_SLOTS = 0.1  # of all slots: a model that finds fewer has not begun to learn them
Train = Callable[[NluExperiment | None, Path, bool, str], None]  # and whether to resume; its name


@dataclass(frozen=True)
class MethodRow:
    """One way of training: how good, how easily attacked, and what may be claimed."""

    name: str
    method: str
    decay: str
    semantic_error_rate: float
    intent_accuracy: float
    slot_f1: float
    auc: float | None  # of the paper's attack
    auc_interval: tuple[float, float] | None
    rmia_auc: float | None
    rmia_interval: tuple[float, float] | None
    epsilon: float | None  # None: infinite
    delta: float
    published_epsilon: float | None  # what the paper would print for eDP-SGD; None: infinite
    conditional_epsilon: float | None  # the same algorithm if its scaling were public

    @property
    def published_log10_epsilon(self) -> float | None:
        """As Table 1 has it."""
        return math.log10(self.published_epsilon) if self.published_epsilon else None

    def as_row(self) -> dict[str, Any]:
        """The row for scripts."""
        return vars(self) | {"published_log10_epsilon": self.published_log10_epsilon}


def compare_methods(
    experiments: Mapping[str, NluExperiment],
    out: Path,
    train: Train,
    *,
    shadows: Sequence[Path] = (),
    references: Sequence[Path] = (),
    any_baseline: bool = False,
    tell: Callable[[str, int, int], None] | None = None,
) -> list[MethodRow]:
    """Train and attack whatever is not done yet, and return a row for each experiment.

    Args:
        experiments: by name, which is also that of the run's folder.
        out: the folder of all runs.
        train: trains an experiment into a folder, or goes on with the run that is in it.
        shadows: runs on other corpora, for the paper's attack.
        references: runs with data.reference, for RMIA.
        any_baseline: go on if plain SGD has learned nothing; else that is refused.
        tell: is told how many utterances are scored, and of how many.

    Raises:
        ValueError: plain SGD has learned nothing that the others could be compared with; before any
            variant behind it is trained.
    """
    rows, scoring = [], Scoring(tell)
    for name, experiment in experiments.items():
        path = out / name
        begun = (path / "experiment.toml").is_file()
        if not (begun and RunDirectory(path).result() is not None):
            train(experiment, path, begun, name)
        run = NluRun.open(path)
        is_baseline = experiment.training.method == _SGD and len(experiments) > 1
        if is_baseline and not any_baseline and (why := why_untrained(run)):
            raise ValueError(
                f"{name} is what the other variants are compared with, and it {why}: train it for"
                " longer in another folder (--set training.epochs=30), or say --any-baseline"
            )
        if (shadows or references) and kept_result(run) is None:
            attack_run(path, shadows=shadows, references=references, scoring=scoring)
        rows.append(row_of(name, run))
    return rows


def row_of(name: str, run: NluRun) -> MethodRow:
    """What a finished run has to show."""
    result, attack = run.directory.result(), kept_result(run)
    if result is None:
        raise ValueError(f"the run {run.path} is not complete; go on with it by --resume")
    stated, guarantee = attack.stated if attack else {}, run.guarantee()
    printed, published = figures_of_run(run), published_epsilon_of_run(run)
    test = result["test"]
    return MethodRow(
        name,
        run.experiment.training.method,
        run.experiment.noise.decay,
        test["semantic_error_rate"],
        test["intent_accuracy"],
        test["slot_f1"],
        *_auc(stated.get("paper")),
        *_auc(stated.get("strongest")),
        epsilon=finite(guarantee.value),
        delta=guarantee.delta,
        published_epsilon=finite(published) if published is not None else None,
        conditional_epsilon=finite(printed[1].epsilon) if printed else None,
    )


def why_untrained(run: NluRun) -> str | None:
    """What a model has not learned, in words; None if it has learned intents and slots.

    That is: it finds less than a tenth of the slots, or is right about no more intents than one who
    always says the commonest.  What a training costs cannot be told from such a model.
    """
    result = run.directory.result()
    assert result is not None, "the run is complete"
    test, metrics = run.data().test, result["test"]
    found, slots = metrics["correct_slots"], metrics["reference_slots"]
    if found < _LEAST_SLOTS * slots:
        return f"has learned nothing: it finds {found:,} of {slots:,} slots"
    commonest = max(Counter(utterance.intent for utterance in test).values()) / len(test)
    if metrics["intent_accuracy"] <= commonest < 1:
        return (
            f"has learned nothing: it is right about {metrics['intent_accuracy']:.1%} of the"
            f" intents, and the commonest is {commonest:.1%} of them"
        )
    return None


def relative(value: float | None, base: float | None) -> float | None:
    """The change in percent of the baseline, as the paper prints it."""
    return None if value is None or not base else 100 * (value - base) / base


def baseline(rows: Sequence[MethodRow]) -> MethodRow | None:
    """The row that the others are compared with."""
    return next((row for row in rows if row.method == _SGD), None)


def _auc(stated: AttackResult | None) -> tuple[float | None, tuple[float, float] | None]:
    """The area under an attack's ROC curve and its interval."""
    return (None, None) if stated is None else (stated.auc, stated.auc_interval)
