"""The ledger of a run: an append-only, hash-chained file of every release made from people's data.

An entry is on the disk before the noise of its release is drawn.  A crash can therefore leave an
entry without a release, which is charged all the same, but never a release without an entry.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tacit.privacy import durable
from tacit.privacy.budget import Allowance, Budget, BudgetExceeded, EpsilonOf
from tacit.privacy.events import Composition, Event, PostProcessing, event_from_json
from tacit.privacy.inputs import Head
from tacit.privacy.ledger_lines import (
    Contents,
    Entry,
    Header,
    Parent,
    entry_line,
    header_line,
    is_stated_for,
    torn_line,
    verify,
)
from tacit.privacy.sealing import LedgerError

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Entry",
    "EpsilonOf",
    "Head",
    "Header",
    "Ledger",
    "LedgerError",
    "Parent",
    "Release",
    "Witness",
]


@dataclass(frozen=True)
class Release:
    """What is about to be released, as `Ledger.charge` takes it."""

    kind: str
    round: int
    attempt: int
    event: Event
    plan_hash: str
    note: str | None = None
    estimator: str | None = None


class Witness(Protocol):
    """Whoever has to know of a charge before its noise is drawn: the ledger of the people."""

    def charging(
        self, ledger: Ledger, releases: Sequence[Release]
    ) -> AbstractContextManager[Callable[[Sequence[bytes]], None]]:
        """Refuse what the people's budget does not cover; inside, take the lines once written.

        Lines that were taken are on the disk when the call returns.  If the block is left by an
        error, they are taken back before the error goes on.
        """


class Ledger:
    """An open ledger.  `create`, `open`, `read` and `branch` make one; `close` lets others write.

    Reading takes no lock.  The first append does, and from then on no other process can append.
    """

    def __init__(
        self, path: Path, contents: Contents, size: int, epsilon_of: EpsilonOf | None, writes: bool
    ) -> None:
        if writes and contents.header.budget and epsilon_of is None:
            raise ValueError(
                f"the ledger {path} has a budget, so epsilon_of must say what a composition costs"
            )
        self.path = path
        self.header = contents.header
        self._entries = list(contents.entries)
        self._hashes = list(contents.hashes)
        self._counts: dict[Event, int] = {}
        self._round_lines: dict[tuple[int, int], int] = {}  # (round, attempt) of this branch
        for entry in contents.entries:
            self._note(entry)
        self._size = size
        self._epsilon_of = epsilon_of
        self._writes = writes
        self._file: io.FileIO | None = None
        self._allowance: Allowance | None = None
        self.witness: Witness | None = None

    @classmethod
    def create(
        cls, path: Path | str, header: Header, *, epsilon_of: EpsilonOf | None = None
    ) -> Self:
        """Start a new ledger on the disk; an existing file is refused."""
        return cls._create(Path(path), header, (), epsilon_of)

    @classmethod
    def open(
        cls,
        path: Path | str,
        head: Head | None = None,
        *,
        epsilon_of: EpsilonOf | None = None,
        repair_torn_tail: bool = False,
    ) -> Self:
        """Verify a ledger and open it for appending.

        `head` is what a checkpoint stored: entries missing up to it are noticed by it alone.
        `repair_torn_tail` drops an incomplete last line that lies beyond the head: a crash in the
        middle of an append, so that its noise was never drawn.  Anything else wrong is refused.
        """
        if repair_torn_tail and head is None:
            raise ValueError("repair_torn_tail needs the head of a checkpoint, got none")
        path = Path(path)
        contents, size = _load(path, head)
        if contents.torn and repair_torn_tail:
            size -= len(contents.torn)
            _cut(path, size, contents.torn)
        elif contents.torn:
            raise torn_line(path, contents)
        return cls(path, contents, size, epsilon_of, writes=True)

    @classmethod
    def read(
        cls, path: Path | str, head: Head | None = None, *, torn_is_left_out: bool = False
    ) -> Self:
        """Verify a ledger and open it for reading only: a budget needs no accountant then."""
        path = Path(path)
        contents, size = _load(path, head)
        if contents.torn and not torn_is_left_out:
            raise torn_line(path, contents)
        return cls(path, contents, size, None, writes=False)

    @classmethod
    def of_bytes(cls, data: bytes, path: Path) -> Self:
        """A ledger that is not on the disk yet, for reading; `path` is what faults name."""
        contents = verify(data, path)
        if contents.torn:
            raise torn_line(path, contents)
        return cls(path, contents, len(data), None, writes=False)

    @staticmethod
    def header_at(path: Path | str) -> Header:
        """The header of a ledger, with all of it verified; a torn last line does not matter."""
        return _load(Path(path), None)[0].header

    @classmethod
    def branch(
        cls,
        path: Path | str,
        from_ledger: Ledger,
        upto: int,
        branch_id: str,
        *,
        run_id: str,
        round: int = 0,
        epsilon_of: EpsilonOf | None = None,
        declared: Header | None = None,
    ) -> Self:
        """Start the ledger of a branch with the first `upto` entries of another ledger.

        They are chained anew under a header that names the other run and its head at that point, so
        the branch pays for everything that its starting model has cost.  A branch id keys the
        randomness; one that was used on the way here is refused.  `round` is the one after which
        it left.  All else that a header says is that of `declared`, by default the other ledger's.
        """
        if not 0 <= upto <= len(from_ledger._entries):
            raise ValueError(
                f"upto must be at least 0 and at most the {len(from_ledger._entries)} entries of"
                f" {from_ledger.path}, got {upto}"
            )
        inherited = tuple(from_ledger._entries[:upto])
        if branch_id in {from_ledger.header.branch, *(entry.branch for entry in inherited)}:
            raise ValueError(f"branch_id must be a new one, and {branch_id!r} is taken")
        parent = Parent(from_ledger.header.run_id, Head(upto, from_ledger._hashes[upto]), round)
        header = replace(
            declared or from_ledger.header, run_id=run_id, branch=branch_id, parent=parent
        )
        return cls._create(Path(path), header, inherited, epsilon_of)

    @classmethod
    def _create(
        cls, path: Path, header: Header, entries: tuple[Entry, ...], epsilon_of: EpsilonOf | None
    ) -> Self:
        line, line_hash = header_line(header)
        lines, hashes = [line], [line_hash]
        for entry in entries:
            _refuse_adjacency(path, header, entry.event)
            line, line_hash = entry_line(entry, hashes[-1])
            lines.append(line)
            hashes.append(line_hash)
        data = b"".join(lines)
        contents = Contents(header, entries, tuple(hashes), b"")
        ledger = cls(path, contents, len(data), epsilon_of, writes=True)
        try:
            durable.create_whole(path, data)
        except FileExistsError as error:
            raise LedgerError(f"{path} exists already, and a ledger is never replaced") from error
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    @property
    def head(self) -> Head:
        """What a checkpoint must store."""
        return Head(len(self._entries), self._hashes[-1])

    def composition(self) -> Composition:
        """All events so far, as the accountants take them."""
        return Composition(tuple(self._counts.items()))

    @property
    def hashes(self) -> tuple[str, ...]:
        """Of the header, then of each entry."""
        return tuple(self._hashes)

    def append(
        self,
        *,
        kind: str,
        round: int,
        attempt: int,
        event: Event,
        plan_hash: str,
        note: str | None = None,
        estimator: str | None = None,
    ) -> Head:
        """`charge` for one release."""
        return self.charge([Release(kind, round, attempt, event, plan_hash, note, estimator)])

    def charge(self, releases: Sequence[Release]) -> Head:
        """Record releases that are about to be made, and return only once they are on the disk.

        Raises `BudgetExceeded` before anything is written if the budget, of the run or of its
        people, does not cover all of them.
        """
        if not self._writes:
            raise LedgerError(f"the ledger {self.path} was opened for reading only")
        if not releases:
            return self.head
        entries = [
            Entry(len(self._entries) + n, branch=self.header.branch, **vars(release))
            for n, release in enumerate(releases)
        ]
        for entry in entries:
            self._refuse_event(entry.event)
        self._refuse_repetition(entries)
        allowance = self._budgeted(releases)
        self._locked()
        lines, hashes = [], [self._hashes[-1]]
        for entry in entries:
            line, line_hash = entry_line(entry, hashes[-1])
            lines.append(line)
            hashes.append(line_hash)
        before = self._size
        try:
            with self._witnessed(releases) as witness:
                self._write(b"".join(lines))
                witness(lines)
        except BaseException:
            # Last of all: a line that is here and not in the people's ledger is added there when
            # the run is opened again, but one that is there alone looks like a restored backup.
            self._take_back(before)
            raise
        if allowance:
            allowance.admit(sum(not _is_free(release.event) for release in releases))
        for entry, line_hash in zip(entries, hashes[1:], strict=True):
            self._entries.append(entry)
            self._hashes.append(line_hash)
            self._note(entry)
        return self.head

    def _witnessed(
        self, releases: Sequence[Release]
    ) -> AbstractContextManager[Callable[[Sequence[bytes]], None]]:
        if self.witness is None:
            return contextlib.nullcontext(lambda lines: None)
        return self.witness.charging(self, releases)

    def _refuse_event(self, event: Event) -> None:
        """An event that could not be read back, or that is stated for another adjacency."""
        if event_from_json(event.to_json()) != event:  # and an unknown kind raises
            raise ValueError(f"the event {event} does not survive being written as JSON")
        _refuse_adjacency(self.path, self.header, event)

    def _note(self, entry: Entry) -> None:
        self._counts[entry.event] = self._counts.get(entry.event, 0) + 1
        if entry.kind == "round" and entry.branch == self.header.branch:
            self._round_lines[entry.round, entry.attempt] = entry.index + 2

    def _refuse_repetition(self, entries: Sequence[Entry]) -> None:
        """A second release of a round under one attempt would be drawn from the same cohort."""
        new: dict[tuple[int, int], int] = {}
        for entry in entries:
            if entry.kind != "round":
                continue
            which, own = (entry.round, entry.attempt), entry.index + 2
            line = self._round_lines.get(which) or new.setdefault(which, own)
            if line != own:
                raise LedgerError(
                    f"round {entry.round}, attempt {entry.attempt} is at line {line} of"
                    f" {self.path} already; a second release of it needs a new attempt"
                )

    def _budgeted(self, releases: Sequence[Release]) -> Allowance | None:
        """The allowance to charge for the releases; None where nothing is to be charged."""
        budget, epsilon_of = self.header.budget, self._epsilon_of
        events = [release.event for release in releases if not _is_free(release.event)]
        if budget is None or not events:
            return None
        assert epsilon_of is not None
        if len(set(events)) > 1:  # releases of several kinds are looked at together, once
            together = Composition.of([*self._counts.items(), *events])
            self._refuse_above(budget, epsilon_of(together, budget.delta))
            self._allowance = None
            return None
        allowance = self._allowance
        if allowance is None or allowance.event != events[0]:
            allowance = Allowance(budget, epsilon_of, self.composition(), events[0])
            self._allowance = allowance
        if not allowance.admits(len(events)):
            self._refuse_above(budget, allowance.excess)
        return allowance

    def _refuse_above(self, budget: Budget, epsilon: float) -> None:
        if epsilon <= budget.epsilon:
            return
        rounds = sum(entry.kind == "round" for entry in self._entries)
        raise BudgetExceeded(
            f"the budget of epsilon {budget.epsilon:g} at delta {budget.delta:g}"
            f" ({budget.accountant}) ends this run after {rounds} {self.header.counted}: the next"
            f" release would reach epsilon {epsilon:.6g}"
        )

    def _write(self, line: bytes) -> None:
        """Append one line and sync it; if that fails, leave the file as it was."""
        fd = self._locked()
        try:
            written = os.write(fd, line)
            if written != len(line):
                what = f"only {written} of {len(line)} bytes could be written"
                raise OSError(errno.ENOSPC, what, str(self.path))
            os.fsync(fd)
        except BaseException:
            # If this fails too, the size stays wrong, and the next `append` or `open` says so.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._size)
                os.fsync(fd)
            raise
        self._size += len(line)

    def _take_back(self, size: int) -> None:
        """Drop lines whose noise will not be drawn, because the people's ledger refused them.

        If that fails, they stay, and are charged to the people when the run is opened again.
        """
        if self._size == size:
            return
        fd = self._locked()
        self._size = -1  # nothing more is written here unless what follows succeeds
        os.ftruncate(fd, size)
        os.fsync(fd)
        self._size = size

    def lock(self) -> None:
        """Keep others from writing from now on, before anything of the run is written."""
        self._locked()

    def _locked(self) -> int:
        """The file's descriptor, with the lock held and nothing in the file that we did not see."""
        first = self._file is None
        self._file = self._file or _lock(self.path)
        fd = self._file.fileno()
        try:
            if os.fstat(fd).st_size != self._size:
                raise LedgerError(f"the ledger {self.path} has changed since it was opened")
            if first:
                verify(self.path.read_bytes(), self.path, self.head)
        except LedgerError:
            self.close()
            raise
        return fd

    def close(self) -> None:
        """Let go of the file and of the lock on it; a later append takes them again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _is_free(event: Event) -> bool:
    return isinstance(event, PostProcessing)


def _refuse_adjacency(path: Path, header: Header, event: Event) -> None:
    if not is_stated_for(header, event):
        raise LedgerError(
            f"the ledger {path} is for {header.adjacency} adjacency, and the event {event} is"
            f" stated for {event.adjacency}"
        )


def _load(path: Path, head: Head | None) -> tuple[Contents, int]:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LedgerError(f"there is no ledger at {path}") from error
    return verify(data, path, head), len(data)


def _lock(path: Path) -> io.FileIO:
    """The file, open for appending, with the lock that closing it releases."""
    file = io.FileIO(os.open(path, os.O_WRONLY | os.O_APPEND), "ab")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LedgerError(f"another process is writing to the ledger {path}") from error
    return file


def _cut(path: Path, size: int, torn: bytes) -> None:
    """Drop the torn bytes after `size`, unless the file is being written to or has changed."""
    with _lock(path) as file:
        if os.fstat(file.fileno()).st_size != size + len(torn):
            raise LedgerError(f"the ledger {path} has changed since it was opened")
        os.ftruncate(file.fileno(), size)
        os.fsync(file.fileno())
