"""The roster: who may take part in secure sums, by id and signing key, as every client knows them.

Of silos it also has how many people each has at most, by which a sum is bounded.

A server that could make up clients could fill a group with its own and take them out of the sum.
So the list of keys must not come from the server alone: it is a file whose digest the owners of the
clients compare among themselves, and a client uses one whose digest its owner has confirmed.

    roster.json            beside enrolment.json, for everybody to have
    KEY.roster.json        a client's copy, once its owner has confirmed the digest
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NotRequired, Self, TypedDict

from tacit.corpus.enrolment import Enrolment, check_id, check_silo
from tacit.corpus.hashing import derived
from tacit.federation.keys import ClientKey, check_signing_key
from tacit.mechanisms.turns import Turns
from tacit.privacy import documents, durable

FILE = "roster.json"
_FORMAT = "tacit roster 1"


class _File(TypedDict):
    format: str
    signing_keys: dict[str, str]  # by id, as hexadecimal digits
    silos: NotRequired[dict[str, int]]  # by id, how many people at most


@dataclass(frozen=True)
class Roster:
    """Ids and signing keys, in the order of the ids; `silos` is empty where each is one person."""

    keys: Mapping[str, bytes]
    silos: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "keys", {check_id(one): self.keys[one] for one in sorted(self.keys)}
        )
        if self.silos:
            if self.silos.keys() != self.keys.keys():
                raise ValueError("a roster must have silos only, or none")
            sizes = {one: check_silo(self.silos[one]) for one in self.keys}
            object.__setattr__(self, "silos", sizes)
        if len(set(self.keys.values())) < len(self.keys):
            raise ValueError("a roster has the same signing key twice: somebody is in it twice")

    @classmethod
    def of(cls, enrolment: Enrolment) -> Self:
        """That of all who are enrolled."""
        keys = {one["id"]: check_signing_key(one["signing_key"]) for one in enrolment.clients}
        return cls(keys, enrolment.silos)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The roster in a file; `ValueError` for anything else."""
        try:
            content = documents.read_json(path, _File)
        except FileNotFoundError:
            raise ValueError(
                f"there is no roster {path}: the server makes one with tacit federate keys roster"
            ) from None
        if content["format"] != _FORMAT:
            raise ValueError(f"{path} has the format {content['format']!r}, not {_FORMAT!r}")
        keys = {one: check_signing_key(key) for one, key in content["signing_keys"].items()}
        return cls(keys, content.get("silos", {}))

    def save(self, path: Path) -> None:
        """Write it, for everybody to read: there is no secret in it."""
        content = _File(format=_FORMAT, signing_keys=self._listed())
        if self.silos:
            content["silos"] = dict(self.silos)
        data = json.dumps(content, indent=1) + "\n"
        durable.write_whole(path, data.encode(), mode=durable.SHARED)

    @cached_property
    def digest(self) -> str:
        """What owners compare: 64 hexadecimal digits, which no other roster has."""
        sizes = [json.dumps(self.silos)] if self.silos else []
        return derived("roster", json.dumps(self._listed(), sort_keys=True), *sizes)

    def _listed(self) -> dict[str, str]:
        return {one: key.hex() for one, key in self.keys.items()}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """What each is called in a sum: its place among all ids, from 1."""
        return {one: number for number, one in enumerate(self.keys, 1)}

    def groups(self, separation: int) -> list[list[str]]:
        """Whose turn it is in each of so many rounds, which everybody works out alike."""
        everybody = list(self.keys)
        groups = Turns.of(everybody, separation).groups
        return [[everybody[index] for index in group] for group in groups]

    @property
    def people(self) -> int:
        """How many people there are at most."""
        return sum(self.silos.values()) or len(self.keys)

    def people_of(self, clients: Iterable[str]) -> int:
        """How many people at most are behind some of the clients."""
        return sum(self.silos.get(one, 1) for one in clients)

    def refuse_stranger(self, own: ClientKey) -> None:
        """Raise unless a client is in it with its own key, and a silo with its own size."""
        if self.silos.get(own.id) != own.silo:
            raise ValueError(
                f"client {own.id} is in the roster with {self.silos.get(own.id, 'no')} people as a"
                f" silo, and by its key it has {own.silo or 'no'}"
            )
        if self.keys.get(own.id) != own.signing.public_key().public_bytes_raw():
            raise ValueError(f"client {own.id} is not in the roster with its own key")


def copy_of(key: Path) -> Path:
    """Where the owner of a client's key file keeps the roster that was confirmed."""
    return key.with_name(f"{key.name}.{FILE}")


def confirm(key: Path, roster: Path, digest: str) -> Roster:
    """Keep a roster for a client, if it has the digest that its owner knows from others.

    A later one takes its place, once its own digest is confirmed.
    """
    own, known = ClientKey.load(key), Roster.load(roster)
    if digest.replace(" ", "").lower() != known.digest:
        raise ValueError(
            f"the roster {roster} has the digest {known.digest}, and not {digest!r}: it is not the"
            " one that the others have"
        )
    known.refuse_stranger(own)
    known.save(copy_of(key))
    return known
