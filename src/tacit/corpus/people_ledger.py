"""The ledger of a group of people: every charge on them, by whichever run, on whichever corpus.

It lies in the installation's state folder (`corpus.people`), so that it outlives run directories
and corpora.  A line of it holds a line of a run's own ledger, whole, so that every run's ledger
can be read back from here; or a budget for all runs together; or the head of another installation's
ledger that was taken over; or, as the last line of all, the group that these people were merged
into.

Guarantee: a charge is in this file, synced, before the noise of its release is drawn.  The file is
hash-chained and only ever grows: what is cut off again was never answered for, because its charge
failed.  A run directory whose ledger is shorter than, or different from, what stands here was
restored from a backup, copied or edited, and is refused.  Under a budget, no charge is taken with
which all counted runs together would cost more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.corpus import people as known_people
from tacit.corpus.people_costs import (
    Account,
    Joint,
    KnownRun,
    PeoplesBudget,
    Terms,
    least_epsilon,
    spent_on,
)
from tacit.privacy import durable, trusted
from tacit.privacy.budget import BudgetExceeded, Cover
from tacit.privacy.claims import format_epsilon
from tacit.privacy.events import Composition, Event, PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import FORMAT as LEDGER_FORMAT
from tacit.privacy.ledger_lines import Charge, Header, LedgerError, Pattern, open_chain, seal
from tacit.privacy.records import canonical_json

if TYPE_CHECKING:
    from tacit.corpus.source import UserCorpus

FORMAT = "tacit-people-1"
FILE_NAME = "ledger.jsonl"
_FORK = "~"  # between a run's id and the last hash of a copy of it that went another way


@dataclass
class _Record:
    """What the lines read so far say, and where reading goes on.

    It is thrown away and read anew where lines were cut off again, or the people were merged.
    """

    size: int = 0
    last: bytes = b""  # the last line, with its newline
    head: str = ""
    lines: int = 0
    runs: dict[str, KnownRun] = field(default_factory=dict)  # by run id, in the order they began
    budgets: list[PeoplesBudget] = field(default_factory=list)
    merged_into: str | None = None
    learnt: set[str] = field(default_factory=set)  # heads of copies that were taken over
    last_charge: _LastCharge | None = None  # if the last line is one

    @property
    def budget(self) -> PeoplesBudget | None:
        """The budget declared last."""
        return self.budgets[-1] if self.budgets else None


@dataclass
class _LastCharge:
    """A run's charge in the last line, which the next line mostly repeats for the next round."""

    known: KnownRun
    round: int
    own: Pattern  # its line in the run's own ledger
    line: Pattern  # and in this one
    next_hash: str = ""

    @classmethod
    def of(cls, run: str, known: KnownRun, own: Mapping[str, Any]) -> _LastCharge | None:
        """That of the run's own line, if it says for which round it is."""
        if type(own.get("round")) is not int:
            return None
        fields = {name: value for name, value in own.items() if name != "hash"}
        line = Pattern({"run": run}, line="%(line)s", previous='"%(previous)s"')
        return cls(known, own["round"], Pattern.of_entry(fields), line)

    def next_line(self, above: str) -> tuple[bytes, str]:
        """The line of the same charge in the next round."""
        place = {"index": len(self.known.events), "round": self.round + 1}
        own, self.next_hash = self.own.filled(**place, previous=self.known.hashes[-1])
        return self.line.filled(line=own.decode(), previous=above)

    def take_next(self) -> None:
        """Remember that this line was read."""
        self.known.add(self.known.events[-1], self.next_hash)
        self.round += 1


class PeopleLedger:
    """The ledger in a group's folder; a group without one has spent nothing yet.

    Several processes may hold it at once.  Each call reads what others have appended since, under
    a lock; a call that writes holds the lock alone from its checks to its last synced byte.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._record = _Record()
        self._events: dict[str, Event] = {}  # equal events are one object: there are many
        self._cover: tuple[PeoplesBudget, Cover] | None = None
        self._read()

    @classmethod
    def open(cls, people: str) -> PeopleLedger:
        """The ledger of a group of people in this installation; an unknown group is made."""
        return cls(known_people.folder(people))

    @classmethod
    def find(cls, people: str) -> PeopleLedger | None:
        """The ledger of a group, or None if nothing was ever charged to it here; makes nothing."""
        folder = known_people.folder(people, create=False)
        return cls(folder) if (folder / FILE_NAME).is_file() else None

    @classmethod
    def of_corpus(cls, corpus: UserCorpus) -> PeopleLedger:
        """The ledger of a corpus's people.

        A corpus from another installation carries a copy of its people's ledger: what it says that
        is not known here is taken over first.
        """
        ledger, copy = cls.open(corpus.identity), _copy_path(corpus)
        if copy is not None and copy.is_file():
            ledger.learn_from(copy)
        return ledger

    # Reading.

    def runs(self) -> dict[str, KnownRun]:
        """Every run on these people, whole, in the order in which they began."""
        self._read()
        return dict(self._record.runs)

    @property
    def budget(self) -> PeoplesBudget | None:
        """The budget declared last."""
        self._read()
        return self._record.budget

    def spent(self, terms: Terms) -> Composition:
        """All counted releases on these terms."""
        self._read()
        return self._spent(terms)

    def _spent(self, terms: Terms) -> Composition:
        return spent_on(terms, self._record.runs.values())

    def joint(self, ledger: Ledger) -> Joint | None:
        """What the run of this ledger costs together with all others; None if it is alone."""
        own, runs = KnownRun.of(ledger), self.runs()
        run_id = ledger.header.run_id
        known = runs.get(run_id)
        if known is None or known.hashes == own.hashes[: len(known.hashes)]:
            runs[run_id] = own
        elif own.hashes != known.hashes[: len(own.hashes)]:  # another copy of it went on here
            runs[f"{run_id}{_FORK}"] = own
        return Joint.of(run_id, runs, ledger.header.delta) if len(runs) > 1 else None

    def account(self) -> Account:
        """The budget, what was spent of it, and by which runs."""
        runs, budget = self.runs(), self._record.budget
        spent = self._spent(budget.terms) if budget else Composition()
        return Account.of(self.path.parent.name, runs, self._record.budgets, spent)

    def _read(self) -> None:
        """Read what is new, while no append is under way; a group without a file has no lines."""
        try:
            with self._held(shared=True):
                pass
        except FileNotFoundError:
            if self._record.lines:
                raise LedgerError(f"the ledger {self.path} is gone") from None

    @contextmanager
    def _held(self, *, shared: bool = False) -> Iterator[int]:
        """Hold a lock on the file, all of it read and verified; gives its descriptor.

        If these people were merged into another group, it is the file of that group from now on.
        """
        flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT | os.O_APPEND
        while True:
            with durable.locked(self.path, shared=shared, flags=flags) as fd:
                self._refresh(fd)
                if self._record.merged_into is None:
                    yield fd
                    return
            self.path = self.path.parent.parent / self._record.merged_into / FILE_NAME
            self._forget()

    def _forget(self) -> None:
        """Let the next look read the file from its start."""
        self._record, self._cover = _Record(), None

    def _refresh(self, fd: int) -> None:
        """Read and verify what was appended since the last look; only while locked."""
        record = self._record
        data = _read_from(fd, record.size - len(record.last))
        if not data.startswith(record.last):
            raise LedgerError(
                f"the ledger {self.path} has become shorter, or was exchanged, while it was in use"
            )
        # An append that was cut off is left out: its noise was never drawn.  The next one drops it.
        *lines, _ = data[len(record.last) :].split(b"\n")
        chain = open_chain(
            *(lines, self.path, FORMAT),
            count=record.lines,
            above=record.head,
            foreseen=self._foreseen,
        )
        for line, (number, row, line_hash) in zip(lines, chain, strict=True):
            if row is None:
                assert record.last_charge is not None
                record.last_charge.take_next()
            elif number > 1:
                record.last_charge = None
                try:
                    self._take_row(row)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    what = f"it is not valid: {error}"
                    raise LedgerError.at(self.path, number, what) from error
            record.head, record.lines, record.last = line_hash, number, line + b"\n"
            record.size += len(record.last)

    def _foreseen(self, above: str) -> tuple[bytes, str] | None:
        """The last line's charge once more, in the next round."""
        last = self._record.last_charge
        return last.next_line(above) if last else None

    def _take_row(self, row: dict[str, Any]) -> None:
        """Remember what a line says, of whichever of the four kinds it is."""
        match row:
            case {"budget": budget}:
                self._record.budgets.append(PeoplesBudget.from_json(budget))
            case {"merged_into": str(other)}:
                self._record.merged_into = other
            case {"learnt": str(head)}:
                self._record.learnt.add(head)
            case {"run": str(run), "line": dict(line)}:
                self._take_line(run, line)
            case _:
                raise ValueError(f"nobody knows what {sorted(row)} are")

    def _take_line(self, run: str, line: dict[str, Any]) -> None:
        """Take a line of a run's own ledger, under the run's id.

        It was verified when it was appended, and is sealed by the line that it is part of.
        """
        known = self._record.runs.get(run)
        if known is None:
            sealed = [canonical_json(line).encode()]
            [(_, fields, line_hash)] = open_chain(sealed, self.path, LEDGER_FORMAT)
            assert fields is not None  # since none was foreseen
            header = Header.read(fields, self.path)
            if run.partition(_FORK)[0] != header.run_id:
                raise ValueError(f"it is a line of the run {header.run_id}, not of {run}")
            self._record.runs[run] = KnownRun(header, [line_hash])
            return
        if line["index"] != len(known.events) or line["previous"] != known.hashes[-1]:
            raise ValueError(f"it does not follow from the last line of the run {run}")
        known.add(self._event(line["event"]), line["hash"])
        self._record.last_charge = _LastCharge.of(run, known, line)

    def _event(self, data: dict[str, Any]) -> Event:
        """An event as a line has it."""
        spelled = canonical_json(data)  # since 1.0 equals 1
        if spelled not in self._events:
            self._events[spelled] = Event.from_json(data)
        return self._events[spelled]

    # Writing.

    def _append(self, fd: int, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, and return once they are on the disk; if that fails, leave all as it was."""
        record = self._record
        lines, head = [], record.head
        if not record.lines:
            line, head = seal({"format": FORMAT})
            lines.append(line)
        for row in rows:
            line, head = seal(row | {"previous": head})
            lines.append(line)
        with self._undone_if_it_fails(fd):
            os.ftruncate(fd, record.size)  # drops what a crash left behind the last whole line
            durable.append(fd, b"".join(lines), self.path)
            if not record.lines:
                durable.sync(self.path.parent)
            self._refresh(fd)

    @contextmanager
    def _undone_if_it_fails(self, fd: int) -> Iterator[None]:
        """Cut off again what is appended inside, if an error leaves the block."""
        size = self._record.size
        try:
            yield
        except BaseException:
            if os.fstat(fd).st_size > size:
                self._forget()  # what was read of it must not be remembered
                durable.cut_back(fd, size)
                self._refresh(fd)
            raise

    def _append_lines(self, fd: int, run: str, lines: Sequence[bytes]) -> None:
        """Add lines of a run's own ledger, each inside a line of this one."""
        self._append(fd, [{"run": run, "line": json.loads(line)} for line in lines])

    def declare(self, budget: PeoplesBudget) -> None:
        """Declare a budget over all runs, earlier ones included.

        It replaces an earlier one, which stays on record: raising it is allowed.  A budget below
        what is spent already is refused, since it cannot be kept.
        """
        with self._held() as fd:
            spent = least_epsilon(self._spent(budget.terms), budget.delta)
            if not spent <= budget.epsilon:
                raise ValueError(
                    f"epsilon must be at least the {format_epsilon(spent)} at delta"
                    f" {budget.delta:g} that runs on these people have cost already, got"
                    f" {budget.epsilon:g}"
                )
            self._append(fd, [{"budget": budget.to_json()}])

    def witness(self, ledger: Ledger) -> None:
        """Let this ledger know of all that a run charges from now on, and of what it has charged.

        From here on `ledger.charge` passes every charge through `charging` below.

        What the run has charged and is not known here is added: a run that came from another
        installation has released it, and one that was killed between two appends is charged all
        the same, as everywhere.  A simulation is remembered by its header alone, since its noise
        protects nobody.

        Raises:
            LedgerError: the run's own ledger is shorter than what is known of it here, or another
                one: its directory was restored, copied or edited.
            BudgetExceeded: what is on record, the run's charges included, is more than the budget
                allows.
        """
        header, hashes = ledger.header, ledger.hashes
        lines = ledger.path.read_bytes().splitlines(keepends=True)[: len(hashes)]
        with self._held() as fd:
            self._refuse_terms(header)
            known = self._record.runs.get(header.run_id)
            count = len(known.hashes) if known else 0
            if header.simulation:
                if not count:
                    self._append_lines(fd, header.run_id, lines[:1])
                return
            if known and tuple(known.hashes) != hashes[:count]:
                raise LedgerError(_describe_fork(ledger, known))
            if lines[count:]:
                self._append_lines(fd, header.run_id, lines[count:])
            self._refuse_overspent()
        ledger.witness = self.charging

    @contextmanager
    def charging(
        self, ledger: Ledger, releases: Sequence[Charge]
    ) -> Iterator[Callable[[Sequence[bytes]], None]]:
        """Take a run's charge, or refuse it; see `privacy.ledger.Witness`.

        The file stays locked until the charge is in both ledgers, so charges of several runs, in
        several processes, are taken one after the other and never exceed the budget together.
        """
        run = ledger.header.run_id
        with self._held() as fd:
            known = self._record.runs.get(run)
            if known is None or known.hashes[-1] != ledger.head.hash:
                charged = len(known.events) if known else 0
                raise LedgerError(
                    f"another copy of the run {run} has charged {charged} releases to these people,"
                    f" and {ledger.path} has {ledger.head.entries}: only one of them can go on"
                )
            self._refuse_terms(ledger.header)
            self._refuse_unbudgeted([release.event for release in releases], run)
            with self._undone_if_it_fails(fd):
                yield lambda lines: self._append_lines(fd, run, lines)

    # What a budget refuses.

    def refuse_hopeless(self, header: Header, events: Sequence[Event] = ()) -> None:
        """Raise `BudgetExceeded` before any work where the budget does not allow a run like this.

        `events` are what it would begin with, as far as that is known.
        """
        with self._held():
            self._refuse_terms(header)
            self._refuse_overspent()
            self._refuse_unbudgeted(events)

    def _refuse_terms(self, header: Header) -> None:
        """Refuse a run whose cost the budget cannot count at all."""
        budget = self._record.budget
        if budget is None or header.view == "synthetic":
            return
        what = f"the budget of these people ({budget})"
        if header.simulation:
            raise BudgetExceeded(f"{what} allows no run with a seed, whose noise protects nobody")
        if header.view == "iid":
            raise BudgetExceeded(
                f"{what} allows no run on texts mixed among users, whose noise protects nobody"
            )
        if header.adjacency is None:
            raise BudgetExceeded(f"{what} allows no run without noise")
        if (header.unit, header.adjacency) != budget.terms:
            raise BudgetExceeded(
                f"{what} cannot count a {header.unit}-level run under {header.adjacency} adjacency"
            )

    def _refuse_unbudgeted(self, events: Sequence[Event], run: str = "") -> None:
        """Refuse releases of a run that the budget does not cover with all that was spent.

        Without a run they are those of one that is only planned.
        """
        budget = self._record.budget
        counted = [event for event in events if not isinstance(event, PostProcessing)]
        if budget is None or not counted:
            return
        spent = self._spent(budget.terms)
        if run:
            runs = self._record.runs
            after = runs | {run: runs[run].charged_with(counted)}
            total = spent_on(budget.terms, after.values())
        else:
            total = spent.followed_by(Composition.of(counted))
        if self._cover is None or self._cover[0] != budget:
            self._cover = (budget, Cover(budget.covers, dict(spent.counts)))
        if not self._cover[1].admits(dict(total.counts)):
            raise BudgetExceeded(
                f"the budget of these people ({budget}) ends this run: the next release would"
                f" bring all runs on them to epsilon {least_epsilon(total, budget.delta):.6g}"
            )

    def _refuse_overspent(self) -> None:
        """Refuse everything once the budget is exceeded."""
        budget = self._record.budget
        if budget is not None and not budget.covers(spent := self._spent(budget.terms)):
            raise BudgetExceeded(
                f"the budget of these people ({budget}) is spent: all runs on them have cost"
                f" epsilon {least_epsilon(spent, budget.delta):.6g}"
            )

    # Two ledgers of the same people.

    def absorb(self, other: PeopleLedger) -> None:
        """Take over another group's lines, because both turned out to be the same people.

        The other ledger then ends with the name of this one, so that runs which are charging there
        go on here.  It may be called again if it was interrupted.
        """
        other._read()
        self._read()
        if other.path == self.path:  # merged before
            return
        with other._held() as others, self._held() as fd:
            self._take_over(fd, other, _read_from(others, 0)[: other._record.size])
            other._append(others, [{"merged_into": self.path.parent.name}])

    def learn_from(self, copy: Path) -> None:
        """Take over what a copy of this ledger knows that this one does not.

        A corpus that is brought from another installation carries such a copy (`leave_copy`).
        """
        self._read()
        data = trusted.read_bytes(copy)
        data = data[: data.rfind(b"\n") + 1]
        # A copy that was left here has nothing new: above all no budget, which may have been raised
        # since.  Most are that, and then need not be read line by line.
        if not data or (self._record.lines and trusted.read_bytes(self.path).startswith(data)):
            return
        other = PeopleLedger(copy.parent)
        head, size = other._record.head, other._record.size
        if not data[:size].endswith(other._record.last):
            raise LedgerError(f"the ledger {copy} was exchanged while it was read; try again")
        with self._held() as fd:
            if head not in self._record.learnt:
                self._take_over(fd, other, data[:size])
                self._append(fd, [{"learnt": head}])

    def write_copy(self, copy: Path) -> None:
        """Write a copy of this ledger; it is a note for another installation, and no authority."""
        self._read()
        if self._record.lines:
            durable.make_folder(copy.parent)
            with self._held() as fd:  # one process at a time writes the copy
                durable.write_whole(copy, _read_from(fd, 0)[: self._record.size])

    def _take_over(self, fd: int, other: PeopleLedger, data: bytes) -> None:
        """Add all runs in the verified lines of another ledger; keep the stricter budget."""
        lines: dict[str, list[dict[str, Any]]] = {}
        for line in data.splitlines()[1:]:
            row = json.loads(line)
            if "line" in row:
                lines.setdefault(row["run"], []).append(row["line"])
        for run, run_lines in lines.items():
            self._absorb_run(fd, run, run_lines)
        own, budget = self._record.budget, other._record.budget
        if budget is not None:
            both = own.stricter(budget) if own else budget
            if both != own:
                self._append(fd, [{"budget": both.to_json()}])

    def _absorb_run(self, fd: int, run: str, lines: Sequence[dict[str, Any]]) -> None:
        """Add what is new in a run's lines; a copy that went another way counts as a run of its
        own, since both have released something.
        """
        hashes = [line["hash"] for line in lines]
        known = self._record.runs.get(run)
        own = known.hashes if known else []
        if own[: len(hashes)] == hashes:
            return
        if hashes[: len(own)] != own:
            return self._absorb_run(fd, f"{run.partition(_FORK)[0]}{_FORK}{hashes[-1][:16]}", lines)
        self._append(fd, [{"run": run, "line": line} for line in lines[len(own) :]])


def leave_copy(corpus: UserCorpus) -> None:
    """Let a corpus directory carry a copy of its people's ledger, in case it is moved elsewhere."""
    copy = _copy_path(corpus)
    if copy is not None and corpus.about_people:
        PeopleLedger.of_corpus(corpus).write_copy(copy)


def _copy_path(corpus: UserCorpus) -> Path | None:
    """Where a corpus directory carries a copy of its people's ledger.

    None for a corpus in the user's cache, which several installations share.
    """
    from tacit.corpus.builtin import is_cached  # whoever reads a ledger waits for no text
    from tacit.corpus.store import Corpus

    if not isinstance(corpus, Corpus) or is_cached(corpus):
        return None
    return corpus.path / "people" / FILE_NAME


def remark_on_others(ledger: Ledger) -> str:
    """What else was trained on the same people's text, in sentences; a remark never raises."""
    if not ledger.header.people:
        return ""
    try:
        joint = PeopleLedger.open(ledger.header.people).joint(ledger)
    except (ValueError, OSError) as error:
        return f"What other runs have cost these people is not known: {error}"
    return joint.remark if joint else ""


def _read_from(fd: int, start: int) -> bytes:
    """All bytes from a position on."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(start)
        return file.read()


def _describe_fork(ledger: Ledger, known: KnownRun) -> str:
    """Why a run cannot go on whose ledger is not the one that its people's ledger knows."""
    run, own = ledger.path.parent, ledger.head.entries
    if known.hashes[: own + 1] == list(ledger.hashes):
        what = (
            f"has {own} charges, and the ledger of its people knows of {len(known.events)}: it was"
            " restored from a backup, or copied"
        )
    else:
        what = "has other charges than the ledger of its people knows of: it is another copy"
    instead = (
        f"branch from it with --from {run}@ROUND --run OTHER"
        if ledger.header.counted == "rounds"
        else "train anew in another directory"
    )
    return f"{run} {what}, so it cannot go on; {instead}"
