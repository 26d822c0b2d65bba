"""The lines of a ledger: a header, then one entry per release, each hashed with the one before.

A line is the canonical JSON of its fields and of `hash`, the SHA-256 of the canonical JSON of
those fields.  An entry's `previous` is the hash of the line above.  So the hash of the last line,
the head, stands for the whole ledger, and a checkpoint that stores it can tell if anything is
different or missing.  Nothing in a ledger depends on the users, the clock or the host.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tacit.privacy import checks
from tacit.privacy.budget import Budget
from tacit.privacy.events import Event, canonical_json, event_from_json

FORMAT = "tacit-ledger-1"
UNITS = ("user", "record")


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or that must not be written to."""


@dataclass(frozen=True)
class Head:
    """How many entries a ledger has, and the hash of its last line."""

    entries: int
    hash: str

    def __post_init__(self) -> None:
        checks.whole("the head's entries", self.entries)
        _hexadecimal("the head's hash", self.hash)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's head", data, cls)
        return cls(**data)


@dataclass(frozen=True)
class Parent:
    """The run that a branch left, and that run's head where it left."""

    run_id: str
    head: Head

    def __post_init__(self) -> None:
        _name("the parent's run_id", self.run_id)

    def to_json(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "head": self.head.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's parent", data, cls)
        return cls(data["run_id"], Head.from_json(data["head"]))


@dataclass(frozen=True)
class Header:
    """What every epsilon from this ledger is relative to; all of it declared, not counted."""

    run_id: str
    unit: str
    population: int
    delta: float
    budget: Budget | None = None
    branch: str = "main"
    parent: Parent | None = None

    def __post_init__(self) -> None:
        _name("run_id", self.run_id)
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        checks.whole("population", self.population, at_least=1)
        checks.open_unit("delta", self.delta)
        _name("branch", self.branch)

    def to_json(self) -> dict[str, Any]:
        return _shallow(self) | {
            "budget": dataclasses.asdict(self.budget) if self.budget else None,
            "parent": self.parent.to_json() if self.parent else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        _expect_fields("a ledger's header", data, cls)
        budget, parent = data["budget"], data["parent"]
        read = {
            "budget": None if budget is None else Budget(**budget),
            "parent": None if parent is None else Parent.from_json(parent),
        }
        return cls(**{**data, **read})


@dataclass(frozen=True)
class Entry:
    """One release (kind "round" for a round of training), or something recorded that is free."""

    index: int
    kind: str
    round: int
    attempt: int
    branch: str
    event: Event
    plan_hash: str
    note: str | None = None

    def __post_init__(self) -> None:
        checks.whole("index", self.index)
        _name("kind", self.kind)
        checks.whole("round", self.round)
        checks.whole("attempt", self.attempt)
        _name("branch", self.branch)
        _hexadecimal("plan_hash", self.plan_hash)
        if not (self.note is None or isinstance(self.note, str)):
            raise ValueError(f"note must be text or nothing, got {self.note!r}")

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
    return _seal({"format": FORMAT} | header.to_json())


def entry_line(entry: Entry, previous: str) -> tuple[bytes, str]:
    """An entry's line, with its newline, and its hash."""
    return _seal(entry.to_json() | {"previous": previous})


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
        raise _fault(path, 1, "it is cut off" if torn else "the file is empty")
    header, header_hash = _read_header(lines[0], path)
    inherited = header.parent.head.entries if header.parent else 0
    entries: list[Entry] = []
    hashes = [header_hash]
    for number, line in enumerate(lines[1:], start=2):
        entry, line_hash = _read_entry(line, path, number, hashes[-1])
        if entry.index >= inherited and entry.branch != header.branch:
            what = f"the entry is of the branch {entry.branch!r}"
            raise _fault(path, number, f"{what}, and the ledger of {header.branch!r}")
        entries.append(entry)
        hashes.append(line_hash)
    needed = max(inherited, head.entries if head else 0)
    if len(entries) < needed:
        what = f"it is {'cut off' if torn else 'missing'}: the ledger ends after {len(entries)}"
        because = "the checkpoint has" if head and needed == head.entries else "the branch inherits"
        raise _fault(path, len(lines) + 1, f"{what} entries, and {because} {needed}")
    if head and hashes[head.entries] != head.hash:
        raise _fault(path, head.entries + 1, "its hash is not the one that the checkpoint has")
    return Contents(header, tuple(entries), tuple(hashes), torn)


def _read_header(line: bytes, path: Path) -> tuple[Header, str]:
    fields, line_hash = _open_seal(line, path, 1)
    if fields.pop("format", None) != FORMAT:
        raise _fault(path, 1, f"it is not the header of a ledger in the format {FORMAT}")
    try:
        return Header.from_json(fields), line_hash
    except (ValueError, TypeError) as error:
        raise _fault(path, 1, f"the header is not valid: {error}") from error


def _read_entry(line: bytes, path: Path, number: int, above: str) -> tuple[Entry, str]:
    fields, line_hash = _open_seal(line, path, number)
    previous = fields.pop("previous", None)
    try:
        entry = Entry.from_json(fields)
    except (ValueError, TypeError) as error:
        raise _fault(path, number, f"the entry is not valid: {error}") from error
    if entry.index != number - 2:
        what = f"it holds entry {entry.index} where entry {number - 2} belongs"
        raise _fault(path, number, f"{what}, so lines were removed, repeated or reordered")
    if previous != above:
        raise _fault(path, number, "it does not follow from the line above it")
    return entry, line_hash


def torn_line(path: Path, contents: Contents) -> LedgerError:
    """The error for a last line without its newline."""
    return _fault(path, len(contents.hashes) + 1, "it is cut off")


def _seal(fields: dict[str, Any]) -> tuple[bytes, str]:
    line_hash = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    return canonical_json(fields | {"hash": line_hash}).encode() + b"\n", line_hash


def _open_seal(line: bytes, path: Path, number: int) -> tuple[dict[str, Any], str]:
    """The fields of a line and its hash, which must be theirs; another spelling is refused too."""
    try:
        fields = json.loads(line)
        is_canonical = canonical_json(fields).encode() == line
    except (ValueError, RecursionError) as error:
        raise _fault(path, number, "it is cut off or not valid JSON") from error
    if not (isinstance(fields, dict) and is_canonical):
        raise _fault(path, number, "it is not a JSON object as tacit writes it")
    stated = fields.pop("hash", None)
    _, line_hash = _seal(fields)
    if stated != line_hash:
        raise _fault(path, number, "it was changed: its hash does not match what it says")
    return fields, line_hash


def _fault(path: Path, number: int, what: str) -> LedgerError:
    return LedgerError(f"the ledger {path} cannot be trusted at line {number}: {what}")


def _shallow(record: Header | Entry) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _expect_fields(name: str, data: object, cls: type) -> None:
    expected = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(data, Mapping) or set(data) != expected:
        found = sorted(data) if isinstance(data, Mapping) else data
        raise ValueError(f"{name} needs the fields {sorted(expected)}, got {found}")


def _name(name: str, value: str) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text that is not empty, got {value!r}")


def _hexadecimal(name: str, value: str) -> None:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]+", value):
        raise ValueError(f"{name} must be lower-case hexadecimal digits, got {value!r}")
