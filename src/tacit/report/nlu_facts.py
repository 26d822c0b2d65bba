"""All that a report says about an intent and slot model's run: report.json, and so the page.

Guarantee: as of `facts.gather`; nothing of the private folder without `internal`, no clock, no host
and no path.  The factors alpha_k are left out where they come from people's records without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tacit.privacy.events import Gaussian, PoissonGaussian
from tacit.privacy.ledger import Ledger
from tacit.report import nlu_inputs
from tacit.report.common_facts import (
    KIND,
    NEVER_CLAIMED,
    charged_again,
    claim_facts,
    file_facts,
    ledger_facts,
    versions,
)
from tacit.report.epsilon import Tell, over_releases
from tacit.report.nlu_inputs import Result
from tacit.report.nlu_warnings import found_in
from tacit.runs.export import without_folder
from tacit.runs.run import NluRun
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.metrics import by_intent, total
from tacit.tasks.nlu.model_files import StoredModel
from tacit.tasks.nlu.plan import epoch_steps
from tacit.tasks.nlu.predictions import predict
from tacit.tasks.nlu.scaling import read as read_scaling

NLU_MODEL = "intent and slot model"
FILES = ("nlu.toml", "ledger.jsonl", "metrics.jsonl", "scaling.json", "result.json")
NOT_ATTACKED = "not attacked: run `tacit nlu attack RUN`"
SCALINGS = {
    "none": "1 for every layer",
    "architecture": "by the layers' sizes, which are public",
    "public": "the first gradient of a made-up batch, which is public",
    "private": "the first gradient of people's records under noise of its own, which is charged",
    "first-gradient": "the first gradient of people's records without any noise: not private",
}


def gather(run: NluRun, *, internal: bool = False, tell: Tell | None = None) -> dict[str, Any]:
    """The facts, in the order of the page."""
    result = nlu_inputs.result(run.directory)  # first: all else that reads it takes it for whole
    metrics = nlu_inputs.metrics(run.directory)
    attack = nlu_inputs.attack(run.directory) if internal else None
    guarantee, stored = run.guarantee(), run.stored()
    warnings = found_in(run, guarantee, stored.encoder.provenance, attack)
    facts = {
        "kind": KIND,
        "of": NLU_MODEL,
        "internal": internal,
        "run": _about(run, result, stored),
        "claim": claim_facts(guarantee, run.ledger),
        "as_printed": run.as_printed(),
        "other_runs": guarantee.others or None,
        "released": _released(run),
        "warnings": [asdict(warning) for warning in warnings],
        "epsilon": over_releases(guarantee, run.ledger, tell=tell),
        "metrics": [row.model_dump(mode="json") for row in metrics],
        "test": _test(run, result, stored, tell),
        "not_claimed": _not_claimed(run.ledger.header.unit),
        "ledger": ledger_facts(run.ledger),
        "epochs_charged_again": _epochs_charged_again(run),
        "versions": versions(),
        "experiment": without_folders(run.experiment).to_toml(),
        "files": file_facts(run.directory, FILES),
    }
    if internal:
        facts["membership"] = nlu_inputs.attack_facts(attack)
        facts["not_attacked"] = None if attack else NOT_ATTACKED
    return facts


def _about(run: NluRun, result: Result | None, stored: StoredModel) -> dict[str, Any]:
    experiment, about = without_folders(run.experiment), run.experiment.about
    return {
        "directory": run.path.resolve().name,
        "name": experiment.name,
        "paper": about.paper or None,
        "section": about.section or None,
        "says": about.says or None,
        "epochs_done": run.leg,
        "epochs_planned": experiment.training.epochs,
        "complete": result is not None,
        "ending": result.ending if result else None,
        "simulation": run.is_simulation,
        "data": experiment.data.source,
        "split": experiment.data.split,
        "reference": experiment.data.reference,
        "model": experiment.model.name,
        "pretrained": experiment.model.pretrained or None,
        "parameters": sum(values.numel() for values in stored.model.parameters()),
        "vocabulary": without_folder(stored.encoder.provenance),
        "intents": len(stored.labels.intents),
        "tags": len(stored.labels.tags),
    }


def _released(run: NluRun) -> dict[str, Any]:
    """What the steps were, under the paper's letters, and the multipliers that were charged."""
    training, noise = run.experiment.training, run.experiment.noise
    is_poisson, is_edp = training.method in PRIVATE, training.method.startswith("edp-sgd")
    population = noise.population or 0
    multipliers = _multipliers(run.ledger)
    scaling = noise.scaling if is_edp else None
    return {
        "method": training.method,
        "steps_of_epoch": epoch_steps(run.experiment, population) if is_poisson else None,
        "batch_size": training.batch_size,
        "sampling_prob": training.batch_size / population if is_poisson else None,
        "clip_norm": noise.clip_norm if training.method != "sgd" else None,
        "noise_multiplier": noise.noise_multiplier,
        "noise_over_sensitivity": [max(multipliers), min(multipliers)] if multipliers else None,
        "decay": noise.decay,
        "decay_rate": noise.decay_rate,
        "scaling": scaling,
        "scaling_source": SCALINGS[scaling] if scaling else None,
        "largest_scale": (
            read_scaling(run.path).largest if scaling and scaling != "first-gradient" else None
        ),
        "scaling_noise_multiplier": noise.scaling_noise_multiplier
        if scaling == "private"
        else None,
        "workers": training.workers,
        "micro_batches": (training.micro_batches or training.workers) if is_edp else None,
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
    }


def _multipliers(ledger: Ledger) -> list[float]:
    """Noise stddev / sensitivity of what was charged, steps or epochs."""
    return [
        entry.event.noise_multiplier
        for entry in ledger.entries
        if entry.kind == "round" and isinstance(entry.event, Gaussian | PoissonGaussian)
    ]


def _epochs_charged_again(run: NluRun) -> list[int]:
    """The ledger's rounds are steps, or the first step of an epoch that is one release."""
    again, experiment = charged_again(run.ledger), run.experiment
    if experiment.training.method in PRIVATE:
        in_epoch = epoch_steps(experiment, experiment.noise.population or 1)
        return sorted({step // in_epoch + 1 for step in again})
    starts = sorted({entry.round for entry in run.ledger.entries if entry.kind == "round"})
    return [starts.index(step) + 1 for step in again]


def _test(
    run: NluRun, result: Result | None, stored: StoredModel, tell: Tell | None
) -> dict[str, Any] | None:
    """The metrics on test, which a finished run has, and the same by intent where it can be."""
    if result is None:
        return None
    whole = result.test.model_dump(mode="json")
    try:
        utterances = run.data().test
    except (OSError, ValueError):  # moved, or changed: the whole is known all the same
        return {**whole, "by_intent": None}
    answers = predict(
        stored.model,
        stored.encoder,
        stored.labels,
        utterances,
        progress=(lambda done, of: tell("test utterances", done, of)) if tell else None,
    )
    table = by_intent(utterances, answers)
    summed = total(table.values()).as_row()
    is_same = {name: summed[name] for name in whole} == whole
    rows = [{"intent": intent, **_shown(found.as_row(), whole)} for intent, found in table.items()]
    return {**whole, "by_intent": rows if is_same else None}


def _shown(row: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _not_claimed(unit: str) -> list[str]:
    of_whom = "the utterances of one person" if unit == "record" else "a household"
    return [
        f"Anything about a group: the guarantee is for one {unit} at a time, and for k {unit}s,"
        f" such as {of_whom}, epsilon is up to k times as large, and delta grows even more.",
        f"That the model says nothing about anybody: what is true of many {unit}s it may learn,"
        f" whether or not a certain one of them takes part.",
        *NEVER_CLAIMED,
        "That no utterance can be told to be a training one because an attack failed: it shows what"
        " one attacker finds, and cannot show that another would find nothing.",
    ]


def without_folders(experiment: NluExperiment) -> NluExperiment:
    """Whole paths shortened to the names at their ends: they tell about a machine and its owner."""
    model = experiment.model
    return experiment.changed(
        data={"source": without_folder(experiment.data.source)},
        model={
            "vocabulary": without_folder(model.vocabulary),
            "vectors": without_folder(model.vectors),
            "pretrained": without_folder(model.pretrained),
        },
    )
