"""How the training of an intent and slot model begins: a new run, or one that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.people_ledger import PeopleLedger
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import Indices
from tacit.models.understanding import UnderstandingModel
from tacit.privacy import durable
from tacit.privacy.events import NonPrivate
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.randomness import RunKey
from tacit.runs.checkpoints import Checkpoint
from tacit.tasks.nlu import model_files, plan, scaling
from tacit.tasks.nlu.attack_roles import AttackRoles, attack_roles
from tacit.tasks.nlu.data import NLUData, Utterance
from tacit.tasks.nlu.declarations import commitment, header_of, recognise
from tacit.tasks.nlu.directory import NluDirectory
from tacit.tasks.nlu.encoding import EncodedUtterances, Encoder, Labels, encode
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit.tasks.nlu.layouts import load_nlu
from tacit.tasks.nlu.model_files import StoredModel
from tacit.tasks.nlu.starting import starting_model
from tacit.tasks.nlu.steps import AttemptStreams, Stepper
from tacit.tokenizers.provenance import why_void

BRANCH = "main"


@dataclass(frozen=True)
class Job:
    """All that a worker needs; workers are sent it whole."""

    experiment: NluExperiment
    stored: StoredModel
    optimizer: dict[str, NDArray[Any]]
    scaling: LayerScaling
    utterances: EncodedUtterances
    units: Sequence[Indices] | None
    epoch: int  # the first one to run
    key: RunKey

    @property
    def unit_count(self) -> int:
        return len(self.utterances) if self.units is None else len(self.units)

    @property
    def epoch_steps(self) -> int:
        return plan.epoch_steps(self.experiment, self.unit_count)

    def stepper(self) -> Stepper:
        """This worker's part, with the weights and the optimizer of the last checkpoint."""
        training = self.experiment.training
        return Stepper(
            plan.method_of(self.experiment, self.scaling, self.unit_count),
            gradients_of(self.experiment, self.stored.model, self.utterances, self.units),
            training,
            training.epochs * self.epoch_steps,
            self.optimizer,
        )

    def streams(self, attempt: int) -> AttemptStreams:
        return AttemptStreams(self.key, BRANCH, attempt)


@dataclass(frozen=True)
class Opened:
    """A run that can be trained."""

    directory: NluDirectory
    experiment: NluExperiment
    data: NLUData
    job: Job
    ledger: Ledger


def created(experiment: NluExperiment, run: str | Path) -> Opened:
    """A new run directory with its first checkpoint."""
    path = Path(run)
    NluDirectory.check_free(path)
    data = data_of(experiment)
    start = starting_model(experiment, data)
    void = _why_void(experiment, start.encoder)
    asked = experiment.privacy.accountant
    experiment = plan.resolved(experiment, data)
    labels = Labels(experiment.data.intents, experiment.data.tags)
    model = start.build(labels)
    utterances = encode(start.encoder, labels, data.train)
    key = RunKey.generate() if experiment.seed is None else RunKey.from_seed(experiment.seed)
    gradients = gradients_of(experiment, model, utterances, units_of(experiment, data))
    people = "" if is_generated(experiment) else recognise(without_reference(experiment))
    header = header_of(experiment, data, people, key, asked)
    if people:  # what their budget could not cover at all is refused before any work
        first = range(plan.epoch_steps(experiment, len(gradients)))
        charges = plan.method_of(experiment, LayerScaling.none((1,)), len(gradients)).charges(first)
        PeopleLedger.open(people).refuse_hopeless(header, [event for _, event in charges])
    stored = StoredModel(model, start.encoder, labels, (people or data.identity,))

    def fill(made: NluDirectory) -> None:
        with Ledger.create(made.ledger_file, header) as ledger:
            _witness(ledger)  # before the noise of the scaling factors is drawn
            plan_hash = experiment.fingerprint
            if void:
                ledger.charge([Charge("vocabulary", 0, 0, NonPrivate(void), plan_hash)])
            if (event := scaling.release_of(experiment.noise)) is not None:
                ledger.charge([Charge("scaling", 0, 0, event, plan_hash)])
            head = ledger.head
        made.write_scaling(_scaling(experiment, gradients, start.encoder, labels, key))
        durable.write_whole(made.experiment_file, experiment.to_toml().encode())
        key.save(made.key_file)
        made.checkpoints.write(
            model_files.to_bytes(stored),
            Checkpoint(0, made.checkpoints.model_file(0), {}, (), 0, head, experiment.fingerprint),
        )

    return opened(NluDirectory.create(path, fill), experiment, data)


def resumed(experiment: NluExperiment | None, run: str | Path) -> Opened:
    """A run that was interrupted, at its last checkpoint; `experiment` must be its own."""
    directory = NluDirectory.open(run)
    if (result := directory.result()) is not None:
        if not result.get("key_kept"):
            directory.destroy_key()  # in case the end was cut short
        raise ValueError(f"the run {directory.path} is complete after {result['epochs']} epochs")
    header = Ledger.header_at(directory.ledger_file)
    directory.refuse_edited(header)
    there = directory.experiment()
    data = data_of(there)
    if data.identity != there.data.identity:
        raise ValueError(
            f"{there.data.source} is not the set that {directory.path} was started on, so the run"
            " cannot go on with it"
        )
    if not directory.key_is_gone and commitment(data, directory.key()) != header.data:
        raise ValueError(
            f"the utterances of {there.data.source} are not as they were when {directory.path} was"
            " started on them; train anew in another directory"
        )
    if experiment is not None:
        wanted = plan.resolved(experiment, data)
        there.refuse_another(wanted, directory.path, "name another directory")
    return opened(directory, there, data)


def opened(directory: NluDirectory, experiment: NluExperiment, data: NLUData) -> Opened:
    """Everything that the epochs need, from the last checkpoint; locked before anything else."""
    last = directory.checkpoints.read()
    ledger = Ledger.open(directory.ledger_file, last.head, repair_torn_tail=True)
    try:
        ledger.lock()
        _witness(ledger)
        directory.forget_after(last.round)
        stored = model_files.load(last.model_file)
        job = Job(
            experiment,
            stored,
            last.optimizer,
            directory.scaling(),
            encode(stored.encoder, stored.labels, data.train),
            units_of(experiment, data),
            last.round,
            directory.key(),
        )
    except BaseException:
        ledger.close()
        raise
    return Opened(directory, experiment, data, job, ledger)


def ended_without_result(experiment: NluExperiment | None, run: str | Path) -> str | None:
    """How a run ended that was cut short after its key was destroyed; None for any other."""
    directory = NluDirectory.open(run)
    if directory.result() is not None or not directory.key_is_gone:
        return None
    there = directory.experiment()
    if experiment is not None:
        wanted = plan.resolved(experiment, data_of(there))
        there.refuse_another(wanted, directory.path, "name another directory")
    epochs = there.training.epochs
    return "complete" if directory.checkpoints.read().round >= epochs else "its budget ended it"


def _witness(ledger: Ledger) -> None:
    """Let the people's ledger know of every charge, or refuse a run that it knows better."""
    if ledger.header.people:
        PeopleLedger.open(ledger.header.people).witness(ledger)


def is_generated(experiment: NluExperiment) -> bool:
    """Whether the utterances were made by a program, so that they are nobody's."""
    return experiment.data.source.partition(":")[0] == "generated"


def data_of(experiment: NluExperiment) -> NLUData:
    """The utterances that an experiment names."""
    data = without_reference(experiment)
    if experiment.data.reference is None:
        return data
    number, _, of = experiment.data.reference.partition("/")
    if int(number) > int(of):
        raise ValueError(
            f"data.reference must be from 1/{of} to {of}/{of}, got {experiment.data.reference}"
        )
    roles = roles_of(data, int(of))
    return NLUData(
        data.name,
        roles.references[int(number) - 1],
        data.valid,
        roles.non_members,
        split=f"{data.split}, reference {experiment.data.reference}",
        unseen_intents="keep",
    )


def without_reference(experiment: NluExperiment) -> NLUData:
    """The same set as a model has it that is no reference."""
    wanted = experiment.data
    return load_nlu(
        wanted.source,
        split=wanted.split,
        test_fold=wanted.test_fold,
        together=wanted.together,
        user_column=wanted.user_column,
        unseen_intents=wanted.unseen_intents,
    )


def roles_of(data: NLUData, references: int) -> AttackRoles:
    """What each of the test utterances is for, in an attack with so many references."""
    return attack_roles(data.test, references)


def gradients_of(
    experiment: NluExperiment,
    model: UnderstandingModel,
    utterances: EncodedUtterances,
    units: Sequence[Indices] | None,
) -> UtteranceGradients:
    """What a worker computes with, for the experiment's method."""
    if experiment.training.method == "dp-sgd":
        from tacit.tasks.nlu.example_gradients import ExampleGradients

        return ExampleGradients(FlatModel(model), utterances, experiment.training.examples)
    return UtteranceGradients(FlatModel(model), utterances, units)


def units_of(experiment: NluExperiment, data: NLUData) -> Sequence[Indices] | None:
    """The places of each user's utterances in train; None where the unit is a record."""
    if experiment.training.unit == "record":
        return None
    places: dict[str, list[int]] = {}
    for place, utterance in enumerate(data.train):
        places.setdefault(_user(utterance), []).append(place)
    return [np.array(found, np.int64) for found in places.values()]


def _user(utterance: Utterance) -> str:
    assert utterance.user is not None
    return utterance.user


def _scaling(
    experiment: NluExperiment,
    gradients: UtteranceGradients,
    encoder: Encoder,
    labels: Labels,
    key: RunKey,
) -> LayerScaling:
    """alpha_k, by the experiment's choice."""
    noise, sizes = experiment.noise, gradients.flat.sizes
    streams = AttemptStreams(key, BRANCH, 0)
    if experiment.training.method not in ("edp-sgd", "edp-sgd-paper"):
        return LayerScaling.none(sizes)
    if noise.scaling == "public":
        return scaling.public_scaling(gradients.flat, encoder, labels)
    if noise.scaling == "private":
        return scaling.private_scaling(gradients, noise.scaling_noise_multiplier, streams)
    if noise.scaling == "first-gradient":
        method = plan.method_of(experiment, LayerScaling.none(sizes), len(gradients))
        [batches] = method.draws(range(1), len(gradients), streams)
        return scaling.first_gradient_scaling(gradients, np.concatenate(batches))
    found = plan.layer_scaling_without_data(noise.scaling, sizes)
    assert found is not None
    return found


def _why_void(experiment: NluExperiment, encoder: Encoder) -> str | None:
    """Why a vocabulary leaves no guarantee (design rule 9); it has to be asked for in words."""
    reason = why_void(encoder.provenance)
    if reason and experiment.training.method in PRIVATE and not experiment.model.accept_oracle:
        raise ValueError(
            f"the model's guarantee would be void, because {reason}: name a public text or list of"
            " words as model.vocabulary, or set model.accept_oracle = true"
        )
    return reason
