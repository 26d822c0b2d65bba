"""From an experiment to the method that its steps follow, with every public number filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.mechanisms.edp_sgd import CalibratedEdpSgd, PaperEdpSgd
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import DpSgd, Method, Plain
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy.accountants import accountant_named
from tacit.privacy.calibration import noise_for_releases
from tacit.privacy.events import Composition
from tacit.privacy.guarantee import default_delta
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.encoding import Labels
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.scaling import release_of

NOISE = "noise.noise_multiplier"
TARGET = "privacy.target_epsilon"


def with_one_noise(experiment: NluExperiment, settings: Sequence[str]) -> NluExperiment:
    """A recipe's experiment with noise that is either set or solved for, as the caller said.

    `settings` are the caller's key=value.  Noise that the caller sets takes the place of the
    recipe's target, and a target that of its noise; who sets both contradicts themselves.
    """
    said = {text.partition("=")[0].strip() for text in settings}
    if {NOISE, TARGET} <= said:
        raise ValueError(
            f"{TARGET} solves for the noise, and {NOISE} sets it; leave one of them out"
        )
    if NOISE in said:
        return experiment.changed(privacy={"target_epsilon": None})
    if TARGET in said:
        return experiment.changed(noise={"noise_multiplier": None})
    return experiment


def units_in(experiment: NluExperiment, data: NLUData) -> int:
    """How many units the training utterances are of."""
    if experiment.training.unit == "record":
        return len(data.train)
    if not data.has_users:
        raise ValueError(
            f"training.unit is 'user', and {data.name} does not say whose utterances these are:"
            " give a user column, or train with unit = 'record'"
        )
    return len({utterance.user for utterance in data.train})


def resolved(experiment: NluExperiment, data: NLUData) -> NluExperiment:
    """The experiment with all that its guarantee depends on.

    What nobody declared, the population and the schema, is taken from the training utterances:
    who trains without naming it declares it public, and the claim says so.
    """
    noise, training, privacy = experiment.noise, experiment.training, experiment.privacy
    units = units_in(experiment, data)
    K = noise.population or units
    if units > K:
        raise ValueError(
            f"noise.population of {K:,} is less than the {units:,} training {training.unit}s;"
            " declare a number that they cannot exceed"
        )
    if training.batch_size > units:
        raise ValueError(
            f"training.batch_size of {training.batch_size:,} is more than the {units:,} training"
            f" {training.unit}s; lower it"
        )
    delta = privacy.delta or default_delta(K)
    if not (delta < 1 / K or privacy.accept_large_delta) and training.method in PRIVATE:
        raise ValueError(
            f"privacy.delta must be below 1/population = {1 / K:.3g}, or one {training.unit} may be"
            f" given away whole; got {delta:g} (privacy.accept_large_delta = true takes it all the"
            " same, and the claim says so)"
        )
    counted = noise.population is None or noise.population_is_counted
    declared = Labels(experiment.data.intents or data.intents, experiment.data.tags or data.tags)
    of_train = not (experiment.data.intents and experiment.data.tags)
    experiment = experiment.changed(
        noise={"population": K, "population_is_counted": counted},
        privacy={"delta": delta},
        data={
            "identity": data.identity,
            "intents": declared.intents,
            "tags": declared.tags,
            "schema_is_counted": of_train or experiment.data.schema_is_counted,
        },
    )
    return experiment if privacy.target_epsilon is None else _calibrated(experiment)


def epoch_steps(experiment: NluExperiment, units: int) -> int:
    """How many steps an epoch has; those of private methods do not depend on the actual units."""
    return method_of(experiment, LayerScaling.none((1,)), units).steps_of_epoch(units)


def method_of(experiment: NluExperiment, scaling: LayerScaling, units: int) -> Method:
    """The method of a resolved experiment; `units` matters to reshuffled epochs only."""
    training, noise = experiment.training, experiment.noise
    K, z, C = noise.population, noise.noise_multiplier or 0.0, noise.clip_norm
    assert K is not None
    if training.method == "sgd":
        return Plain(training.workers, training.batch_size)
    if training.method == "edp-sgd-paper":
        return PaperEdpSgd(
            training.workers,
            C,
            z,
            scaling,
            noise.noise_decay(),
            batch_size=training.batch_size,
            units=units,
        )
    sampler = PoissonSampler(training.batch_size / K)
    if training.method == "dp-sgd":
        return DpSgd(training.workers, C, z, sampler, K)
    return CalibratedEdpSgd(
        training.workers,
        C,
        z,
        scaling,
        noise.noise_decay(),
        sampler=sampler,
        micro_batches=training.micro_batches,
        steps=training.epochs * math.ceil(1 / sampler.sampling_prob),
    )


def releases(experiment: NluExperiment) -> Composition:
    """All that a private training releases, from its public numbers alone."""
    assert experiment.noise.population is not None
    method = method_of(experiment, LayerScaling.none((1,)), experiment.noise.population)
    in_epoch = method.steps_of_epoch(experiment.noise.population)
    steps = range(experiment.training.epochs * in_epoch)
    first = release_of(experiment.noise)
    events = [event for _, event in method.charges(steps)]
    return Composition.of(events if first is None else [first, *events])


def _calibrated(experiment: NluExperiment) -> NluExperiment:
    """With the noise that meets the target over the whole training."""
    target, delta = experiment.privacy.target_epsilon, experiment.privacy.delta
    assert target is not None
    assert delta is not None

    def with_noise(z: float) -> NluExperiment:
        return experiment.changed(noise={"noise_multiplier": z})

    found = noise_for_releases(
        lambda z: releases(with_noise(z)),
        delta=delta,
        target_epsilon=target,
        accountant=accountant_named(experiment.privacy.accountant or "pld"),
    )
    return with_noise(found)


def layer_scaling_without_data(name: str, sizes: Sequence[int]) -> LayerScaling | None:
    """The scalings that follow from the architecture; None for those that need a gradient."""
    if name == "none":
        return LayerScaling.none(sizes)
    return LayerScaling.by_size(sizes) if name == "architecture" else None
