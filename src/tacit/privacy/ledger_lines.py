"""The lines of a ledger: a header, then one entry per release, each hashed with the one before.

A line is the canonical JSON of its fields and of `hash`, the SHA-256 of the canonical JSON of those
fields.  An entry's `previous` is the hash of the line above.  So the hash of the last line, the
head, stands for the whole ledger, and a checkpoint that stores it can tell if anything is different
or missing.  Nothing in a ledger depends on the users, the clock or the host.

This module is the format: what lines say, and how a chain of them is sealed and verified.
`privacy.ledger` charges releases to such a file, and `corpus.people_ledger` keeps another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tacit.privacy.budget import Budget
from tacit.privacy.events import Adjacency, Composition, Event
from tacit.privacy.records import (
    Count,
    Digest,
    OpenUnit,
    Record,
    Text,
    at_least,
    canonical_json,
    one_of,
)

FORMAT = "tacit-ledger-2"
UNITS = ("user", "record")
Unit = Annotated[str, one_of(*UNITS)]


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or that must not be written to."""

    @classmethod
    def at(cls, path: Path, number: int, what: str) -> LedgerError:
        """The error for a line that is wrong."""
        return cls(f"the ledger {path} cannot be trusted at line {number}: {what}")


def seal(fields: dict[str, Any]) -> tuple[bytes, str]:
    """The line of these fields, with its newline, and its hash."""
    line_hash = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    return canonical_json(fields | {"hash": line_hash}).encode() + b"\n", line_hash


def _open_seal(line: bytes, path: Path, number: int) -> tuple[dict[str, Any], str]:
    """The fields of a line and its hash; `LedgerError` if they do not match.

    Another spelling of the same JSON is refused too.  The hash is taken of the line's own bytes
    with the item that states it cut out: these are the canonical JSON of all other fields, and
    ledgers are long.
    """
    try:
        fields = json.loads(line)
        is_canonical = canonical_json(fields).encode() == line
    except (ValueError, RecursionError) as error:
        raise LedgerError.at(path, number, "it is cut off or not valid JSON") from error
    if not (isinstance(fields, dict) and is_canonical):
        raise LedgerError.at(path, number, "it is not a JSON object as tacit writes it")
    stated = fields.pop("hash", None)
    item = b'"hash":' + canonical_json(stated).encode()
    others = line.replace(item + b",", b"", 1) if fields else b"{}"
    if len(others) == len(line):  # the last of the fields
        others = line.replace(b"," + item, b"", 1)
    if stated != hashlib.sha256(others).hexdigest():
        raise LedgerError.at(path, number, "it was changed: its hash does not match what it says")
    return fields, stated


class Pattern:
    """A line that is known but for a few values: of a charge that is made again, say.

    Most lines of a long ledger are the one above them, a round later.  A line with the very bytes
    that would be written for that says what was checked above, of another round, and is neither
    parsed nor checked once more.
    """

    def __init__(self, fields: Mapping[str, Any], **blanks: str) -> None:
        """`blanks` are the values that are not in `fields`, as `%` formats them."""
        values = {name: canonical_json(fields[name]).replace("%", "%%") for name in fields}
        self._fields = _template(values | blanks)
        self._line = _template(values | blanks | {"hash": '"%(hash)s"'})

    @classmethod
    def of_entry(cls, fields: Mapping[str, Any]) -> Pattern:
        """The line of an entry, but for where it stands and of which round it is."""
        return cls(fields, index="%(index)d", round="%(round)d", previous='"%(previous)s"')

    def filled(self, **values: object) -> tuple[bytes, str]:
        """What `seal` makes of all fields, without the newline."""
        line_hash = hashlib.sha256((self._fields % values).encode()).hexdigest()
        return (self._line % (values | {"hash": line_hash})).encode(), line_hash


def _template(values: Mapping[str, str]) -> str:
    """The canonical JSON of an object, of the JSON of each of its values."""
    names = {name: canonical_json(name).replace("%", "%%") for name in sorted(values)}
    return f"{{{','.join(f'{names[name]}:{values[name]}' for name in names)}}}"


Foreseen = Callable[[str], tuple[bytes, str] | None]


def open_chain(
    lines: Sequence[bytes],
    path: Path,
    format: str,
    *,
    count: int = 0,
    above: str = "",
    foreseen: Foreseen = lambda above: None,
) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    """Each line's number, fields and hash, once it is verified to follow from the line above it.

    Args:
        lines: whole lines, without their newlines.
        path: the file that `LedgerError` names.
        format: what the first line of the file must say that its format is.
        count: how many lines of the file were verified before.
        above: the hash of the last of those.
        foreseen: the line and the hash that are expected to follow the line with a hash, if any.
            If it is just that, it has None for fields: there is nothing to learn from it.
    """
    for number, line in enumerate(lines, start=count + 1):
        expected = foreseen(above)
        fields: dict[str, Any] | None
        if expected is not None and line == expected[0]:
            fields, line_hash = None, expected[1]
        else:
            fields, line_hash = _open_seal(line, path, number)
            _refuse_unlinked(fields, path, number, format, above)
        yield number, fields, line_hash
        above = line_hash


def _refuse_unlinked(
    fields: dict[str, Any], path: Path, number: int, format: str, above: str
) -> None:
    """Refuse a first line of another format, and any other that is not about the one above it."""
    if number == 1:
        if fields.get("format") != format:
            what = f"it is not the header of a ledger in the format {format}"
            raise LedgerError.at(path, 1, what)
    elif fields.pop("previous", None) != above:
        what = "it does not follow from the line above it"
        raise LedgerError.at(path, number, f"{what}: lines were removed, repeated or reordered")


@dataclass(frozen=True)
class Head(Record):
    """How many entries a ledger has, and the hash of its last line."""

    entries: Count
    hash: Digest
    title: ClassVar[str] = "a ledger's head"
    prefix: ClassVar[str] = "the head's "


@dataclass(frozen=True)
class PublicInput(Record):
    """Something that was declared public: what it was used for, its name, and its digest."""

    what: Text
    name: Text
    sha256: Digest
    title: ClassVar[str] = "a public input"

    def __str__(self) -> str:
        return f"the {self.what} {self.name} (sha256 {self.sha256[:16]})"


@dataclass(frozen=True)
class PriorCost(Record):
    """What a tokenizer or starting weights cost the people whose text they were learnt from.

    Who these people are (`whom`) decides what a run may claim:

    same       the same people: those releases come first in the run's own ledger, and costs add up
    beside     others of the same corpus: everybody is in one part only, so that the larger of the
               two epsilons holds for everybody ("parallel composition": adding or removing one
               person changes the input of one of the two, and the other sees at most its result)
    elsewhere  other people: the claim leaves them out, and says so
    """

    what: Text
    whom: Annotated[str, one_of("same", "beside", "elsewhere")]
    people: str = ""
    part: str = ""
    releases: Composition | None = None  # None where the cost is not known
    head: Head | None = None  # of the ledger that the cost comes from
    excluded: tuple[str, ...] = ()  # whom else it tells about, as a claim says it
    title: ClassVar[str] = "a prior cost"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.whom == "beside" and self.releases is None:
            raise ValueError("releases must be known of a cost to others of the same corpus")


@dataclass(frozen=True)
class Parent(Record):
    """The run that a branch left, after which round, and that run's head at that point."""

    run_id: Text
    head: Head
    round: Count = 0
    title: ClassVar[str] = "a ledger's parent"
    prefix: ClassVar[str] = "the parent's "


@dataclass(frozen=True)
class Header(Record):
    """Everything that a claim says besides the releases themselves.

    What is here is under the hash chain, so that no file outside of the ledger has a word in the
    claim.
    """

    run_id: Text
    unit: Unit
    population: Annotated[int, at_least(1)]
    delta: OpenUnit
    budget: Budget | None = None
    branch: Text = "main"
    parent: Parent | None = None
    adjacency: Adjacency | None = None  # None where the run adds no noise
    # Whose texts: people's, mixed among users, or nobody's.
    view: Annotated[str, one_of("people", "iid", "synthetic")] = "people"
    simulation: bool = False
    audit: bool = False
    population_is_counted: bool = False
    # What the entries of kind "round" are.
    counted: Annotated[str, one_of("rounds", "steps", "epochs", "releases")] = "rounds"
    accountant: Text | None = None  # asked for by name; None is the sound one with least epsilon
    people: str = ""
    part: str = ""  # which part of the people, such as "1/2", of those that `split` cuts
    split: str = ""
    data: str = ""  # a commitment to the text
    experiment: str = ""  # the SHA-256 of the resolved experiment
    excluded: tuple[str, ...] = ()
    public_inputs: tuple[PublicInput, ...] = ()
    prior_costs: tuple[PriorCost, ...] = ()
    title: ClassVar[str] = "a ledger's header"

    @property
    def about_people(self) -> bool:
        """Whether a guarantee from this ledger protects anybody."""
        return self.view == "people"

    @property
    def first_round(self) -> int:
        """The round that a branch began after; 0 for any other run."""
        return self.parent.round if self.parent else 0

    def admits(self, event: Event) -> bool:
        """Whether an event's cost is stated for the adjacency that the header declares."""
        return self.adjacency is None or event.adjacency in (None, self.adjacency)

    def line(self) -> tuple[bytes, str]:
        """A ledger's first line, with its newline, and its hash."""
        return seal({"format": FORMAT} | self.to_json())

    @classmethod
    def read(cls, fields: dict[str, Any], path: Path) -> Header:
        """The header that a ledger's first line holds; `LedgerError` if it is not valid."""
        try:
            return cls.from_json(
                {name: value for name, value in fields.items() if name != "format"}
            )
        except (ValueError, TypeError) as error:
            raise LedgerError.at(path, 1, f"the header is not valid: {error}") from error


@dataclass(frozen=True)
class Charge(Record):
    """A release that is about to be made, or something to be recorded that is free."""

    kind: Text  # "round" for a round of training
    round: Count
    attempt: Count
    event: Event
    plan_hash: Digest  # of what the entry is about: a round's plan, a tokenizer, a file
    note: str | None = field(default=None, kw_only=True)
    estimator: str | None = field(default=None, kw_only=True)  # how a round's sum became an average


@dataclass(frozen=True)
class Entry(Charge):
    """A charge as it stands in a ledger: in which line, and of which branch."""

    index: Count = field(kw_only=True)
    branch: Text = field(kw_only=True)
    title: ClassVar[str] = "a ledger's entry"

    def next(self) -> Entry:
        """The same charge in the next line and for the next round; all else was checked before."""
        entry = object.__new__(Entry)
        vars(entry).update(vars(self), index=self.index + 1, round=self.round + 1)
        return entry

    def line(self, previous: str) -> tuple[bytes, str]:
        """The line after the one with the hash `previous`, with its newline, and its hash."""
        return seal(self.to_json() | {"previous": previous})
