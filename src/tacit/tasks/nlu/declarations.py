"""What a training of an intent and slot model declares in its ledger's header."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from tacit.corpus import installation
from tacit.corpus import people as known_people
from tacit.corpus.hashing import user_key
from tacit.corpus.sketches import Sketch
from tacit.privacy.budget import Budget
from tacit.privacy.claims import SETTINGS
from tacit.privacy.events import Adjacency
from tacit.privacy.ledger_lines import Header, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.runs.declarations import declared, public_lines
from tacit.tasks.nlu.data import PARTS, NLUData, Utterance
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import releases

VALID_AND_TEST = "the utterances of valid and test, which are unprotected"
PER_UTTERANCE = (
    "people: protection is per utterance, and weakens with each utterance a person contributed"
)
MOST_SHARED, LEAST_SHARED, LEAST_WORDS = 0.01, 3, 5


def header_of(
    experiment: NluExperiment, data: NLUData, people: str, key: RunKey, asked: str | None
) -> Header:
    """The header of a run's ledger, from its resolved experiment."""
    noise, privacy, training = experiment.noise, experiment.privacy, experiment.training
    assert noise.population is not None
    assert privacy.delta is not None
    budget = None
    if privacy.budget_epsilon is not None:
        budget = Budget(privacy.budget_epsilon, privacy.delta, privacy.accountant or "pld")
    toml = experiment.to_toml().encode()
    return Header(
        run_id=key.hmac(b"run id", toml).hex()[:16],
        unit=training.unit,
        population=noise.population,
        delta=privacy.delta,
        budget=budget,
        adjacency=_adjacency(experiment),
        view="people" if people else "synthetic",
        simulation=experiment.seed is not None,
        population_is_counted=noise.population_is_counted,
        counted="steps" if training.method in PRIVATE else "epochs",
        accountant=asked,
        people=people,
        data=commitment(data, key),
        experiment=hashlib.sha256(toml).hexdigest(),
        excluded=tuple(_excluded(experiment)),
        public_inputs=tuple(dict.fromkeys(_public_inputs(experiment, data))),
    )


def commitment(data: NLUData, key: RunKey) -> str:
    """For public files: it changes with any utterance, and says nothing without the key."""
    return key.hmac(b"utterances", data.fingerprint.encode()).hex()


def _adjacency(experiment: NluExperiment) -> Adjacency | None:
    if experiment.training.method == "edp-sgd-paper":
        # What it releases depends on the data's size, and is the same for every epoch.
        return Adjacency.REPLACE if experiment.noise.noise_multiplier else None
    return releases(experiment).adjacency if experiment.training.method != "sgd" else None


def _excluded(experiment: NluExperiment) -> Iterator[str]:
    unit, population = experiment.training.unit, experiment.noise.population
    yield SETTINGS
    yield VALID_AND_TEST
    if unit == "record":
        yield PER_UTTERANCE
    if experiment.data.schema_is_counted:
        yield "which intents and slot types there are, which is published"
    assert population is not None
    assert experiment.privacy.delta is not None
    if experiment.privacy.delta >= 1 / population:
        yield f"any one {unit}, since delta is not below 1 in {population:,}"


def _public_inputs(experiment: NluExperiment, data: NLUData) -> Iterator[PublicInput]:
    """What was declared public by naming it; the training utterances are refused."""
    model = experiment.model
    named = [("word vectors", model.vectors), ("trained weights", model.pretrained)]
    if model.vocabulary != "oracle" and not model.pretrained:
        named.insert(0, ("dictionary", model.vocabulary))
    for what, source in named:
        if source:
            if what == "dictionary":
                _refuse_utterances(source, public_lines(source), data)
            yield declared(what, source, None)


def _refuse_utterances(name: str, lines: Iterable[str], data: NLUData) -> None:
    """Refuse a "public" text in which the training utterances stand."""
    own = {text for text in map(_text, data.train) if len(text.split()) >= LEAST_WORDS}
    shared = len(own.intersection(line.strip() for line in lines))
    if shared >= LEAST_SHARED and shared > MOST_SHARED * len(own):
        raise ValueError(
            f"{name} cannot be declared public: {shared:,} of the {len(own):,} training utterances"
            " are in it"
        )


def _text(utterance: Utterance) -> str:
    return " ".join(utterance.tokens)


def recognise(data: NLUData, *, new_people: bool = False) -> str:
    """The id of the people who said these utterances, known by their ids or by what they said."""
    utterances = [one for part in PARTS for one in getattr(data, part)]
    records = {hashlib.sha256(b"utterance\0" + one.content).digest() for one in utterances}
    users = {user_key(one.user) for one in utterances if one.user is not None}
    sketches = [Sketch.of(ids, installation.secret()) for ids in (records, users) if ids]
    return known_people.recognise(sketches, new_people=new_people).people
