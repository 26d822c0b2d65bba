"""The lines of a ledger: a header, then one entry per release, each hashed with the one before.

A line is the canonical JSON of its fields and of `hash`, the SHA-256 of the canonical JSON of
those fields.  An entry's `previous` is the hash of the line above.  So the hash of the last line,
the head, stands for the whole ledger, and a checkpoint that stores it can tell if anything is
different or missing.  Nothing in a ledger depends on the users, the clock or the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tacit.privacy import checks
from tacit.privacy.budget import Budget
from tacit.privacy.events import Adjacency, Event, event_from_json
from tacit.privacy.fields import expect_fields as _expect_fields
from tacit.privacy.fields import hexadecimal as _hexadecimal
from tacit.privacy.fields import name as _name
from tacit.privacy.fields import one_of as _one_of
from tacit.privacy.inputs import Head, PriorCost, PublicInput
from tacit.privacy.sealing import LedgerError, fault, open_seal, seal

FORMAT = "tacit-ledger-2"
UNITS = ("user", "record")
VIEWS = ("people", "iid", "synthetic")  # whose texts: people's, mixed among users, or nobody's
COUNTED = ("rounds", "steps", "epochs", "releases")


@dataclass(frozen=True)
class Parent:
    """The run that a branch left, after which round, and that run's head at that point."""

    run_id: str
    head: Head
    round: int = 0

    def __post_init__(self) -> None:
        _name("the parent's run_id", self.run_id)
        checks.whole("the parent's round", self.round)

    def to_json(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "head": self.head.to_json(), "round": self.round}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's parent", data, cls)
        return cls(data["run_id"], Head.from_json(data["head"]), data["round"])


@dataclass(frozen=True)
class Header:
    """Everything that a claim says besides the releases themselves.

    What is here is under the hash chain, so that no file outside of the ledger has a word in the
    claim.  `adjacency` is None where the run adds no noise.  `counted` says what the entries of
    kind "round" are.  `part` is which part of the people, such as "1/2", of those that `split` cuts
    them into.  `accountant` is the one that was asked for by name; None stands for the
    sound one with the least epsilon.  `data` is a commitment to the text, and `experiment` the
    SHA-256 of the resolved experiment.
    """

    run_id: str
    unit: str
    population: int
    delta: float
    budget: Budget | None = None
    branch: str = "main"
    parent: Parent | None = None
    adjacency: Adjacency | None = None
    view: str = "people"
    simulation: bool = False
    audit: bool = False
    population_is_counted: bool = False
    counted: str = "rounds"
    accountant: str | None = None
    people: str = ""
    part: str = ""
    split: str = ""
    data: str = ""
    experiment: str = ""
    excluded: tuple[str, ...] = ()
    public_inputs: tuple[PublicInput, ...] = ()
    prior_costs: tuple[PriorCost, ...] = ()

    def __post_init__(self) -> None:
        _name("run_id", self.run_id)
        _one_of("unit", self.unit, UNITS)
        _one_of("view", self.view, VIEWS)
        _one_of("counted", self.counted, COUNTED)
        checks.whole("population", self.population, at_least=1)
        checks.open_unit("delta", self.delta)
        _name("branch", self.branch)
        for name in ("simulation", "audit", "population_is_counted"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("people", "part", "split", "data", "experiment"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r}")
        if self.accountant is not None:
            _name("accountant", self.accountant)

    @property
    def about_people(self) -> bool:
        """Whether a guarantee from this ledger protects anybody."""
        return self.view == "people"

    @property
    def first_round(self) -> int:
        """The round that a branch began after; 0 for any other run."""
        return self.parent.round if self.parent else 0

    def to_json(self) -> dict[str, Any]:
        return _shallow(self) | {
            "budget": dataclasses.asdict(self.budget) if self.budget else None,
            "parent": self.parent.to_json() if self.parent else None,
            "adjacency": self.adjacency.value if self.adjacency else None,
            "excluded": list(self.excluded),
            "public_inputs": [dataclasses.asdict(one) for one in self.public_inputs],
            "prior_costs": [one.to_json() for one in self.prior_costs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's header", data, cls)
        budget, parent, adjacency = data["budget"], data["parent"], data["adjacency"]
        read = {
            "budget": None if budget is None else Budget(**budget),
            "parent": None if parent is None else Parent.from_json(parent),
            "adjacency": None if adjacency is None else Adjacency(adjacency),
            "excluded": tuple(str(one) for one in data["excluded"]),
            "public_inputs": tuple(PublicInput(**one) for one in data["public_inputs"]),
            "prior_costs": tuple(PriorCost.from_json(one) for one in data["prior_costs"]),
        }
        return cls(**{**data, **read})


@dataclass(frozen=True)
class Entry:
    """One release (kind "round" for a round of training), or something recorded that is free.

    `plan_hash` is the digest of what the entry is about: a round's plan, a tokenizer, a file.
    """

    index: int
    kind: str
    round: int
    attempt: int
    branch: str
    event: Event
    plan_hash: str
    note: str | None = None
    estimator: str | None = None  # how a round's average was made of its sum

    def __post_init__(self) -> None:
        checks.whole("index", self.index)
        _name("kind", self.kind)
        checks.whole("round", self.round)
        checks.whole("attempt", self.attempt)
        _name("branch", self.branch)
        _hexadecimal("plan_hash", self.plan_hash)
        for name in ("note", "estimator"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"{name} must be text or nothing, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        return _shallow(self) | {"event": self.event.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's entry", data, cls)
        if not isinstance(data["event"], Mapping):
            raise ValueError(f"event must be a JSON object, got {data['event']!r}")
        return cls(**{**data, "event": event_from_json(data["event"])})


def header_line(header: Header) -> tuple[bytes, str]:
    """The first line, with its newline, and its hash."""
    return seal({"format": FORMAT} | header.to_json())


def entry_line(entry: Entry, previous: str) -> tuple[bytes, str]:
    """An entry's line, with its newline, and its hash."""
    return seal(entry.to_json() | {"previous": previous})


@dataclass(frozen=True)
class Contents:
    """A ledger's verified lines, and what is left after the last newline."""

    header: Header
    entries: tuple[Entry, ...]
    hashes: tuple[str, ...]  # of the header, then of each entry
    torn: bytes


def verify(data: bytes, path: Path, head: Head | None = None) -> Contents:
    """Read a ledger's bytes, or raise `LedgerError` naming the first line that is wrong.

    Without a head, entries cut off at the end leave nothing behind that could be noticed.
    """
    *lines, torn = data.split(b"\n")
    if not lines:
        raise fault(path, 1, "it is cut off" if torn else "the file is empty")
    header, header_hash = read_header(lines[0], path)
    inherited = header.parent.head.entries if header.parent else 0
    entries: list[Entry] = []
    hashes = [header_hash]
    for number, line in enumerate(lines[1:], start=2):
        entry, line_hash = read_entry(line, path, number, hashes[-1])
        if entry.index >= inherited and entry.branch != header.branch:
            what = f"the entry is of the branch {entry.branch!r}"
            raise fault(path, number, f"{what}, and the ledger of {header.branch!r}")
        if not is_stated_for(header, entry.event):
            what = f"its event is stated for {entry.event.adjacency} adjacency"
            raise fault(path, number, f"{what}, and the ledger for {header.adjacency}")
        entries.append(entry)
        hashes.append(line_hash)
    needed = max(inherited, head.entries if head else 0)
    if len(entries) < needed:
        what = f"it is {'cut off' if torn else 'missing'}: the ledger ends after {len(entries)}"
        because = "the checkpoint has" if head and needed == head.entries else "the branch inherits"
        raise fault(path, len(lines) + 1, f"{what} entries, and {because} {needed}")
    if head and hashes[head.entries] != head.hash:
        raise fault(path, head.entries + 1, "its hash is not the one that the checkpoint has")
    return Contents(header, tuple(entries), tuple(hashes), torn)


def read_header(line: bytes, path: Path) -> tuple[Header, str]:
    fields, line_hash = open_seal(line, path, 1)
    if fields.pop("format", None) != FORMAT:
        raise fault(path, 1, f"it is not the header of a ledger in the format {FORMAT}")
    try:
        return Header.from_json(fields), line_hash
    except (ValueError, TypeError) as error:
        raise fault(path, 1, f"the header is not valid: {error}") from error


def read_entry(line: bytes, path: Path, number: int, above: str) -> tuple[Entry, str]:
    fields, line_hash = open_seal(line, path, number)
    previous = fields.pop("previous", None)
    try:
        entry = Entry.from_json(fields)
    except (ValueError, TypeError) as error:
        raise fault(path, number, f"the entry is not valid: {error}") from error
    if entry.index != number - 2:
        what = f"it holds entry {entry.index} where entry {number - 2} belongs"
        raise fault(path, number, f"{what}, so lines were removed, repeated or reordered")
    if previous != above:
        raise fault(path, number, "it does not follow from the line above it")
    return entry, line_hash


def is_stated_for(header: Header, event: Event) -> bool:
    """Whether an event's cost is one under the adjacency that the header declares."""
    return header.adjacency is None or event.adjacency in (None, header.adjacency)


def torn_line(path: Path, contents: Contents) -> LedgerError:
    """The error for a last line without its newline."""
    return fault(path, len(contents.hashes) + 1, "it is cut off")


def _shallow(record: Header | Entry) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
