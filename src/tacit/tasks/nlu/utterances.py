"""The utterances that an experiment trains on, and whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.corpus import people
from tacit.corpus import people as known_people
from tacit.corpus.hashing import user_key
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.sketches import Sketch
from tacit.mechanisms.method import Indices
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu.attack_roles import attack_roles
from tacit.tasks.nlu.data import PARTS, NLUData, Utterance
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.layouts import load_nlu

# A "public" text is refused if it holds more than 1% of the training utterances of five words and
# more, and at least three of them: short ones are said by everybody.
MOST_SHARED, LEAST_SHARED, LEAST_WORDS = 0.01, 3, 5


@dataclass(frozen=True)
class Utterances:
    """A set of utterances with the id of the people who said them; no id if a program did."""

    data: NLUData
    people: str

    @classmethod
    def of(cls, experiment: NluExperiment) -> Utterances:
        """The utterances that an experiment names; its people are recognised, or registered."""
        whole = whole_set(experiment)
        people = "" if is_generated(experiment) else recognise(whole)
        return cls(_as_reference(experiment, whole), people)

    def is_of(self, experiment: NluExperiment) -> bool:
        return self.data.identity == experiment.data.identity

    def commitment(self, key: RunKey) -> str:
        return key.hmac(b"utterances", self.data.fingerprint.encode()).hex()

    def ledger(self) -> PeopleLedger | None:
        return PeopleLedger.open(self.people) if self.people else None

    def leave_copy(self) -> None:
        """Nothing to do: files of utterances carry no ledger."""

    def unit_count(self, experiment: NluExperiment) -> int:
        """How many units, records or users, the training utterances are of."""
        if experiment.training.unit == "record":
            return len(self.data.train)
        if not self.data.has_users:
            raise ValueError(
                f"training.unit is 'user', and {self.data.name} does not say whose utterances these"
                " are: give a user column, or train with unit = 'record'"
            )
        return len({utterance.user for utterance in self.data.train})

    def units(self, experiment: NluExperiment) -> Sequence[Indices] | None:
        """The indices of each user's utterances in train; None where the unit is a record."""
        if experiment.training.unit == "record":
            return None
        by_user: dict[str | None, list[int]] = {}
        for index, utterance in enumerate(self.data.train):
            by_user.setdefault(utterance.user, []).append(index)
        return [np.array(indices, np.int64) for indices in by_user.values()]

    def refuse_as_public(self, name: str, lines: Iterable[str]) -> None:
        """Refuse a "public" text that the training utterances are in."""
        own = {text for text in map(_text, self.data.train) if len(text.split()) >= LEAST_WORDS}
        shared = len(own.intersection(line.strip() for line in lines))
        if shared >= LEAST_SHARED and shared > MOST_SHARED * len(own):
            raise ValueError(
                f"{name} cannot be declared public: {shared:,} of the {len(own):,} training"
                " utterances are in it"
            )


def is_generated(experiment: NluExperiment) -> bool:
    """Whether the utterances were made by a program, so that they are about nobody."""
    return experiment.data.source.partition(":")[0] == "generated"


def whole_set(experiment: NluExperiment) -> NLUData:
    """The experiment's set before any reference split is carved out of it."""
    choice = experiment.data
    return load_nlu(
        choice.source,
        split=choice.split,
        test_fold=choice.test_fold,
        together=choice.together,
        user_column=choice.user_column,
        unseen_intents=choice.unseen_intents,
    )


def data_of(experiment: NluExperiment) -> NLUData:
    """The utterances that an experiment names, whoever said them."""
    return _as_reference(experiment, whole_set(experiment))


def _as_reference(experiment: NluExperiment, data: NLUData) -> NLUData:
    """The set that a reference model of an attack trains on: a part of the test utterances."""
    if experiment.data.reference is None:
        return data
    number, _, of = experiment.data.reference.partition("/")
    if int(number) > int(of):
        raise ValueError(
            f"data.reference must be from 1/{of} to {of}/{of}, got {experiment.data.reference}"
        )
    roles = attack_roles(data.test, int(of))
    return NLUData(
        data.name,
        roles.references[int(number) - 1],
        data.valid,
        roles.non_members,
        split=f"{data.split}, reference {experiment.data.reference}",
        unseen_intents="keep",
    )


def recognise(data: NLUData, *, new_people: bool = False) -> str:
    """The id of the people who said these utterances, known by their ids or by what they said."""
    utterances = [one for part in PARTS for one in getattr(data, part)]
    records = {hashlib.sha256(b"utterance\0" + one.content).digest() for one in utterances}
    users = {user_key(one.user) for one in utterances if one.user is not None}
    sketches = [Sketch.of(ids, people.secret()) for ids in (records, users) if ids]
    return known_people.recognise(sketches, new_people=new_people).people


def _text(utterance: Utterance) -> str:
    return " ".join(utterance.tokens)
