"""The ledger as a file: written once, by one writer, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.privacy.budget import Budget, BudgetExceeded
from tacit.privacy.events import (
    Adjacency,
    Composition,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
    TruncatedPoissonGaussian,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Entry, Head, Header, LedgerError

HEADER = Header(run_id="run-1", unit="user", population=1000, delta=1e-5)
ROUND = PoissonGaussian(0.01, 1.0)
PLAN = "ab" * 32


def append(ledger: Ledger, round: int, event: Event = ROUND, kind: str = "round") -> Head:
    return ledger.charge([Charge(kind=kind, round=round, attempt=0, event=event, plan_hash=PLAN)])


def make(path: Path, rounds: int = 5, header: Header = HEADER) -> Ledger:
    with Ledger.create(path, header) as ledger:
        for round in range(rounds):
            append(ledger, round)
    return ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# What goes in comes out


def test_what_was_charged_is_there_after_opening_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "spent_by", lambda self, releases: 0.0)
    events: list[Event] = [
        ROUND,
        Gaussian(2.0),
        TruncatedPoissonGaussian(1000, 0.01, 30, 1.5),
        FixedSizeGaussian(1000, 10, 0.5),
        PureDP(0.1),
        Lapse(5e-6),
        PostProcessing("a tokenizer from samples"),
        NonPrivate("no noise"),
    ]
    budgeted = Header(
        "run-2", "record", 10**8, 1e-9, Budget(2.0, 1e-9, "pld"), branch="first \N{BLACK STAR}"
    )
    with Ledger.create(path, budgeted) as ledger:
        for index, event in enumerate(events):
            ledger.charge(
                [
                    Charge(
                        kind="release",
                        round=index,
                        attempt=index % 2,
                        event=event,
                        plan_hash=PLAN,
                        note="a \N{BLACK STAR}\nnote" if index else None,
                    )
                ]
            )
    for again in (Ledger.read(path, ledger.head), Ledger.open(path)):
        assert again.header == budgeted
        assert again.entries == ledger.entries
        assert again.head == ledger.head
        assert again.composition() == ledger.composition() == Composition.of(events)
    assert [entry.event for entry in ledger.entries] == events
    assert ledger.entries[3].note == "a \N{BLACK STAR}\nnote"
    assert ledger.entries[3].branch == "first \N{BLACK STAR}"


def test_the_format_is_stable(path: Path) -> None:
    ledger = make(path, rounds=1)
    header, entry = path.read_text().splitlines()
    assert header == (
        '{"accountant":null,"adjacency":null,"audit":false,"branch":"main","budget":null,'
        '"counted":"rounds","data":"","delta":1e-05,"excluded":[],"experiment":"",'
        f'"format":"tacit-ledger-2","hash":"{json.loads(header)["hash"]}","parent":null,'
        '"part":"","people":"","population":1000,"population_is_counted":false,"prior_costs":[],'
        '"public_inputs":[],"run_id":"run-1","simulation":false,"split":"","unit":"user",'
        '"view":"people"}'
    )
    assert entry == (
        '{"attempt":0,"branch":"main","estimator":null,"event":{"kind":"poisson-gaussian",'
        f'"noise_multiplier":1.0,"sampling_prob":0.01}},"hash":"{ledger.head.hash}","index":0,'
        f'"kind":"round","note":null,"plan_hash":"{PLAN}",'
        f'"previous":"{json.loads(header)["hash"]}","round":0}}'
    )
    assert ledger.head.hash == "1f6ef885ca36681671702b99960dfd71fd379b89b5c086e816c2c3a55f16734d"


def test_the_same_calls_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one"), make(tmp_path / "other")
    assert one.path.read_bytes() == other.path.read_bytes()
    assert one.head == other.head


def test_a_head_survives_json(path: Path) -> None:
    head = make(path).head
    assert Head.from_json(json.loads(json.dumps(head.to_json()))) == head
    with pytest.raises(ValueError, match="needs the fields"):
        Head.from_json({"entries": 1})
    with pytest.raises(ValueError, match="hexadecimal"):
        Head.from_json({"entries": 1, "hash": "xyz"})


def test_each_append_is_one_write_and_then_a_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    write, sync = os.write, os.fsync

    def spy_write(fd: int, data: bytes) -> int:
        calls.append("write")
        return write(fd, data)

    def spy_sync(fd: int) -> None:
        calls.append("sync")
        sync(fd)

    monkeypatch.setattr(os, "fsync", spy_sync)
    ledger = Ledger.create(path, HEADER)
    assert calls == ["sync", "sync"]  # of the file, of the directory
    monkeypatch.setattr(os, "write", spy_write)
    with ledger:
        append(ledger, 0)
        append(ledger, 1)
    assert calls[2:] == ["write", "sync"] * 2


# Torn tails


def test_a_torn_last_line_beyond_the_head_is_dropped_when_asked(path: Path) -> None:
    head = make(path, rounds=3).head
    whole = path.read_bytes()
    line = Entry("round", 3, 0, ROUND, PLAN, index=3, branch="main").line(head.hash)[0]
    for length in (1, 17, len(line) - 1):
        path.write_bytes(whole + line[:length])
        with pytest.raises(LedgerError, match="line 5: it is cut off"):
            Ledger.open(path, head)
        with pytest.raises(LedgerError, match="line 5: it is cut off"):
            Ledger.read(path, head)
        with Ledger.open(path, head, repair_torn_tail=True) as ledger:
            assert path.read_bytes() == whole
            assert append(ledger, 3) == Head(4, json.loads(line)["hash"])
        assert path.read_bytes() == whole + line


def test_only_an_incomplete_last_line_is_ever_dropped(path: Path) -> None:
    heads = [make(path, rounds=3).head]
    whole = path.read_bytes()
    first = Head(0, json.loads(whole.splitlines()[0])["hash"])
    cases = {
        whole[:-1]: (heads[0], 4),  # torn, but the head has it
        whole + b'{"half\n': (heads[0], 5),  # broken, but complete
        whole[:-1] + b" ": (heads[0], 4),
        whole.replace(b'"round":1', b'"round":9') + b"x": (first, 3),  # another line is wrong too
    }
    for data, (head, line) in cases.items():
        path.write_bytes(data)
        with pytest.raises(LedgerError, match=f"line {line}: "):
            Ledger.open(path, head, repair_torn_tail=True)
        assert path.read_bytes() == data
    with pytest.raises(ValueError, match="needs the head of a checkpoint"):
        Ledger.open(path, repair_torn_tail=True)


def test_nothing_is_repaired_while_another_writes(path: Path) -> None:
    ledger = make(path, rounds=1)
    with Ledger.open(path) as writer:
        append(writer, 1)
        torn = path.read_bytes() + b"{"
        path.write_bytes(torn)
        with pytest.raises(LedgerError, match="another process is writing"):
            Ledger.open(path, ledger.head, repair_torn_tail=True)
        assert path.read_bytes() == torn


# Writing that fails


@contextmanager
def replaced(**functions: Callable[..., object]) -> Iterator[None]:
    """Functions of `os` exchanged for others."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            patch.setattr(os, name, function)
        yield


def write_half_and_report_it(fd: int, data: bytes) -> int:
    return os_write(fd, data[: len(data) // 2])


def write_half_and_raise(fd: int, data: bytes) -> int:
    os_write(fd, data[: len(data) // 2])
    raise OSError(errno.ENOSPC, "no space left on device")


def interrupt(fd: int, data: bytes) -> int:
    os_write(fd, data)
    raise KeyboardInterrupt


os_write = os.write


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (write_half_and_report_it, OSError),
        (write_half_and_raise, OSError),
        (interrupt, KeyboardInterrupt),
    ],
)
def test_a_write_that_fails_leaves_the_ledger_as_it_was(
    path: Path, write: Callable[[int, bytes], int], error: type[BaseException]
) -> None:
    with Ledger.create(path, HEADER) as ledger:
        head = append(ledger, 0)
        before = path.read_bytes()
        with replaced(write=write), pytest.raises(error) as caught:
            append(ledger, 1)
        if isinstance(caught.value, OSError):
            assert caught.value.errno == errno.ENOSPC
        assert path.read_bytes() == before
        assert ledger.head == head
        append(ledger, 1)
    assert len(Ledger.open(path).entries) == 2


def test_an_entry_that_cannot_be_synced_is_taken_back(path: Path) -> None:
    calls = iter([OSError(errno.EIO, "bad disk"), None])

    def fail_once(fd: int) -> None:
        error = next(calls)
        if error:
            raise error

    with Ledger.create(path, HEADER) as ledger:
        before = path.read_bytes()
        with replaced(fsync=fail_once), pytest.raises(OSError, match="bad disk"):
            append(ledger, 0)
        assert path.read_bytes() == before
        assert ledger.head.entries == 0


def test_a_line_that_could_not_be_taken_back_stops_all_further_writing(path: Path) -> None:
    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    with Ledger.create(path, HEADER) as ledger:
        broken = replaced(write=write_half_and_raise, ftruncate=fail)
        with broken, pytest.raises(OSError, match="no space"):
            append(ledger, 0)
        with pytest.raises(LedgerError, match="has changed since it was opened"):
            append(ledger, 0)


# One writer


def test_two_processes_cannot_append_at_once(path: Path) -> None:
    script = (
        "import sys; from tacit.privacy.ledger import *; from tacit.privacy.events import *\n"
        "try: Ledger.open(sys.argv[1]).charge([Charge(kind='round', round=7, attempt=0,"
        " event=Gaussian(1.0), plan_hash='ab')])\n"
        "except LedgerError as error: print(error)"
    )

    def other_process() -> str:
        command = [sys.executable, "-W", "ignore", "-c", script, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    with Ledger.create(path, HEADER) as ledger:
        append(ledger, 0)
        before = path.read_bytes()
        assert other_process() == f"another process is writing to the ledger {path}\n"
        assert path.read_bytes() == before
    assert other_process() == ""
    with pytest.raises(LedgerError, match="has changed since it was opened"):
        append(ledger, 1)
    assert len(Ledger.open(path).entries) == 2


def test_what_another_wrote_in_the_meantime_is_never_written_over(path: Path) -> None:
    make(path, rounds=1)
    one, other = Ledger.open(path), Ledger.open(path)
    with one:
        append(one, 1)
    with pytest.raises(LedgerError, match="has changed since it was opened"):
        append(other, 2)
    # A replacement of the same length is noticed as well.
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":2'))
    with pytest.raises(LedgerError, match="line 3: it was changed"):
        append(one, 3)


def test_reading_needs_no_lock_and_cannot_write(path: Path) -> None:
    with Ledger.create(path, HEADER) as writer:
        append(writer, 0)
        reader = Ledger.read(path)
        assert reader.head == writer.head
        with pytest.raises(LedgerError, match="for reading only"):
            append(reader, 1)


def test_a_ledger_is_never_replaced(path: Path) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, HEADER)
    assert path.read_bytes() == before


# What may be appended


def test_a_round_is_released_once_per_attempt(path: Path) -> None:
    with make(path, rounds=2) as ledger:
        before = path.read_bytes()
        with pytest.raises(LedgerError, match=r"round 1, attempt 0 is at line 3 of .* new attempt"):
            append(ledger, 1)
        with Ledger.open(path) as again, pytest.raises(LedgerError, match="is at line 3"):
            append(again, 1)
        assert path.read_bytes() == before
        ledger.charge([Charge(kind="round", round=1, attempt=1, event=ROUND, plan_hash=PLAN)])
        append(ledger, 1, kind="release")
        append(ledger, 1, kind="release")


class Unknown(Event):
    kind = "unknown"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"event": Unknown()}, "unknown privacy event 'unknown'"),
        ({"plan_hash": "xyz"}, "plan_hash"),
        ({"round": -1}, "round"),
        ({"attempt": 0.5}, "attempt"),
        ({"kind": ""}, "kind"),
        ({"note": 5}, "note"),
        ({"estimator": 5}, "estimator"),
    ],
)
def test_an_entry_that_could_not_be_read_again_is_not_written(
    path: Path, changes: dict[str, object], what: str
) -> None:
    good = {"kind": "round", "round": 0, "attempt": 0, "event": ROUND, "plan_hash": PLAN}
    with Ledger.create(path, HEADER) as ledger:
        before = path.read_bytes()
        with pytest.raises(ValueError, match=what):
            ledger.charge([Charge(**(good | changes))])  # type: ignore[arg-type]
        assert path.read_bytes() == before


def test_releases_are_charged_together_or_not_at_all(path: Path) -> None:
    with Ledger.create(path, HEADER) as ledger:
        releases = [Charge("round", round, 0, ROUND, PLAN, estimator="fixed") for round in (0, 1)]
        assert ledger.charge(releases) == ledger.head == Ledger.read(path).head
        assert [entry.estimator for entry in Ledger.read(path).entries] == ["fixed", "fixed"]
        before = path.read_bytes()
        good = Charge("round", 2, 0, ROUND, PLAN)
        for bad, what in [
            (good, "line 4 of .* needs a new attempt"),  # twice in one charge
            (releases[0], "line 2 of .* needs a new attempt"),
            (Charge("round", 3, 0, Unknown(), PLAN), "unknown privacy event"),
        ]:
            with pytest.raises(ValueError, match=what):
                ledger.charge([good, bad])
            assert path.read_bytes() == before
        with pytest.raises(ValueError, match="round must be"):
            ledger.charge([good, Charge("round", -3, 0, ROUND, PLAN)])
        assert ledger.charge([]) == ledger.head
        assert path.read_bytes() == before
        assert ledger.composition() == Composition.of([(ROUND, 2)])
    # The same lines as one by one.
    assert before == make(path.with_name("single"), 0).path.read_bytes() + b"".join(
        entry.line(line_hash)[0]
        for entry, line_hash in zip(ledger.entries, ledger.hashes, strict=False)
    )


def test_many_releases_are_one_write_and_one_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    with Ledger.create(path, HEADER) as ledger:
        monkeypatch.setattr(os, "fsync", syncs.append)
        ledger.charge([Charge("round", round, 0, ROUND, PLAN) for round in range(100)])
    assert len(syncs) == 1
    assert len(Ledger.read(path).entries) == 100


def test_an_event_of_another_adjacency_than_declared_is_refused(tmp_path: Path) -> None:
    declared = replace(HEADER, adjacency=Adjacency.ADD_REMOVE)
    with Ledger.create(tmp_path / "run", declared) as ledger:
        append(ledger, 0)
        append(ledger, 1, PostProcessing("free"))
        append(ledger, 2, NonPrivate("no noise"))
        before = ledger.path.read_bytes()
        with pytest.raises(LedgerError, match=r"is for add/remove-one adjacency, and the event"):
            append(ledger, 3, FixedSizeGaussian(1000, 10, 1.0))
        assert ledger.path.read_bytes() == before
    with pytest.raises(LedgerError, match="is for replace-one adjacency"):
        Ledger.branch(
            tmp_path / "branch",
            ledger,
            1,
            "b",
            run_id="run-2",
            declared=replace(HEADER, adjacency=Adjacency.REPLACE),
        )
    assert not (tmp_path / "branch").exists()


# Witnesses


class Notary:
    """A witness with a file of its own, which it keeps in order as `Witness` asks it to."""

    def __init__(self, path: Path, fault: str = "") -> None:
        self.path, self.fault = path, fault
        self.seen_before: list[bytes] = []  # the run's own ledger, whenever lines are given
        path.write_bytes(b"")

    @contextmanager
    def __call__(
        self, ledger: Ledger, releases: Sequence[Charge]
    ) -> Iterator[Callable[[Sequence[bytes]], None]]:
        if self.fault == "budget":
            raise BudgetExceeded("nothing is left")
        before = self.path.read_bytes()

        def take(lines: Sequence[bytes]) -> None:
            self.seen_before.append(ledger.path.read_bytes())
            if self.fault == "early":
                raise OSError(errno.EIO, "bad disk")
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
            if self.fault == "late":
                raise KeyboardInterrupt

        try:
            yield take
        except BaseException:
            self.path.write_bytes(before)
            raise


def test_a_witness_gets_each_line_after_the_ledger_has_it_and_before_the_charge_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []  # what the file had when it was synced
    sync = os.fsync

    def spy(fd: int) -> None:
        sync(fd)
        synced.append(Path(f"/proc/self/fd/{fd}").resolve().read_bytes())

    notary = Notary(path.with_name("notary"))
    with Ledger.create(path, HEADER) as ledger:
        header = path.read_bytes()
        ledger.witness = notary
        monkeypatch.setattr(os, "fsync", spy)
        append(ledger, 0)
        ledger.charge([Charge("round", round, 0, ROUND, PLAN) for round in (1, 2)])
    own, there = path.read_bytes(), notary.path.read_bytes()
    assert own == header + there
    assert len(there.splitlines()) == 3
    first = there.splitlines(keepends=True)[0]
    assert notary.seen_before == [header + first, own]
    # Own ledger, then the witness, for each of the two charges: four syncs in this order.
    assert synced == [header + first, first, own, there]


@pytest.mark.parametrize(
    ("fault", "error"),
    [("budget", BudgetExceeded), ("early", OSError), ("late", KeyboardInterrupt)],
)
def test_a_witness_that_fails_leaves_both_as_they_were(
    path: Path, fault: str, error: type[BaseException]
) -> None:
    with Ledger.create(path, HEADER) as ledger:
        ledger.witness = notary = Notary(path.with_name("notary"))
        append(ledger, 0)
        own, there, head = path.read_bytes(), notary.path.read_bytes(), ledger.head
        notary.fault = fault
        with pytest.raises(error):
            append(ledger, 1)
        assert (path.read_bytes(), notary.path.read_bytes()) == (own, there)
        assert ledger.head == head == Ledger.read(path).head
        assert ledger.composition() == Composition.of([ROUND])
        notary.fault = ""
        append(ledger, 1)
    assert path.read_bytes().endswith(notary.path.read_bytes())
    assert len(Ledger.read(path).entries) == 2


def test_what_a_witness_refused_is_not_charged_to_the_runs_own_budget(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "spent_by", lambda self, releases: float(releases.counts[0][1]))
    header = replace(HEADER, budget=Budget(2.0, 1e-6, "pld"))
    with Ledger.create(path, header) as ledger:
        ledger.witness = notary = Notary(path.with_name("notary"), "early")
        for _ in range(5):
            with pytest.raises(OSError, match="bad disk"):
                append(ledger, 0)
        notary.fault = ""
        append(ledger, 0)
        append(ledger, 1)
        with pytest.raises(BudgetExceeded, match="after 2 rounds"):
            append(ledger, 2)


def test_a_ledger_whose_own_write_fails_is_not_witnessed(path: Path) -> None:
    with Ledger.create(path, HEADER) as ledger:
        ledger.witness = notary = Notary(path.with_name("notary"))
        with replaced(write=write_half_and_raise), pytest.raises(OSError, match="no space"):
            append(ledger, 0)
        assert notary.path.read_bytes() == b""
        assert Ledger.read(path).head == ledger.head


def test_lines_that_cannot_be_taken_back_stop_all_further_writing(path: Path) -> None:
    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    with Ledger.create(path, HEADER) as ledger:
        ledger.witness = Notary(path.with_name("notary"), "early")
        with replaced(ftruncate=fail), pytest.raises(OSError, match="bad disk"):
            append(ledger, 0)
        with pytest.raises(LedgerError, match="has changed since it was opened"):
            append(ledger, 0)
    assert len(Ledger.read(path).entries) == 1  # charged all the same


# Branches


def test_a_branch_pays_for_what_it_starts_from(tmp_path: Path) -> None:
    with make(tmp_path / "run", rounds=5) as ledger:
        parent_bytes = ledger.path.read_bytes()
        with Ledger.branch(tmp_path / "branch", ledger, 3, "retry", run_id="run-2") as branch:
            assert branch.composition() == Composition.of([(ROUND, 3)])
            append(branch, 3, Gaussian(2.0))
    assert ledger.path.read_bytes() == parent_bytes
    again = Ledger.open(tmp_path / "branch", branch.head)
    assert again.composition() == Composition.of([(ROUND, 3), (Gaussian(2.0), 1)])
    assert [entry.branch for entry in again.entries] == ["main"] * 3 + ["retry"]
    assert again.header.parent is not None
    assert again.header.parent.run_id == "run-1"
    assert Ledger.open(ledger.path, again.header.parent.head).entries[:3] == again.entries[:3]


def test_a_branch_of_a_branch_inherits_all(tmp_path: Path) -> None:
    ledger = make(tmp_path / "run", rounds=2)
    with Ledger.branch(tmp_path / "one", ledger, 2, "one", run_id="run-2") as one:
        append(one, 2)
    two = Ledger.branch(tmp_path / "two", one, 3, "two", run_id="run-3")
    assert [entry.branch for entry in two.entries] == ["main", "main", "one"]
    for taken in ("main", "one"):
        with pytest.raises(ValueError, match=f"'{taken}' is taken"):
            Ledger.branch(tmp_path / "three", one, 3, taken, run_id="run-3")


def test_inherited_entries_cannot_be_cut_off_even_without_a_head(tmp_path: Path) -> None:
    ledger = make(tmp_path / "run", rounds=4)
    branch = Ledger.branch(tmp_path / "branch", ledger, 4, "b", run_id="run-2")
    branch.path.write_bytes(b"".join(branch.path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(LedgerError, match=r"line 4: it is missing: .* the branch inherits 4"):
        Ledger.open(branch.path)


@pytest.mark.parametrize("upto", [-1, 3])
def test_a_branch_starts_within_its_parent(tmp_path: Path, upto: int) -> None:
    ledger = make(tmp_path / "run", rounds=2)
    with pytest.raises(ValueError, match=f"at most the 2 entries of .*, got {upto}"):
        Ledger.branch(tmp_path / "branch", ledger, upto, "b", run_id="run-2")
    assert not (tmp_path / "branch").exists()
