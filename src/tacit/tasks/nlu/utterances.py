"""The utterances that an experiment trains on, whose they are, and their roles in an attack.

In a membership attack, reference models must not have seen anything that they are asked about.  So
some test utterances are for references to learn from, some are the population of RMIA, and the rest
are the non-members.  The role is a draw from a digest of the *unit*: the user, where utterances
have users, and otherwise the text.  So all of a user's utterances, or all copies of a text, have
one role, and adding or removing a unit moves no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.corpus import people
from tacit.corpus.hashing import role_draw, user_key
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.sketches import Sketch
from tacit.mechanisms.method import Indices
from tacit.privacy import checks
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu.data import PARTS, NLUData, Utterance
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.readers import load_nlu

# A "public" text is refused if it holds more than 1% of the training utterances of five words and
# more, and at least three of them: short ones are said by everybody.
_MOST_SHARED, _LEAST_SHARED, _LEAST_WORDS = 0.01, 3, 5

# Of the test utterances: for all reference models of an attack to learn from, and for RMIA.
_REFERENCE_SHARE, _POPULATION_SHARE = 0.5, 0.1


@dataclass(frozen=True)
class Utterances:
    """A set of utterances with the id of the people who said them; no id if a program did."""

    data: NLUData
    people: str

    @classmethod
    def of(cls, experiment: NluExperiment) -> Utterances:
        """The utterances that an experiment names; its people are recognised, or registered."""
        whole = whole_set(experiment)
        who = "" if _is_generated(experiment) else recognise(whole)
        return cls(_as_reference(experiment, whole), who)

    def is_of(self, experiment: NluExperiment) -> bool:
        """Whether a run of this experiment was started on these utterances."""
        return self.data.identity == experiment.data.identity

    def commitment(self, key: RunKey) -> str:
        """A keyed digest of all utterances: it changes with them, and says nothing of them."""
        return key.hmac(b"utterances", self.data.fingerprint.encode()).hex()

    def ledger(self) -> PeopleLedger | None:
        """The ledger of the people; None if a program made the utterances."""
        return PeopleLedger.open(self.people) if self.people else None

    def leave_copy(self) -> None:
        """Nothing to do: files of utterances carry no ledger."""

    def unit_count(self, experiment: NluExperiment) -> int:
        """The number of units, records or users, among the training utterances."""
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
        """Refuse a "public" text that the training utterances are in.

        Raises:
            ValueError: if it holds more than 1% of the longer training utterances as whole lines.
        """
        long = (one.tokens for one in self.data.train if len(one.tokens) >= _LEAST_WORDS)
        own = {" ".join(tokens) for tokens in long}
        shared = len(own.intersection(line.strip() for line in lines))
        if shared >= _LEAST_SHARED and shared > _MOST_SHARED * len(own):
            raise ValueError(
                f"{name} cannot be declared public: {shared:,} of the {len(own):,} training"
                " utterances are in it"
            )


def _is_generated(experiment: NluExperiment) -> bool:
    """Whether the utterances were made by a program, so that they are about nobody."""
    return experiment.data.source.partition(":")[0] == "generated"


def whole_set(experiment: NluExperiment) -> NLUData:
    """The experiment's set before any reference split is carved out of it."""
    options = {"split", "test_fold", "together", "user_column", "unseen_intents"}
    return load_nlu(experiment.data.source, **experiment.data.model_dump(include=options))


def data_of(experiment: NluExperiment) -> NLUData:
    """The utterances that an experiment names, without asking who said them."""
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
    """The id of the people who said these utterances, who are registered if they are new.

    They are known by their ids or by what they said, so a copy of the set, or a set that shares
    much with it, is of the same people.  `new_people` says that they are others.
    """
    utterances = [one for part in PARTS for one in getattr(data, part)]
    records = {hashlib.sha256(b"utterance\0" + one.content).digest() for one in utterances}
    users = {user_key(one.user) for one in utterances if one.user is not None}
    sketches = [Sketch.of(ids, people.secret()) for ids in (records, users) if ids]
    return people.recognise(sketches, new_people=new_people).people


@dataclass(frozen=True)
class AttackRoles:
    """Test utterances by role: what each reference learns from, RMIA's population, non-members."""

    references: tuple[tuple[Utterance, ...], ...]
    population: tuple[Utterance, ...]
    non_members: tuple[Utterance, ...]

    @property
    def seen(self) -> tuple[Utterance, ...]:
        """All that any reference learns from."""
        return tuple(utterance for part in self.references for utterance in part)


def attack_roles(test: Sequence[Utterance], references: int = 2) -> AttackRoles:
    """Divide test utterances by role: half for all references together, a tenth as population."""
    checks.whole("references", references, at_least=1)
    parts: list[list[Utterance]] = [[] for _ in range(references)]
    population: list[Utterance] = []
    non_members: list[Utterance] = []
    for utterance in test:
        drawn = role_draw("nlu role", unit(utterance))
        if drawn < _REFERENCE_SHARE:
            parts[int(drawn / _REFERENCE_SHARE * references)].append(utterance)
        elif drawn < _REFERENCE_SHARE + _POPULATION_SHARE:
            population.append(utterance)
        else:
            non_members.append(utterance)
    if not (all(parts) and population and non_members):
        raise ValueError(
            f"{len(test)} test utterances are too few for {references} references, a population and"
            " non-members; take more of them or fewer references"
        )
    return AttackRoles(tuple(map(tuple, parts)), tuple(population), tuple(non_members))


def unit(utterance: Utterance) -> str:
    """The unit of an attack: the speaker or, where that is not known, the text."""
    if utterance.user is not None:
        return f"user {utterance.user}"
    return f"text {' '.join(utterance.tokens)}"
