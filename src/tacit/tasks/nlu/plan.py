"""From an experiment to the method that its steps follow, with every public number filled in."""

from __future__ import annotations

import math

from tacit.mechanisms.edp_sgd import FROM_RECORDS, CalibratedEdpSgd, PaperEdpSgd
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import DpSgd, Method, Plain
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy.accountants import accountant_named
from tacit.privacy.calibration import noise_for_epsilon
from tacit.privacy.events import Adjacency, Composition, Event, Gaussian, NonPrivate
from tacit.privacy.guarantee import default_delta
from tacit.tasks.nlu.encoding import Labels
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment, Noise
from tacit.tasks.nlu.utterances import Utterances
from tacit.tasks.task import Inherited


def resolved(
    experiment: NluExperiment, utterances: Utterances, inherited: Inherited | None = None
) -> NluExperiment:
    """The experiment with every value filled in that its guarantee depends on.

    A target epsilon becomes the noise that meets it, together with what was inherited.
    """
    experiment = declared(experiment, utterances)
    if experiment.privacy.target_epsilon is None:
        return experiment
    return _calibrated(experiment, inherited)


def declared(experiment: NluExperiment, utterances: Utterances) -> NluExperiment:
    """The experiment with population, delta and schema filled in; what contradicts them is refused.

    Population and schema, if they are not declared, are taken from the training utterances: to
    train without naming them declares them public, and the claim says so.
    """
    data = utterances.data
    noise, training, privacy = experiment.noise, experiment.training, experiment.privacy
    units = utterances.unit_count(experiment)
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
    schema = Labels(experiment.data.intents or data.intents, experiment.data.tags or data.tags)
    of_train = not (experiment.data.intents and experiment.data.tags)
    return experiment.changed(
        noise={"population": K, "population_is_counted": counted},
        privacy={"delta": delta},
        data={
            "identity": data.identity,
            "intents": schema.intents,
            "tags": schema.tags,
            "schema_is_counted": of_train or experiment.data.schema_is_counted,
        },
    )


def epoch_steps(experiment: NluExperiment, units: int) -> int:
    """The number of steps of an epoch.

    For private methods it follows from the declared population, and not from the actual `units`.
    """
    return method_of(experiment, LayerScaling.none((1,)), units).steps_of_epoch(units)


def method_of(experiment: NluExperiment, scaling: LayerScaling, units: int) -> Method:
    """The method of a resolved experiment: how its steps sample, clip and add noise.

    Its privacy events are derived from the same object, so what is charged is what is run
    (design rule 1).  `units` matters to reshuffled epochs only.
    """
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
            micro_batches=training.micro_batches,
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


def releases(experiment: NluExperiment, first: int = 0) -> Composition:
    """All that the epochs from `first` on release, from the experiment's public numbers alone."""
    assert experiment.noise.population is not None
    method = method_of(experiment, LayerScaling.none((1,)), experiment.noise.population)
    in_epoch = method.steps_of_epoch(experiment.noise.population)
    steps = range(first * in_epoch, experiment.training.epochs * in_epoch)
    events = [event for _, event in method.charges(steps)]
    scaling = None if first else scaling_release(experiment.noise)
    return Composition.of(events if scaling is None else [scaling, *events])


def scaling_release(noise: Noise) -> Event | None:
    """What the factors that an experiment asks for release about people, before any step.

    Private factors are a Gaussian release in which every unit takes part: no amplification.
    """
    if noise.scaling == "private":
        return Gaussian(noise.scaling_noise_multiplier, Adjacency.ADD_REMOVE)
    if noise.scaling == "first-gradient":
        return NonPrivate(FROM_RECORDS)
    return None


def _calibrated(experiment: NluExperiment, inherited: Inherited | None) -> NluExperiment:
    """The experiment with the noise that meets its target over the epochs that are left."""
    target, delta = experiment.privacy.target_epsilon, experiment.privacy.delta
    assert target is not None
    assert delta is not None

    accountant = accountant_named(experiment.privacy.accountant or "pld")
    spent = inherited.spent if inherited else Composition()
    first = inherited.leg if inherited else 0
    if not spent.is_private or (spent.costly() and accountant.epsilon(spent, delta) >= target):
        raise ValueError(
            f"privacy.target_epsilon of {target:g} cannot be met by a branch: the {first} epochs"
            " before it have spent as much or more already"
        )

    def with_noise(z: float) -> NluExperiment:
        return experiment.changed(noise={"noise_multiplier": z})

    multiplier = noise_for_epsilon(
        lambda z: spent.followed_by(releases(with_noise(z), first)),
        delta=delta,
        target_epsilon=target,
        accountant=accountant,
    )
    return with_noise(multiplier)
