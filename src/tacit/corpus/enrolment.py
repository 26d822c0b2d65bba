"""People who are enrolled for a training, by id and public key; their text stays with them.

An enrolment directory holds `enrolment.json`: whose people they are, and for each client an id and
the public keys that it signs with.  To a training it is a corpus whose training users have no text
here.  The test users, on whose text a model is measured, come from a corpus of the server's own,
and are other people.

Clients are one person each, or silos with many people each: then the enrolment has for each how
many there are at most, which is public, and does not know who they are.

A user's id decides whose turn it is when, and names its random streams, so it never changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, NotRequired, TypedDict

from tacit.corpus.hashing import derived
from tacit.corpus.source import Progress, Subset, UserCorpus, UserSource
from tacit.privacy import documents, durable

FORMAT = "tacit enrolment 1"
FILE = "enrolment.json"


class Enrolled(TypedDict):
    """A client: 32 hexadecimal digits, a public key as PEM, and one for what clients are told.

    With `key` a client signs what it asks the server; with `signing_key` (Ed25519, as hexadecimal
    digits) what the other clients of a secure sum are told of it.
    """

    id: str
    key: str
    signing_key: str
    silo: NotRequired[int]  # how many people at most it has


class _File(TypedDict):
    format: str
    people: str  # the id of the group of people, as in `corpus.people`
    about_people: bool
    clients: list[Enrolled]


class Enrolment(UserCorpus):
    """All enrolled people as training users, in the order of their enrolment."""

    def __init__(
        self,
        path: Path,
        content: _File,
        tested_on: UserCorpus | None = None,
        *,
        secure_sum: bool = False,
        always_on: str = "",
    ) -> None:
        self.path, self.secure_sum, self.always_on = path, secure_sum, always_on
        self.clients = content["clients"]
        self._content, self._tested_on = content, tested_on
        for client in self.clients:
            check_id(client["id"])
        for name in ("id", "key", "signing_key"):
            values = [client[name] for client in self.clients]
            if len(set(values)) < len(values):
                raise ValueError(f"{path / FILE} has the same {name} twice; enrol everybody once")
        if self.silos and len(self.silos) < len(self.clients):
            raise ValueError(
                f"{path / FILE} must have silos only, or none: whoever is one person among silos is"
                " enrolled as a silo of one"
            )
        for people in self.silos.values():
            check_silo(people)
        if always_on and not self.silos and self.clients:
            raise ValueError("only silos can be declared to be always on, and none are enrolled")

    @classmethod
    def open(
        cls,
        path: str | Path,
        tested_on: UserCorpus | None = None,
        *,
        secure_sum: bool = False,
        always_on: str = "",
    ) -> Enrolment:
        """The enrolment in a folder; `tested_on` is the corpus whose test users a model meets.

        With `secure_sum` the training that it is opened for sees sums of updates only.  `always_on`
        says who vouches that all silos are always on, if anybody does.
        """
        path = Path(path)
        try:
            content = documents.read_json(path / FILE, _File)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{str(path)!r} is no enrolment: it has no {FILE}; make one with tacit federate"
                " keys server"
            ) from None
        if content["format"] != FORMAT:
            raise ValueError(f"{path / FILE} has the format {content['format']!r}, not {FORMAT!r}")
        return cls(path, content, tested_on, secure_sum=secure_sum, always_on=always_on)

    @classmethod
    def create(cls, path: Path, people: str, *, about_people: bool = True) -> Enrolment:
        """An enrolment of nobody yet, in a folder that exists; `people` has 16 hex digits."""
        content: _File = {
            "format": FORMAT,
            "people": people,
            "about_people": about_people,
            "clients": [],
        }
        _write(path, content, new=True)
        return cls(path, content)

    def add(self, clients: list[Enrolled]) -> Enrolment:
        """The enrolment with more clients, written down; nobody is enrolled twice."""
        content: _File = {**self._content, "clients": [*self.clients, *clients]}
        grown = Enrolment(
            self.path,
            content,
            self._tested_on,
            secure_sum=self.secure_sum,
            always_on=self.always_on,
        )
        _write(self.path, content)
        return grown

    def __len__(self) -> int:
        return len(self.clients) + len(self.test)

    def user_id(self, index: int) -> str:
        index = self._checked(index)
        enrolled = len(self.clients)
        return (
            self.clients[index]["id"] if index < enrolled else self.test.user_id(index - enrolled)
        )

    def texts(self, index: int) -> list[str]:
        index = self._checked(index)
        if index < len(self.clients):
            _refuse_text()
        return self.test.texts(index - len(self.clients))

    @property
    def fingerprint(self) -> str:
        tested_on = self._tested_on.fingerprint if self._tested_on else ""
        return derived("enrolment", json.dumps(self._content, sort_keys=True), tested_on)

    @property
    def has_text(self) -> bool:
        return False

    @property
    def train(self) -> UserSource:
        return Subset(self, range(len(self.clients)))

    @property
    def test(self) -> UserSource:
        return _Nobody() if self._tested_on is None else self._tested_on.test

    @property
    def identity(self) -> str:
        return self._content["people"]

    @property
    def split_identity(self) -> str:
        return self._content["people"]

    @property
    def about_people(self) -> bool:
        return self._content["about_people"]

    @property
    def commitment(self) -> str:
        """Of who is enrolled, and of the test users' text; nobody here can commit to the rest."""
        tested_on = self._tested_on.commitment if self._tested_on else ""
        return derived("enrolment commitment", json.dumps(self._content, sort_keys=True), tested_on)

    @property
    def silos(self) -> Mapping[str, int]:
        return {client["id"]: client["silo"] for client in self.clients if "silo" in client}

    def declarations(self, colluding: int | None = None) -> tuple[str, ...]:
        if self.silos:
            return self._declarations_of_silos()
        if not self.secure_sum:
            server = "the server, which sees every client's clipped update before the noise"
        elif colluding is None:
            server = (
                "the server, which sees the sum of each round's clipped updates before the noise,"
                " and by secure aggregation none of them alone"
            )
        else:
            server = (
                f"the server together with more than {colluding} of a round's clients, or if it"
                " asks for sums that are not in the ledger; by itself it sees sums only, to which"
                " the clients have added the noise"
            )
        return (
            server,
            "who is enrolled, who is connected when, and in which rounds each client is asked",
        )

    def _declarations_of_silos(self) -> tuple[str, ...]:
        said = [
            "the server, which sees the sum of each round's clipped updates before the noise, and"
            " by secure aggregation no silo's alone"
            if self.secure_sum
            else "the server, which sees each silo's sum of clipped updates before the noise",
            "each silo, which has its own people's text",
            "people whose text is in several silos, who are one user in each",
            "which silos are enrolled, with how many people at most, and when each is connected",
        ]
        if self.always_on:
            said += [
                "the case that a silo is not always on, or lets anybody know whom it drew, of which"
                f" {self.always_on} vouches that it does not occur (a round that lacks a silo fails"
                " and is not released)",
                "whoever sees how long a silo takes to answer, which tells how many it drew",
            ]
        return tuple(said)

    def verify(self, progress: Progress | None = None) -> None:
        """The test users' corpus; there is no other text here."""
        if self._tested_on is not None:
            self._tested_on.verify(progress)

    def info(self) -> Mapping[str, Any]:
        return {"clients": len(self.clients), "test_users": len(self.test)} | {
            name: value for name, value in self._content.items() if name != "clients"
        }


class _Nobody(UserSource):
    """No users at all."""

    def __len__(self) -> int:
        return 0

    def user_id(self, index: int) -> str:
        raise IndexError(f"user {index} of 0")

    def texts(self, index: int) -> list[str]:
        raise IndexError(f"user {index} of 0")

    @property
    def fingerprint(self) -> str:
        return derived("nobody")


def check_id(user_id: str) -> str:
    """The id of a client, if it is one: 32 hexadecimal digits, as hashed ids are everywhere."""
    if not re.fullmatch("[0-9a-f]{32}", user_id):
        raise ValueError(f"a client's id must be 32 hexadecimal digits, got {user_id!r}")
    return user_id


def check_silo(people: int) -> int:
    """How many people a silo has at most, if there is anybody."""
    if not people >= 1:
        raise ValueError(f"a silo must have at least 1 person, got {people}")
    return people


def _refuse_text() -> NoReturn:
    raise ValueError(
        "the text of enrolled people is on their own machines; leave out what needs it here"
    )


def _write(path: Path, content: _File, *, new: bool = False) -> None:
    data = json.dumps(content, indent=1) + "\n"
    durable.write_whole(path / FILE, data.encode(), new=new)
