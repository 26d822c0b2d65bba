"""What an intent and slot model may claim, and what its claim leaves out (design rule 2)."""

from __future__ import annotations

import math
from pathlib import PurePath

from tacit.guarantee import Guarantee, figures, others_on_record
from tacit.mechanisms.edp_accounting import PaperFigures
from tacit.nlu.experiment import NluExperiment
from tacit.privacy.claims import claim_sentence, format_epsilon
from tacit.privacy.events import Adjacency, Gaussian, NonPrivate, PoissonGaussian
from tacit.privacy.ledger import Ledger
from tacit.runs.register import Register

VALID_AND_TEST = "the utterances of valid and test, which are unprotected"


def guarantee(
    experiment: NluExperiment, ledger: Ledger, register: Register | None, *, synthetic: bool
) -> Guarantee:
    """The guarantee of all that the ledger holds."""
    composition, delta = ledger.composition(), ledger.header.delta
    steps = sum(entry.kind == "round" for entry in ledger.entries)
    name: str = experiment.privacy.accountant
    epsilon = figures(composition, delta, name)
    if not math.isfinite(epsilon[name]):  # beyond what it can compute; every other one is sound too
        name = min(epsilon, key=lambda by: epsilon[by])
    claim = _claim(experiment, ledger, epsilon[name], steps, name)
    if synthetic:
        claim = f"No claim about people: the utterances were made by a program.  {claim}"
    elif experiment.seed is not None:
        claim = f"Simulation, not for release, because its noise follows from a seed.  {claim}"
    others = others_on_record(register, ledger.header.run_id, delta, name) if register else ""
    return Guarantee(steps, delta, epsilon, name, claim, others)


def _claim(
    experiment: NluExperiment, ledger: Ledger, epsilon: float, steps: int, accountant: str
) -> str:
    composition = ledger.composition()
    reasons = sorted({e.reason for e, _ in composition.counts if isinstance(e, NonPrivate)})
    if reasons:
        return f"No differential privacy: {'; '.join(reasons)}."
    if not composition.costly():
        return "Nothing was released yet: no epoch has been run."
    training, noise = experiment.training, experiment.noise
    assert noise.population is not None
    events = [event for event, _ in composition.counts]
    multipliers = [e.noise_multiplier for e in events if isinstance(e, Gaussian | PoissonGaussian)]
    replaces = any(isinstance(e, Gaussian) and e.adjacency is Adjacency.REPLACE for e in events)
    sampler = (
        "reshuffled epochs without amplification"
        if replaces
        else f"Poisson sampling with probability {training.batch_size / noise.population:.6g}"
    )
    if steps == 0:
        sampler = "the scaling factors alone"
    if len(set(multipliers)) > 1:
        sampler += ", with noise that falls, of which the least is stated"
    return claim_sentence(
        epsilon=epsilon,
        delta=ledger.header.delta,
        unit=training.unit,
        adjacency=Adjacency.REPLACE if replaces else Adjacency.ADD_REMOVE,
        population=noise.population,
        sampler=sampler,
        rounds=steps,
        round_name="steps" if not replaces else "epochs",
        noise_multiplier=min(multipliers),
        accountant=accountant,
        excluded=_excluded(experiment),
    )


def _excluded(experiment: NluExperiment) -> list[str]:
    unit, noise = experiment.training.unit, experiment.noise
    excluded = ["the choice of settings", VALID_AND_TEST]
    if unit == "record":
        excluded.append("people as a whole: the unit is one utterance, and who said many has many")
    if noise.population_is_counted:
        excluded.append(f"the number of training {unit}s, which is published")
    if experiment.data.schema_is_counted:
        excluded.append("which intents and slot types there are, which is published")
    model = experiment.model
    for what, source in (("word vectors", model.vectors), ("trained weights", model.pretrained)):
        if source:
            name = PurePath(source).name
            excluded.append(f"the texts behind the {what} of {name}, which are declared public")
    assert noise.population is not None
    assert experiment.privacy.delta is not None
    if experiment.privacy.delta >= 1 / noise.population:
        excluded.append(f"any one {unit}, since delta is not below 1 in {noise.population:,}")
    return excluded


def as_printed(found: PaperFigures) -> list[dict[str, object]]:
    """The figures of `edp-sgd-paper`, each with its meaning."""
    rows = (found.actual, found.given_public_scaling, found.as_published)
    return [
        {
            "epsilon": figure.epsilon if math.isfinite(figure.epsilon) else None,
            "shown": format_epsilon(figure.epsilon),
            "delta": figure.delta,
            "meaning": figure.meaning,
        }
        for figure in rows
    ]
