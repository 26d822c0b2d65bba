"""Intent and slot models as a task: what the spine asks for (`tasks.task.Task`).

How a training begins: whose utterances these are, what its ledger's header declares, what is
released before the first step, and its first model.  `trainer.py` has the epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.privacy.claims import LARGE_DELTA, SETTINGS
from tacit.privacy.events import Adjacency, Composition, Event, NonPrivate
from tacit.privacy.ledger_lines import Charge, Header, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu import plan, scaling
from tacit.tasks.nlu.encoding import Encoder, Labels
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.models import NluModel, initial_encoder, initial_model
from tacit.tasks.nlu.trainer import NluTrainer
from tacit.tasks.nlu.utterances import Utterances
from tacit.tasks.task import (
    Announce,
    Beginning,
    Inherited,
    LastState,
    ParentRun,
    State,
    header_of,
)
from tacit.tokenizers.provenance import ORACLE, why_void
from tacit.tokenizers.public import PublicSource, declare


def load(experiment: NluExperiment, announce: Announce | None) -> Utterances:
    """The experiment's utterances, and the people who said them."""
    return Utterances.of(experiment)


def refuse_early(experiment: NluExperiment, data: Utterances, run: Path) -> None:
    """What contradicts the number of utterances; all else is refused as soon in `begin`."""
    plan.declared(experiment, data)


def begin(
    experiment: NluExperiment, data: Utterances, key: RunKey, announce: Announce | None
) -> Beginning:
    """A new run, from an initial model."""
    asked = experiment.privacy.accountant
    experiment = plan.resolved(experiment, data)
    encoder = initial_encoder(experiment, data.data)
    void = _why_void(experiment, encoder)
    labels = Labels(experiment.data.intents, experiment.data.tags)
    trained_on = (data.people or data.data.identity,)
    model = NluModel(initial_model(experiment, encoder, labels), encoder, labels, trained_on)
    first: list[tuple[str, Event]] = [("vocabulary", NonPrivate(void))] if void else []
    if (event := plan.scaling_release(experiment.noise)) is not None:
        first.append(("scaling", event))
    header = _header(experiment, data, key, asked)
    return Beginning(
        experiment=experiment,
        header=header,
        state=State(model.to_bytes(), facts={"experiment": experiment.fingerprint}),
        releases=[Charge(kind, 0, 0, event, experiment.fingerprint) for kind, event in first],
        first_events=_first_events(experiment, data),
        write=lambda folder: scaling.write(
            folder, scaling.first_scaling(experiment, data, model, key)
        ),
    )


def resolve(
    experiment: NluExperiment, data: Utterances, last: LastState, inherited: Inherited | None
) -> NluExperiment:
    """The experiment as a run that was started with it holds it."""
    return plan.resolved(experiment, data, inherited)


open_trainer = NluTrainer  # goes on at the last checkpoint


def branch(
    experiment: NluExperiment, data: Utterances, key: RunKey, parent: ParentRun
) -> Beginning:
    """A run that goes on from the model of another one, and pays for it.

    The layers' factors are the parent's: they were released, or are public, already.
    """
    asked = experiment.privacy.accountant
    experiment = plan.resolved(experiment, data, parent.inherited)
    before = parent.inherited.ledger.header
    header = _header(experiment, data, key, asked, parent.inherited.spent)
    inputs = tuple(dict.fromkeys((*before.public_inputs, *header.public_inputs)))
    factors = scaling.read(parent.folder)
    same_optimizer = experiment.training.optimizer == parent.experiment.training.optimizer
    return Beginning(
        experiment=experiment,
        header=dataclasses.replace(header, public_inputs=inputs),
        state=State(
            parent.last.model_file.read_bytes(),
            parent.last.arrays if same_optimizer else {},
            {"experiment": experiment.fingerprint},
        ),
        inherited=parent.inherited,
        write=lambda folder: scaling.write(folder, factors),
    )


def terms(experiment: NluExperiment, before: Composition) -> Header:
    """What the header of the run's ledger says by the experiment alone, whatever the data are.

    `before` is what a branch has inherited.
    """
    noise, training = experiment.noise, experiment.training
    return header_of(
        experiment,
        unit=training.unit,
        population=noise.population,
        population_is_counted=noise.population_is_counted,
        adjacency=_adjacency(experiment, before),
        view="synthetic" if experiment.data.source.partition(":")[0] == "generated" else "people",
        counted="steps" if training.method in PRIVATE else "epochs",
        excluded=tuple(_excluded(experiment)),
    )


def _header(
    experiment: NluExperiment,
    utterances: Utterances,
    key: RunKey,
    asked_accountant: str | None,
    before: Composition | None = None,
) -> Header:
    """What the header of the run's ledger says besides what that of every run does."""
    return dataclasses.replace(
        terms(experiment, before or Composition()),
        view="people" if utterances.people else "synthetic",
        data=utterances.commitment(key),
        people=utterances.people,
        accountant=asked_accountant,
        public_inputs=tuple(dict.fromkeys(_public_inputs(experiment, utterances))),
    )


def _first_events(experiment: NluExperiment, utterances: Utterances) -> list[Event]:
    """What the first epoch releases, so that a budget which it exceeds is known before any work."""
    units = utterances.unit_count(experiment)
    method = plan.method_of(experiment, LayerScaling.none((1,)), units)
    return [event for _, event in method.charges(range(method.steps_of_epoch(units)))]


def _adjacency(experiment: NluExperiment, before: Composition) -> Adjacency | None:
    """The one adjacency of all releases; None where no noise is added."""
    method, noise = experiment.training.method, experiment.noise
    if method == "edp-sgd-paper":
        # What it releases depends on the data's size, and is the same for every epoch.
        return Adjacency.REPLACE if noise.noise_multiplier else None
    if method == "sgd":
        return None
    return before.followed_by(plan.releases(experiment)).adjacency


def _excluded(experiment: NluExperiment) -> Iterator[str]:
    unit, population = experiment.training.unit, experiment.noise.population
    assert population is not None
    assert experiment.privacy.delta is not None
    yield SETTINGS
    yield "the utterances of valid and test, which are unprotected"
    if unit == "record":
        yield (
            "people: protection is per utterance, and weakens with each utterance a person"
            " contributed"
        )
    if experiment.data.schema_is_counted:
        yield "which intents and slot types there are, which is published"
    if experiment.privacy.delta >= 1 / population:
        yield LARGE_DELTA.format(unit=unit, population=population)


def named_public(experiment: NluExperiment) -> list[tuple[str, str]]:
    """What each public input is used for, and its name."""
    model = experiment.model
    named = []
    if model.vocabulary != ORACLE and not model.pretrained:
        named.append(("dictionary", model.vocabulary))
    if model.vectors:
        named.append(("word vectors", model.vectors))
    if model.pretrained:
        named.append(("trained weights", model.pretrained))
    return named


def _public_inputs(experiment: NluExperiment, utterances: Utterances) -> Iterator[PublicInput]:
    """What was declared public by naming it; the training utterances are refused."""
    for what, source in named_public(experiment):
        if what == "dictionary":
            utterances.refuse_as_public(source, PublicSource(source).lines)
        yield declare(what, source, None)


def _why_void(experiment: NluExperiment, encoder: Encoder) -> str | None:
    """Why a vocabulary leaves no guarantee (design rule 9); it has to be asked for in words."""
    reason = why_void(encoder.provenance)
    if reason and experiment.training.method in PRIVATE and not experiment.model.accept_oracle:
        raise ValueError(
            f"the model's guarantee would be void, because {reason}: name a public text or list of"
            " words as model.vocabulary, or set model.accept_oracle = true"
        )
    return reason
