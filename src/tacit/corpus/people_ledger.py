"""The ledger of a group of people: every charge on them, by whichever run, on whichever corpus.

It lies in the installation's state folder (`corpus.people`), so that it outlives run directories
and corpora.  A line of it holds a line of a run's own ledger, whole, so that every run's ledger
can be read back from here; or a budget for all runs together.

Guarantee: a charge is in this file, synced, before the noise of its release is drawn.  The file is
hash-chained and only ever grows.  A run directory whose ledger is shorter than, or different from,
what stands here was restored from a backup, copied or edited, and is refused.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.privacy import checks, durable
from tacit.privacy.accountants import sound_accountants
from tacit.privacy.budget import Allowance, Budget, BudgetExceeded
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.events import Adjacency, Composition, Event, PostProcessing, canonical_json
from tacit.privacy.guarantee import figures
from tacit.privacy.ledger import Ledger, Release
from tacit.privacy.ledger_lines import Header, read_entry, read_header
from tacit.privacy.sealing import LedgerError, fault, open_seal, seal

FORMAT = "tacit-people-1"
FILE_NAME = "ledger.jsonl"

# Unit and adjacency: what an epsilon is relative to.  Only runs with equal terms can be composed.
Terms = tuple[str, Adjacency | None]


@dataclass(frozen=True)
class PeoplesBudget:
    """The most that all runs on these people may cost together."""

    epsilon: float
    delta: float
    unit: str = "user"
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.open_unit("delta", self.delta)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "adjacency": self.adjacency.value}

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g}, {self.unit}-level under"
            f" {self.adjacency} adjacency"
        )


@dataclass
class Known:
    """A run as these people's ledger knows it: all of its header and entries."""

    header: Header
    hashes: list[str]  # of the header, then of each entry
    lines: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger) -> Known:
        """A run's own ledger, in the same form."""
        events = [entry.event for entry in ledger.entries]
        return cls(ledger.header, list(ledger.hashes), events=events)

    @property
    def composition(self) -> Composition:
        return Composition.of(self.events)

    @property
    def why_not_counted(self) -> str | None:
        """Why its cost is in no sum, in words that go with a number of runs."""
        if self.header.view == "iid":
            return "on texts mixed among users, which protects nobody"
        if self.header.view == "synthetic":
            return "on made-up text"
        if self.header.simulation:
            return "with a seed, which must not be released"
        if not self.composition.is_private:
            return "without privacy, which must not be released"
        return None

    @property
    def terms(self) -> Terms:
        return self.header.unit, self.header.adjacency


@dataclass
class _Record:
    """What the lines read so far say."""

    size: int = 0
    head: str = ""
    lines: int = 0
    runs: dict[str, Known] = field(default_factory=dict)  # by run id, in the order they began
    budget: PeoplesBudget | None = None


class PeopleLedger:
    """The ledger in a group's folder; a group without one has spent nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._record = _Record()
        self._allowance: tuple[int, Allowance] | None = None  # as of so many lines
        self._refresh()

    # Reading.

    def runs(self) -> dict[str, Known]:
        """Every run on these people, whole, in the order in which they began."""
        self._refresh()
        return dict(self._record.runs)

    @property
    def budget(self) -> PeoplesBudget | None:
        """The budget declared last."""
        self._refresh()
        return self._record.budget

    def _refresh(self) -> None:
        """Read and verify what was appended since the last look."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._record.size)
                data = file.read()
                end = file.tell()
        except FileNotFoundError:
            if self._record.lines:
                raise LedgerError(f"the ledger {self.path} is gone") from None
            return
        if end < self._record.size:
            raise LedgerError(f"the ledger {self.path} has become shorter")
        *lines, torn = data.split(b"\n")
        for line in lines:
            self._take(line)
        # An append that was cut off: its noise was never drawn, and the next append drops it.
        self._record.size += len(data) - len(torn)

    def _take(self, line: bytes) -> None:
        record, number = self._record, self._record.lines + 1
        fields, line_hash = open_seal(line, self.path, number)
        if number == 1:
            if fields.get("format") != FORMAT:
                raise fault(self.path, 1, f"it is not the header of a ledger of format {FORMAT}")
        else:
            if fields.get("previous") != record.head:
                raise fault(self.path, number, "it does not follow from the line above it")
            if "budget" in fields:
                given = fields["budget"]
                adjacency = Adjacency(given["adjacency"])
                record.budget = PeoplesBudget(**{**given, "adjacency": adjacency})
            else:
                self._take_line(fields["run"], canonical_json(fields["line"]).encode(), number)
        record.head, record.lines = line_hash, number

    def _take_line(self, run_id: str, line: bytes, number: int) -> None:
        """A line of a run's own ledger."""
        known = self._record.runs.get(run_id)
        if known is None:
            header, line_hash = read_header(line, self.path)
            if header.run_id != run_id:
                raise fault(self.path, number, f"it is a line of the run {header.run_id}")
            known = self._record.runs[run_id] = Known(header, [line_hash])
        else:
            at = len(known.hashes) + 1
            entry, line_hash = read_entry(line, self.path, at, known.hashes[-1])
            known.hashes.append(line_hash)
            known.events.append(entry.event)
        known.lines.append(line + b"\n")

    # Writing.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with the file, all of it read and verified."""
        lock = self.path.with_name(f".{FILE_NAME}.lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._refresh()
            yield
        finally:
            os.close(fd)

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows and return once they are on the disk; only while locked."""
        record = self._record
        data, head = b"", record.head
        if not record.lines:
            first, head = seal({"format": FORMAT})
            data = first
        for row in rows:
            line, head = seal(row | {"previous": head})
            data += line
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, record.size)  # drops what a crash left behind the last whole line
            if os.pwrite(fd, data, record.size) != len(data):
                os.ftruncate(fd, record.size)
                raise OSError(28, "No space left on device", str(self.path))
            os.fsync(fd)
        finally:
            os.close(fd)
        if not record.lines:
            durable.sync_directory(self.path.parent)
        self._refresh()

    def _append_lines(self, run_id: str, lines: Sequence[bytes]) -> None:
        self._append([{"run": run_id, "line": _parsed(line)} for line in lines])

    def _lines_of(self, run_id: str) -> list[bytes]:
        known = self._record.runs.get(run_id)
        return known.lines if known else []

    def declare(self, budget: PeoplesBudget) -> None:
        """Declare a budget over all runs, those that were before included."""
        with self._locked():
            self._append([{"budget": budget.to_json()}])

    def witness(self, ledger: Ledger) -> None:
        """Let this ledger know of all that a run charges from now on, and of what it has charged.

        Raises `LedgerError` if the run's own ledger is shorter than what is known of it here, or
        another one: then its directory was restored, copied or edited.  What it has charged and
        is not known here (a run that was killed in between, or came from another installation) is
        added.  A simulation is remembered by its header alone, since its noise protects nobody.
        """
        lines = [line + b"\n" for line in ledger.path.read_bytes().split(b"\n")[:-1]]
        run_id = ledger.header.run_id
        with self._locked():
            known = self._lines_of(run_id)
            if ledger.header.simulation:
                self._refuse_unbudgeted(ledger.header, [])
                if not known:
                    self._append_lines(run_id, lines[:1])
                return
            if known != lines[: len(known)]:
                raise LedgerError(_forked(ledger.path.parent, known, lines))
            unknown = [entry.event for entry in ledger.entries[max(len(known) - 1, 0) :]]
            self._refuse_unbudgeted(ledger.header, unknown)
            self._append_lines(run_id, lines[len(known) :])
        ledger.witness = self

    @contextmanager
    def charging(
        self, ledger: Ledger, releases: Sequence[Release]
    ) -> Iterator[Callable[[Sequence[bytes]], None]]:
        """See `privacy.ledger.Witness`."""
        run_id = ledger.header.run_id
        with self._locked():
            known = self._lines_of(run_id)
            if len(known) != 1 + len(ledger.entries):
                raise LedgerError(
                    f"another copy of the run {run_id} has charged {len(known) - 1} releases to"
                    f" these people, and {ledger.path} has {len(ledger.entries)}: only one of them"
                    " can go on"
                )
            self._refuse_unbudgeted(ledger.header, [release.event for release in releases])
            yield lambda lines: self._append_lines(run_id, lines)

    def _refuse_unbudgeted(self, header: Header, events: Sequence[Event]) -> None:
        """Raise where the people's budget does not cover what is about to be charged."""
        budget = self._record.budget
        if budget is None or not header.about_people:
            return
        what = f"the budget of these people ({budget})"
        if header.simulation:
            raise BudgetExceeded(f"{what} allows no run with a seed, whose noise protects nobody")
        if header.adjacency is None:
            raise BudgetExceeded(f"{what} allows no run without noise")
        own = (header.unit, header.adjacency)
        if own != (budget.unit, budget.adjacency):
            raise BudgetExceeded(
                f"{what} cannot count a {header.unit}-level run under {header.adjacency} adjacency"
            )
        counted = [event for event in events if not isinstance(event, PostProcessing)]
        if not counted:
            return
        if len(set(counted)) > 1:
            total = Composition.of([*self.spent(own).counts, *counted])
            excess = _epsilon(total, budget.delta)
            fits = excess <= budget.epsilon
        else:
            allowance = self._allowance_of(budget, own, counted[0], len(events))
            fits = allowance.admits(len(counted))
            excess = math.nan if fits else allowance.excess
            allowance.admit(len(counted))
        if not fits:
            self._allowance = None
            raise BudgetExceeded(
                f"{what} ends this run: the next release would bring all runs on them to epsilon"
                f" {excess:.6g}"
            )

    def _allowance_of(
        self, budget: PeoplesBudget, terms: Terms, event: Event, coming: int
    ) -> Allowance:
        """What of one event still fits; searched anew only after something else was charged."""
        kept = self._allowance
        if kept is None or kept[1].event != event or kept[0] != self._record.lines:
            spent = self.spent(terms)
            limit = Budget(budget.epsilon, budget.delta, "the least sound accountant")
            kept = (0, Allowance(limit, _epsilon, spent, event))
        self._allowance = (self._record.lines + coming, kept[1])
        return kept[1]

    def absorb(self, other: PeopleLedger) -> None:
        """Take over another group's lines, because both turned out to be the same people."""
        with self._locked():
            for run_id, run in other._record.runs.items():
                known = self._lines_of(run_id)
                if known == run.lines[: len(known)]:
                    self._append_lines(run_id, run.lines[len(known) :])
            if other._record.budget and not self._record.budget:
                self._append([{"budget": other._record.budget.to_json()}])

    # What all runs cost together.

    def spent(self, terms: Terms) -> Composition:
        """All counted releases on these terms."""
        return _together([run for run in self.runs().values() if _counts(run, terms)])

    def joint(self, ledger: Ledger) -> Joint | None:
        """What the run of this ledger costs together with all others; None if it is alone."""
        own = Known.of(ledger)
        runs = self.runs() | {ledger.header.run_id: own}
        if len(runs) == 1:
            return None
        terms = own.terms
        counted = [run for run in runs.values() if _counts(run, terms)]
        reasons: dict[str, int] = {}
        for run_id, run in runs.items():
            reason = run.why_not_counted
            if reason is None and run.terms != terms:
                unit, adjacency = run.terms
                reason = f"of another kind ({unit}-level, {adjacency})"
            if reason is not None and run_id != ledger.header.run_id:
                reasons[reason] = reasons.get(reason, 0) + 1
        return Joint.of(len(runs) - 1, counted, reasons, ledger.header.delta)


@dataclass(frozen=True)
class Joint:
    """What is known of all runs on the same people's text."""

    others: int
    counted: int  # runs in the figure, this one included if it is of their kind
    epsilon: float | None
    delta: float
    accountant: str
    why_none: str  # why there is no figure
    not_counted: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls, others: int, counted: Sequence[Known], reasons: dict[str, int], delta: float
    ) -> Joint:
        """The joint figure, or why there is none: a remark never raises."""
        epsilon, by, why_none = None, "", ""
        try:
            total = _together(counted)
            if len(counted) > 1 and total.costly():
                parts = [figures(run.composition, delta) for run in counted]
                whole = figures(total, delta)
                by = min(whole, key=lambda name: whole[name])
                # An accountant's grid may make a sum look cheaper than its parts.
                epsilon = max(whole[by], *(min(part.values()) for part in parts))
        except ValueError as error:
            why_none = str(error)
        return cls(others, len(counted), epsilon, delta, by, why_none, tuple(reasons.items()))

    @property
    def remark(self) -> str:
        """As sentences."""
        said = [
            f"This corpus has {self.others} other run{'s' if self.others > 1 else ''} on record."
        ]
        if self.epsilon is not None and math.isfinite(self.epsilon):
            said.append(
                f"All {self.counted} private ones together: epsilon"
                f" {format_epsilon(self.epsilon)} at delta {format_delta(self.delta)}, by"
                f" {self.accountant}."
            )
        elif self.why_none:
            said.append(f"No joint figure, because {self.why_none}.")
        said += [f"Not in it: {count} {reason}." for reason, count in self.not_counted]
        return " ".join(said)


def _counts(run: Known, terms: Terms) -> bool:
    return run.why_not_counted is None and run.terms == terms


def _together(runs: Sequence[Known]) -> Composition:
    """All releases of all runs; what a branch inherited from one of them is counted once."""
    by_id = {run.header.run_id: run for run in runs}
    events: list[Event] = []
    for run in runs:
        parent, inherited = run.header.parent, 0
        if parent and (origin := by_id.get(parent.run_id)):
            entries = parent.head.entries
            if len(origin.hashes) > entries and origin.hashes[entries] == parent.head.hash:
                inherited = entries
        events += run.events[inherited:]
    return Composition.of(events)


def _epsilon(composition: Composition, delta: float) -> float:
    if not composition.costly():
        return 0.0
    sound, _ = sound_accountants(composition)
    return min((one.epsilon(composition, delta) for one in sound), default=math.inf)


def _forked(run: Path, known: Sequence[bytes], own: Sequence[bytes]) -> str:
    if known[: len(own)] == own:
        what = (
            f"has {len(own) - 1} charges, and the ledger of its people knows of {len(known) - 1}:"
            " it was restored from a backup, or copied"
        )
    else:
        what = "has other charges than the ledger of its people knows of: it is another copy"
    return f"{run} {what}, so it cannot go on; branch from it with --from {run}@ROUND --run OTHER"


def _parsed(line: bytes) -> Any:
    return json.loads(line)
