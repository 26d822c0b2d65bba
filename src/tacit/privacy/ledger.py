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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Self

from tacit.privacy import durable
from tacit.privacy.budget import BudgetExceeded, Cover
from tacit.privacy.events import Composition, Event, PostProcessing
from tacit.privacy.ledger_lines import (
    Charge,
    Contents,
    Entry,
    Head,
    Header,
    LedgerError,
    Parent,
    verify,
)

# A second record that must know of a charge before its noise is drawn: the people's ledger.  It is
# called with the ledger and the releases, and refuses what the people's budget does not cover.
# Inside of its block it takes the lines once they are written, and has them on the disk when that
# call returns.  If the block is left by an error, it takes them back before the error goes on.
_TakeLines = Callable[[Sequence[bytes]], None]
Witness = Callable[["Ledger", Sequence[Charge]], AbstractContextManager[_TakeLines]]


class Ledger:
    """An open ledger.  `create`, `open`, `read` and `branch` make one; `close` lets others write.

    Reading takes no lock.  The first charge does, and from then on no other process can charge.
    """

    def __init__(self, path: Path, contents: Contents, size: int, *, writes: bool) -> None:
        self.path = path
        self.header = contents.header
        self.witness: Witness = _no_witness
        self._entries: list[Entry] = []
        self._hashes = [contents.hashes[0]]
        self._counts: dict[Event, int] = {}
        self._round_lines: dict[tuple[int, int], int] = {}  # (round, attempt) of this branch
        self._add(contents.entries, contents.hashes[1:])
        self._size = size
        self._writes = writes
        self._file: io.FileIO | None = None
        self._cover: Cover | None = None
        self._epsilon = 0.0  # the budget's figure for the composition that was tried last

    @classmethod
    def create(cls, path: Path | str, header: Header) -> Self:
        """Start a new ledger on the disk; an existing file is refused."""
        return cls._create(Path(path), header, ())

    @classmethod
    def open(
        cls, path: Path | str, head: Head | None = None, *, repair_torn_tail: bool = False
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
        else:
            _refuse_torn(path, contents)
        return cls(path, contents, size, writes=True)

    @classmethod
    def read(
        cls, path: Path | str, head: Head | None = None, *, torn_is_left_out: bool = False
    ) -> Self:
        """Verify a ledger and open it for reading only."""
        path = Path(path)
        contents, size = _load(path, head)
        if not torn_is_left_out:
            _refuse_torn(path, contents)
        return cls(path, contents, size, writes=False)

    @classmethod
    def of_bytes(cls, data: bytes, path: Path) -> Self:
        """A ledger that is not on the disk yet, for reading; `path` is what faults name."""
        contents = verify(data, path)
        _refuse_torn(path, contents)
        return cls(path, contents, len(data), writes=False)

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
        lines, hashes = _lines(entries, first_hash)
        data = b"".join([first, *lines])
        try:
            durable.write_whole(path, data, new=True)
        except FileExistsError as error:
            raise LedgerError(f"{path} exists already, and a ledger is never replaced") from error
        contents = Contents(header, entries, (first_hash, *hashes))
        return cls(path, contents, len(data), writes=True)

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

    def composition(self) -> Composition:
        """All events so far, as the accountants take them."""
        return Composition(tuple(self._counts.items()))

    def charge(self, releases: Sequence[Charge]) -> Head:
        """Record releases that are about to be made, and return only once they are on the disk.

        Raises `BudgetExceeded` before anything is written if the budget, of the run or of its
        people, does not cover all of them.
        """
        if not self._writes:
            raise LedgerError(f"the ledger {self.path} was opened for reading only")
        if not releases:
            return self.head
        entries = [
            Entry(**vars(release), index=len(self._entries) + n, branch=self.header.branch)
            for n, release in enumerate(releases)
        ]
        for entry in entries:
            self._refuse_event(entry.event)
        self._refuse_repetition(entries)
        self._refuse_beyond_budget(releases)
        self._locked()
        lines, hashes = _lines(entries, self._hashes[-1])
        size = self._size
        try:
            with self.witness(self, releases) as take_lines:
                self._write(b"".join(lines))
                take_lines(lines)
        except BaseException:
            # Last of all: a line that is here and not in the people's ledger is added there when
            # the run is opened again, but one that is there alone looks like a restored backup.
            self._take_back(size)
            raise
        self._add(entries, hashes)
        return self.head

    def _add(self, entries: Sequence[Entry], hashes: Sequence[str]) -> None:
        """Remember entries that are on the disk."""
        self._entries += entries
        self._hashes += hashes
        for entry in entries:
            self._counts[entry.event] = self._counts.get(entry.event, 0) + 1
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

    def _refuse_beyond_budget(self, releases: Sequence[Charge]) -> None:
        """Refuse releases that would bring all charges together above the run's budget."""
        budget = self.header.budget
        events = [one.event for one in releases if not isinstance(one.event, PostProcessing)]
        if budget is None or not events:
            return
        spent = dict(self.composition().costly())
        if self._cover is None:
            self._cover = Cover(self._fits, spent)
        if not self._cover.admits(dict(Composition.of([*spent.items(), *events]).counts)):
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

    def _write(self, data: bytes) -> None:
        """Append lines and sync them; `_take_back` undoes what was written if that fails."""
        fd = self._locked()
        size, self._size = self._size, -1  # nothing else is written here until all is well
        written = os.write(fd, data)
        if written != len(data):
            what = f"only {written} of {len(data)} bytes could be written"
            raise OSError(errno.ENOSPC, what, str(self.path))
        os.fsync(fd)
        self._size = size + len(data)

    def _take_back(self, size: int) -> None:
        """Drop lines whose noise will not be drawn, because they were not synced or not witnessed.

        If that fails too, the next `charge` or `open` says so; lines that stay whole are charged to
        the people when the run is opened again.
        """
        if self._size == size:  # nothing was written
            return
        assert self._file is not None
        self._size = -1
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), size)
            os.fsync(self._file.fileno())
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
        """Let go of the file and of the lock on it; a later charge takes them again."""
        if self._file is not None:
            self._file.close()
            self._file = None

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


def _refuse_torn(path: Path, contents: Contents) -> None:
    if contents.torn:
        raise LedgerError.at(path, len(contents.hashes) + 1, "it is cut off")


def _load(path: Path, head: Head | None) -> tuple[Contents, int]:
    """The verified contents of a ledger's file, and its size in bytes."""
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
