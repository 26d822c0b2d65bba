"""The ledger of a run: an append-only, hash-chained file of every release made from people's data.

An entry is on the disk before the noise of its release is drawn.  A crash can therefore leave an
entry without a release, which is charged all the same, but never a release without an entry.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tacit.privacy import durable, trusted
from tacit.privacy.budget import BudgetExceeded, Cover
from tacit.privacy.events import Composition, Event, Horizon, PostProcessing, tally
from tacit.privacy.ledger_lines import (
    FORMAT,
    Charge,
    Entry,
    Head,
    Header,
    LedgerError,
    Parent,
    Pattern,
    open_chain,
)

# A second record that must know of a charge before its noise is drawn: the people's ledger.  It is
# called with the ledger and the releases, and refuses what the people's budget does not cover.
# Inside of its block it takes the lines once they are written, and has them on the disk when that
# call returns.  If the block is left by an error, it takes them back before the error goes on.
_TakeLines = Callable[[Sequence[bytes]], None]
Witness = Callable[["Ledger", Sequence[Charge]], AbstractContextManager[_TakeLines]]


class Ledger:
    """The verified lines of a ledger, and the file to charge to if it was opened for that.

    `create`, `open`, `read` and `branch` make one; `close` lets others write.  Reading takes no
    lock.  The first charge does, and from then on no other process can charge.

    Without a head, entries cut off at the end leave nothing behind that could be noticed.

    Args:
        path: the file, which `LedgerError` names.
        data: what is in it.
        head: what a checkpoint stored: entries missing up to it are noticed by it alone.
        torn: whether an incomplete last line may be left out: a crash in the middle of an append,
            so that its noise was never drawn.  Else it is refused, as is any line that is wrong.
        writes: whether releases may be charged.
    """

    def __init__(
        self,
        path: Path,
        data: bytes,
        head: Head | None = None,
        *,
        torn: bool = False,
        writes: bool = False,
    ) -> None:
        self.path = path
        self.witness: Witness = _no_witness
        self._entries: list[Entry] = []
        self._hashes: list[str] = []
        self._counts: dict[Event, int] = {}
        self._round_lines: dict[tuple[int, int], int] = {}  # (round, attempt) of this branch
        self._horizons: dict[str, Horizon] = {}  # the last charge of each
        self._inherited: set[str] = set()  # horizons that another run may go on with
        self._writes = writes
        self._pattern: Pattern | None = (
            None  # of the entry that was read last, if it may come again
        )
        self._file = ExitStack()  # holds the lock from the first charge on
        self._descriptor: int | None = None
        self._cover: Cover | None = None
        self._epsilon = 0.0  # the budget's figure for the composition that was tried last
        *lines, rest = data.split(b"\n")
        self._size = len(data) - len(rest)
        if not lines:
            raise LedgerError.at(path, 1, "it is cut off" if rest else "the file is empty")
        for number, fields, line_hash in open_chain(lines, path, FORMAT, foreseen=self._foreseen):
            if fields is None:
                self._add([self._entries[-1].next()], [line_hash])
            elif number == 1:
                self.header = Header.read(fields, path)
                self._hashes.append(line_hash)
            else:
                self._add([self._read_entry(fields, number)], [line_hash])
        self._refuse_missing(head, "cut off" if rest else "missing")
        if rest and not torn:
            raise LedgerError.at(path, len(lines) + 1, "it is cut off")

    @classmethod
    def create(cls, path: Path | str, header: Header) -> Self:
        """Start a new ledger on the disk; an existing file is refused."""
        return cls._create(Path(path), header, ())

    @classmethod
    def open(
        cls, path: Path | str, head: Head | None = None, *, repair_torn_tail: bool = False
    ) -> Self:
        """Verify a ledger and open it for appending.

        `repair_torn_tail` drops an incomplete last line that lies beyond the head of a checkpoint.
        """
        if repair_torn_tail and head is None:
            raise ValueError("repair_torn_tail needs the head of a checkpoint, got none")
        path = Path(path)
        data = _read(path)
        ledger = cls(path, data, head, torn=repair_torn_tail, writes=True)
        if ledger._size < len(data):
            with _locked(path) as descriptor:
                _refuse_changed(path, descriptor, len(data))
                os.ftruncate(descriptor, ledger._size)
                os.fsync(descriptor)
        return ledger

    @classmethod
    def read(
        cls, path: Path | str, head: Head | None = None, *, torn_is_left_out: bool = False
    ) -> Self:
        """Verify a ledger and open it for reading only."""
        return cls(Path(path), _read(Path(path)), head, torn=torn_is_left_out)

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
        declared: Header | None = None,
    ) -> Self:
        """Start the ledger of a branch with the first `upto` entries of another ledger.

        They are chained anew under a header that names the other run and its head at that point, so
        the branch pays for everything that its starting model has cost.

        Args:
            path: where the branch's ledger is created.
            from_ledger: the ledger that the branch leaves.
            upto: how many of its entries the branch inherits.
            branch_id: keys the randomness; one that was used on the way here is refused.
            run_id: the id of the branch's own run.
            round: the round after which the branch left.
            declared: all else that the header says; by default that of the other ledger.
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
        return cls._create(Path(path), header, inherited)

    @classmethod
    def _create(cls, path: Path, header: Header, entries: tuple[Entry, ...]) -> Self:
        for entry in entries:
            _refuse_adjacency(path, header, entry.event)
        first, first_hash = header.line()
        data = b"".join([first, *_lines(entries, first_hash)[0]])
        try:
            durable.write_whole(path, data, new=True)
        except FileExistsError as error:
            raise LedgerError(f"{path} exists already, and a ledger is never replaced") from error
        return cls(path, data, writes=True)

    def _read_entry(self, fields: dict[str, Any], number: int) -> Entry:
        """The entry that a line holds, if it belongs there."""
        header = self.header
        try:
            entry = Entry.from_json(fields)
        except (ValueError, TypeError) as error:
            raise LedgerError.at(self.path, number, f"the entry is not valid: {error}") from error
        inherited = header.parent.head.entries if header.parent else 0
        what = ""
        if entry.index != number - 2:
            what = f"it holds entry {entry.index} where entry {number - 2} belongs"
        elif entry.index >= inherited and entry.branch != header.branch:
            what = f"the entry is of the branch {entry.branch!r}, and the ledger of"
            what = f"{what} {header.branch!r}"
        elif not header.admits(entry.event):
            what = f"its event is stated for {entry.event.adjacency} adjacency, and the ledger for"
            what = f"{what} {header.adjacency}"
        else:
            what = self._out_of_order([entry.event], own=entry.index >= inherited)
        if what:
            raise LedgerError.at(self.path, number, what)
        # Of these two the checks above are needed in each line.
        is_apart = entry.index < inherited or isinstance(entry.event, Horizon)
        self._pattern = None if is_apart else Pattern.of_entry(fields)
        return entry

    def _foreseen(self, above: str) -> tuple[bytes, str] | None:
        """The line of the last entry's charge, made once more in the next round."""
        if self._pattern is None:
            return None
        entry = self._entries[-1]
        return self._pattern.filled(index=entry.index + 1, round=entry.round + 1, previous=above)

    def _refuse_missing(self, head: Head | None, how: str) -> None:
        """Refuse a ledger without all that a checkpoint knows of, or that a branch inherits."""
        count = len(self._entries)
        inherited = self.header.parent.head.entries if self.header.parent else 0
        needed = max(inherited, head.entries if head else 0)
        if count < needed:
            because = (
                "the checkpoint has" if head and needed == head.entries else "the branch inherits"
            )
            what = f"it is {how}: the ledger ends after {count} entries, and {because} {needed}"
            raise LedgerError.at(self.path, count + 2, what)
        if head and self._hashes[head.entries] != head.hash:
            what = "its hash is not the one that the checkpoint has"
            raise LedgerError.at(self.path, head.entries + 1, what)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All releases that were charged, in order."""
        return tuple(self._entries)

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hash of the header's line, then of each entry's."""
        return tuple(self._hashes)

    @property
    def head(self) -> Head:
        """What a checkpoint must store."""
        return Head(len(self._entries), self._hashes[-1])

    def line_of(self, charge: Charge) -> bytes:
        """The line that would follow the last one if this were charged; nothing is written."""
        return _lines(self._next([charge]), self._hashes[-1])[0][0]

    def _next(self, charges: Sequence[Charge]) -> list[Entry]:
        """The entries that charges become."""
        return [
            Entry(**vars(charge), index=index, branch=self.header.branch)
            for index, charge in enumerate(charges, start=len(self._entries))
        ]

    def composition(self) -> Composition:
        """All events so far, as the accountants take them."""
        return Composition.of(self._counts.items())

    def charge(self, releases: Sequence[Charge]) -> Head:
        """Record releases that are about to be made, and return only once they are on the disk.

        Raises `BudgetExceeded` before anything is written if the budget, of the run or of its
        people, does not cover all of them.
        """
        if not self._writes:
            raise LedgerError(f"the ledger {self.path} was opened for reading only")
        if not releases:
            return self.head
        entries = self._next(releases)
        for entry in entries:
            self._refuse_event(entry.event)
        self._refuse_repetition(entries)
        if what := self._out_of_order([entry.event for entry in entries]):
            raise LedgerError(f"{self.path} cannot be charged: {what}")
        self._refuse_beyond_budget(releases)
        descriptor = self.lock()
        lines, hashes = _lines(entries, self._hashes[-1])
        data = b"".join(lines)
        try:
            with self.witness(self, releases) as take_lines:
                durable.append(descriptor, data, self.path)
                take_lines(lines)
        except BaseException:
            # Last of all: a line that is here and not in the people's ledger is added there when
            # the run is opened again, but one that is there alone looks like a restored backup.
            if not durable.cut_back(descriptor, self._size):
                self._size = -1  # nothing more is written; what stays whole is charged when opened
            raise
        self._size += len(data)
        self._add(entries, hashes)
        return self.head

    def _add(self, entries: Sequence[Entry], hashes: Sequence[str]) -> None:
        """Remember entries that are on the disk."""
        self._entries += entries
        self._hashes += hashes
        for entry in entries:
            tally(self._counts, entry.event)
            if isinstance(entry.event, Horizon):
                self._horizons[entry.event.horizon] = entry.event
                if entry.index < (self.header.parent.head.entries if self.header.parent else 0):
                    self._inherited.add(entry.event.horizon)
            if entry.kind == "round" and entry.branch == self.header.branch:
                self._round_lines[entry.round, entry.attempt] = entry.index + 2

    def _refuse_event(self, event: Event) -> None:
        """Refuse an event that could not be read back, or is stated for another adjacency."""
        if Event.from_json(event.to_json()) != event:  # and an unknown kind raises
            raise ValueError(f"the event {event} does not survive being written as JSON")
        _refuse_adjacency(self.path, self.header, event)

    def _refuse_repetition(self, entries: Sequence[Entry]) -> None:
        """Refuse a second release of a round's attempt: it would be drawn from the same cohort."""
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

    def _out_of_order(self, events: Sequence[Event], *, own: bool = True) -> str:
        """Why events do not continue their horizons, which go on round by round; empty if they do.

        A round that is charged twice, or one that is left out, would be a release that the horizon
        does not pay for.  So would one of a branch, if the run that it left goes on as well; and
        so would a round of other noise, since the last charge stands for all rounds before it.
        """
        new: dict[str, Horizon] = {}
        for event in events:
            if isinstance(event, Horizon):
                name = event.horizon
                if own and name in self._inherited:
                    return f"its event goes on with the horizon {name!r} of another run"
                before = new.get(name, self._horizons.get(name))
                charged = before.rounds if before else 0
                if event.rounds != charged + 1:
                    return (
                        f"its event is round {event.rounds} of the horizon {name!r}, of"
                        f" which {charged} rounds were charged"
                    )
                if before and not event.includes(before):
                    return (
                        f"its event, {event}, does not include round {charged} of its horizon,"
                        f" {before}"
                    )
                new[name] = event
        return ""

    def rounds_of(self, horizon: str) -> int:
        """How many rounds of a horizon were charged."""
        last = self._horizons.get(horizon)
        return last.rounds if last else 0

    def _refuse_beyond_budget(self, releases: Sequence[Charge]) -> None:
        """Refuse releases that would bring all charges together above the run's budget."""
        budget = self.header.budget
        events = [one.event for one in releases if not isinstance(one.event, PostProcessing)]
        if budget is None or not events:
            return
        if self._cover is None:
            self._cover = Cover(self._fits, dict(self.composition().costly()))
        total = Composition.of([*self._counts.items(), *((event, 1) for event in events)])
        if not self._cover.admits(dict(total.costly())):
            rounds = sum(entry.kind == "round" for entry in self._entries)
            raise BudgetExceeded(
                f"the budget of epsilon {budget.epsilon:g} at delta {budget.delta:g}"
                f" ({budget.accountant}) ends this run after {rounds} {self.header.counted}: the"
                f" next release would reach epsilon {self._epsilon:.6g}"
            )

    def _fits(self, composition: Composition) -> bool:
        budget = self.header.budget
        assert budget is not None
        self._epsilon = budget.spent_by(composition)
        return self._epsilon <= budget.epsilon  # false for NaN too

    def lock(self) -> int:
        """Keep others from writing from now on; gives the descriptor to append to.

        The file must be what was read: when it is locked first, all of it is verified again.
        """
        is_first = self._descriptor is None
        if self._descriptor is None:
            self._descriptor = self._file.enter_context(_locked(self.path))
        try:
            _refuse_changed(self.path, self._descriptor, self._size)
            if is_first:
                Ledger(self.path, _read(self.path), self.head)
        except LedgerError:
            self.close()
            raise
        return self._descriptor

    def close(self) -> None:
        """Let go of the file and of the lock on it; a later charge takes them again."""
        self._file.close()
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def _no_witness(ledger: Ledger, releases: Sequence[Charge]) -> Iterator[_TakeLines]:
    """Nobody else has to know: the text is of nobody, or the ledger is of an example."""
    yield lambda lines: None


def _lines(entries: Sequence[Entry], previous: str) -> tuple[list[bytes], list[str]]:
    """The lines of entries that follow the line with the hash `previous`, and their hashes."""
    lines, hashes = [], []
    for entry in entries:
        line, previous = entry.line(previous)
        lines.append(line)
        hashes.append(previous)
    return lines, hashes


def _refuse_adjacency(path: Path, header: Header, event: Event) -> None:
    if not header.admits(event):
        raise LedgerError(
            f"the ledger {path} is for {header.adjacency} adjacency, and the event {event} is"
            f" stated for {event.adjacency}"
        )


def _refuse_changed(path: Path, descriptor: int, size: int) -> None:
    if os.fstat(descriptor).st_size != size:
        raise LedgerError(f"the ledger {path} has changed since it was opened")


def _read(path: Path) -> bytes:
    try:
        return trusted.read_bytes(path)
    except FileNotFoundError as error:
        raise LedgerError(f"there is no ledger at {path}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, open for appending, while no other process writes to it."""
    with ExitStack() as stack:
        lock = durable.locked(path, wait=False, flags=os.O_WRONLY | os.O_APPEND)
        try:
            descriptor = stack.enter_context(lock)
        except BlockingIOError as error:
            raise LedgerError(f"another process is writing to the ledger {path}") from error
        yield descriptor
