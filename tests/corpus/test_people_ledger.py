"""The ledger of a group of people: all runs on them, never shorter, and one budget for all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus.people_costs import PeoplesBudget, least_epsilon
from tacit.corpus.people_ledger import FILE_NAME, PeopleLedger
from tacit.privacy.accountants import accountant_named
from tacit.privacy.budget import BudgetExceeded
from tacit.privacy.events import (
    Adjacency,
    Composition,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
    TruncatedPoissonGaussian,
)
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger, _no_witness
from tacit.privacy.ledger_lines import Charge, Head, Header, LedgerError, PriorCost, seal

ADD_REMOVE, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
USER = ("user", ADD_REMOVE)
ROUND = PoissonGaussian(0.01, 1.0)
FIXED = FixedSizeGaussian(100, 10, 1.0)
PLAN = "ab" * 32
GROUP, OTHER = "00" * 8, "11" * 8


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The folder of a group of people."""
    return folder_of(tmp_path, GROUP)


def folder_of(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "people" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def header(run_id: str, **changes: Any) -> Header:
    base = Header(run_id, "user", 100, 1e-6, adjacency=ADD_REMOVE, people=GROUP)
    return dataclasses.replace(base, **changes)


def begin(folder: Path, run_id: str, **changes: Any) -> Ledger:
    """A new run in a directory of its own, known to its people."""
    ledger = unknown(folder, run_id, **changes)
    PeopleLedger(folder).witness(ledger)
    return ledger


def unknown(folder: Path, run_id: str, **changes: Any) -> Ledger:
    """A new run that nobody knows of."""
    directory = folder.parent.parent / run_id
    directory.mkdir()
    return Ledger.create(directory / "ledger.jsonl", header(run_id, **changes))


def release(round: int, event: Event = ROUND) -> Charge:
    return Charge("round", round, 0, event, PLAN)


def charge(ledger: Ledger, count: int = 1, event: Event = ROUND) -> None:
    first = ledger.head.entries
    for round in range(first, first + count):
        ledger.charge([release(round, event)])


def rounds(folder: Path, run_id: str, count: int, event: Event = ROUND, **changes: Any) -> Ledger:
    with begin(folder, run_id, **changes) as ledger:
        charge(ledger, count, event)
    return ledger


def remark(folder: Path, ledger: Ledger) -> str:
    joint = PeopleLedger(folder).joint(ledger)
    assert joint is not None
    return joint.remark


def spent(folder: Path, delta: float = 1e-6) -> float:
    return least_epsilon(PeopleLedger(folder).spent(USER), delta)


# What is remembered


def test_every_line_of_every_run_is_there_before_its_charge_returns(group: Path) -> None:
    with begin(group, "one") as one, begin(group, "two") as two:
        for round in range(3):
            charge(one)
            two.charge([release(round), Charge("sample", round, 0, PostProcessing("free"), PLAN)])
            known = PeopleLedger(group).runs()
            assert [tuple(run.hashes) for run in known.values()] == [one.hashes, two.hashes]
    assert list(known) == ["one", "two"]
    assert known["two"].header == two.header
    assert known["two"].composition == two.composition()


def test_a_group_that_nobody_trained_on_has_spent_nothing(group: Path) -> None:
    ledger = PeopleLedger(group)
    assert ledger.runs() == {}
    assert ledger.budget is None
    assert ledger.spent(USER) == Composition()
    assert list(group.iterdir()) == []  # looking leaves nothing behind


def test_the_file_can_be_read_by_its_owner_only(group: Path) -> None:
    rounds(group, "one", 1)
    assert (group / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_one_ledger_object_sees_what_others_append(group: Path) -> None:
    looking = PeopleLedger(group)
    rounds(group, "one", 2)
    assert list(looking.runs()) == ["one"]
    rounds(group, "two", 2)
    PeopleLedger(group).declare(PeoplesBudget(50.0, 1e-6))
    assert looking.spent(USER) == Composition.of([(ROUND, 4)])
    assert looking.budget == PeoplesBudget(50.0, 1e-6)


# What composes, and what does not


def test_runs_of_one_kind_are_composed_from_their_whole_ledgers(group: Path) -> None:
    one = rounds(group, "one", 3)
    rounds(group, "two", 4, PoissonGaussian(0.1, 2.0))
    joint = PeopleLedger(group).joint(one)
    assert joint is not None
    total = Composition.of([(ROUND, 3), (PoissonGaussian(0.1, 2.0), 4)])
    assert joint.epsilon == least_epsilon(total, 1e-6)
    assert joint.remark.startswith(
        "This corpus has 1 other run on record. All 2 private ones together: epsilon "
    )


def test_a_run_alone_needs_no_remark(group: Path) -> None:
    assert PeopleLedger(group).joint(rounds(group, "one", 1)) is None


def test_a_run_on_mixed_texts_is_in_no_sum(group: Path) -> None:
    mixed = rounds(group, "mixed", 3, view="iid")
    private = rounds(group, "private", 3)
    assert PeopleLedger(group).spent(USER) == private.composition()
    assert remark(group, private) == (
        "This corpus has 1 other run on record. Not counted: 1 on texts mixed among users, which"
        " protects nobody."
    )
    assert "together" not in remark(group, mixed)


def test_records_and_users_have_no_joint_figure_and_that_is_said(group: Path) -> None:
    records = rounds(group, "records", 3, unit="record")
    users = rounds(group, "users", 3)
    for ledger, other in ((records, "user"), (users, "record")):
        joint = PeopleLedger(group).joint(ledger)
        assert joint is not None
        assert joint.epsilon is None
        assert "No joint figure, because a record-level epsilon does not add to a user" in (
            joint.remark
        )
        assert f"Not counted: 1 {other}-level under add/remove-one adjacency" in joint.remark
    assert PeopleLedger(group).spent(USER) == users.composition()
    assert PeopleLedger(group).spent(("record", ADD_REMOVE)) == records.composition()


def test_two_adjacencies_have_no_joint_figure_and_nothing_raises(group: Path) -> None:
    poisson = rounds(group, "poisson", 3)
    fixed = rounds(group, "fixed", 3, FIXED, adjacency=REPLACE)
    for ledger in (poisson, fixed):
        assert (
            "No joint figure, because an epsilon under replace-one adjacency does not add to"
            in (remark(group, ledger))
        )
    third = rounds(group, "third", 2)
    assert "All 2 private ones together" in remark(group, third)
    assert "Not counted: 1 user-level under replace-one adjacency" in remark(group, third)


def test_a_private_branch_of_a_run_without_noise_is_not_private(group: Path) -> None:
    with begin(group, "open") as parent:
        charge(parent, 2, NonPrivate("no noise"))
    path = group.parent.parent / "branch"
    with Ledger.branch(path, parent, 2, "b", run_id="branch") as branch:
        PeopleLedger(group).witness(branch)
        charge(branch, 3)
    private = rounds(group, "private", 3)
    assert PeopleLedger(group).spent(USER) == private.composition()
    assert "Not counted: 2 without privacy, which must not be released" in remark(group, private)
    assert "together" not in remark(group, private)


def test_a_simulation_is_remembered_and_not_counted(group: Path) -> None:
    seeded = begin(group, "seeded", simulation=True)
    charge(seeded, 3)
    private = rounds(group, "private", 3)
    assert PeopleLedger(group).spent(USER) == private.composition()
    assert "1 with a seed, which must not be released" in remark(group, private)


def test_what_a_branch_inherited_is_counted_once(group: Path) -> None:
    parent = rounds(group, "parent", 5)
    paths = [group.parent.parent / name for name in ("one", "two")]
    for path in paths:
        with Ledger.branch(path, parent, 3, path.name, run_id=path.name) as branch:
            PeopleLedger(group).witness(branch)
            charge(branch, 2)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 5 + 2 + 2)])


def test_what_a_branch_inherited_from_nobody_known_is_counted(group: Path) -> None:
    parent = unknown(group, "parent")
    charge(parent, 5)
    path = group.parent.parent / "branch"
    with Ledger.branch(path, parent, 3, "b", run_id="branch") as branch:
        PeopleLedger(group).witness(branch)
        charge(branch, 2)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 5)])


def test_what_others_of_the_same_people_paid_is_counted_unless_it_is_known(group: Path) -> None:
    words = PureDP(1.0)
    paid = rounds(group, "words", 1, words)
    known = PriorCost("tokenizer", "beside", GROUP, "1/2", paid.composition(), paid.head)
    rounds(group, "one", 2, prior_costs=(known,))
    assert PeopleLedger(group).spent(USER) == Composition.of([words, (ROUND, 2)])
    elsewhere = dataclasses.replace(known, head=Head(1, "cd" * 32))
    for name in ("two", "three"):  # the same tokenizer twice, and its ledger is not here
        rounds(group, name, 2, prior_costs=(elsewhere,))
    assert PeopleLedger(group).spent(USER) == Composition.of([(words, 2), (ROUND, 6)])


EVENTS = [ROUND, PoissonGaussian(0.3, 0.6), Gaussian(4.0), PureDP(0.2)]
EVENTS += [TruncatedPoissonGaussian(100, 0.1, 30, 1.0)]
made_up = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 4)), min_size=1, max_size=3),
        st.booleans(),
    ),
    min_size=2,
    max_size=4,
)


@given(made_up, st.sampled_from([1e-3, 1e-6, 1e-9]))
@settings(max_examples=12, deadline=None)
def test_a_joint_epsilon_is_never_below_any_of_its_parts(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[list[tuple[Event, int]], bool]],
    delta: float,
) -> None:
    group = folder_of(tmp_path_factory.mktemp("joint"), GROUP)
    ledgers: list[Ledger] = []
    for number, (releases, is_branch) in enumerate(runs):
        name = f"run-{number}"
        if is_branch and ledgers:
            origin = ledgers[-1]
            path = group.parent.parent / name
            ledger = Ledger.branch(path, origin, origin.head.entries, name, run_id=name)
            PeopleLedger(group).witness(ledger)
        else:
            ledger = begin(group, name, delta=delta)
        with ledger:
            for event, count in releases:
                charge(ledger, count, event)
        ledgers.append(ledger)
    for ledger in ledgers:
        joint = PeopleLedger(group).joint(ledger)
        assert joint is not None
        assert joint.epsilon is not None
        assert joint.counted == len(ledgers)
        for part in ledgers:
            assert joint.epsilon >= Guarantee.of(part).value


# Copies, backups and edits of run directories


def copy_of(ledger: Ledger, name: str) -> Path:
    directory = ledger.path.parent.with_name(name)
    shutil.copytree(ledger.path.parent, directory)
    return directory / "ledger.jsonl"


def test_a_run_directory_restored_from_a_backup_is_refused_and_forgets_nothing(
    group: Path,
) -> None:
    with begin(group, "run") as ledger:
        charge(ledger, 2)
        backup = copy_of(ledger, "backup")
        charge(ledger, 3)
    before, figure = (group / FILE_NAME).read_bytes(), spent(group)
    shutil.copy(backup, ledger.path)
    with Ledger.open(ledger.path) as restored:
        with pytest.raises(LedgerError) as caught:
            PeopleLedger(group).witness(restored)
        assert str(caught.value) == (
            f"{ledger.path.parent} has 2 charges, and the ledger of its people knows of 5: it was"
            " restored from a backup, or copied, so it cannot go on; branch from it with --from"
            f" {ledger.path.parent}@ROUND --run OTHER"
        )
        assert restored.witness is _no_witness
    assert (group / FILE_NAME).read_bytes() == before
    assert spent(group) == figure


def test_the_joint_figure_of_a_restored_run_is_that_of_the_longer_ledger(group: Path) -> None:
    rounds(group, "other", 2)
    with begin(group, "run") as ledger:
        charge(ledger, 2)
        backup = copy_of(ledger, "backup")
        charge(ledger, 30)
    whole = PeopleLedger(group).joint(Ledger.read(ledger.path))
    restored = PeopleLedger(group).joint(Ledger.read(backup))
    assert whole is not None
    assert restored is not None
    assert restored.epsilon == whole.epsilon == spent(group)


def test_two_copies_of_a_run_cannot_both_go_on(group: Path) -> None:
    with begin(group, "run") as ledger:
        charge(ledger, 2)
        path = copy_of(ledger, "copy")
        other = Ledger.open(path)
        PeopleLedger(group).witness(other)  # as long as both are alike, nobody can tell
        charge(ledger, 1)
        before = path.read_bytes()
        with pytest.raises(
            LedgerError, match=r"another copy of the run run has charged 3 .* has 2"
        ):
            charge(other, 1)
        assert path.read_bytes() == before
        other.witness = _no_witness  # somebody who goes on all the same
        other.charge([release(2, PoissonGaussian(0.05, 9.0))])
        with pytest.raises(LedgerError, match="has other charges than the ledger of its people"):
            PeopleLedger(group).witness(other)
    # A figure for it has both in it.
    joint = PeopleLedger(group).joint(other)
    assert joint is not None
    assert joint.counted == 2


def test_a_training_that_cannot_branch_is_told_to_begin_anew(group: Path) -> None:
    with begin(group, "run", counted="steps") as ledger:
        charge(ledger, 1)
        backup = copy_of(ledger, "backup")
        charge(ledger, 1)
    with pytest.raises(LedgerError, match="train anew in another directory"):
        PeopleLedger(group).witness(Ledger.open(backup))


def test_a_branch_of_a_restored_run_goes_on_and_everything_is_counted_once(group: Path) -> None:
    with begin(group, "run") as ledger:
        charge(ledger, 2)
        backup = copy_of(ledger, "backup")
        charge(ledger, 3)
    path = group.parent.parent / "branch"
    with Ledger.branch(path, Ledger.read(backup), 2, "b", run_id="branch") as branch:
        PeopleLedger(group).witness(branch)
        charge(branch, 2)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 5 + 2)])


def test_a_run_from_another_installation_brings_its_charges(group: Path) -> None:
    ledger = unknown(group, "run")
    charge(ledger, 4)
    PeopleLedger(group).witness(ledger)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 4)])
    charge(ledger, 1)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 5)])


# Damage


def test_any_change_of_the_file_is_noticed(group: Path) -> None:
    rounds(group, "one", 2)
    path = group / FILE_NAME
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in (
        whole.replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0', 1),
        b"".join(lines[:2] + lines[3:]),
        b"".join([lines[0], lines[2], lines[1], lines[3]]),
        b"".join(lines[1:]),
        b"{}\n" + whole,
        seal({"format": "tacit-people-0"})[0],
    ):
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match="cannot be trusted at line"):
            PeopleLedger(group)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"run": "one"},
        {"run": "two", "line": {"hash": "ab"}},
        {"run": "one", "line": {}},
        {"budget": {"epsilon": 8}},
        {"budget": {"epsilon": -1, "delta": 0.1, "unit": "user", "adjacency": "add/remove-one"}},
        {"budget": {"epsilon": 1, "delta": 0.1, "unit": "pet", "adjacency": "add/remove-one"}},
        {"merged_into": 3},
    ],
)
def test_a_line_that_makes_no_sense_is_refused_though_its_hash_is_right(
    group: Path, row: dict[str, Any]
) -> None:
    rounds(group, "one", 1)
    path = group / FILE_NAME
    last = json.loads(path.read_bytes().splitlines()[-1])["hash"]
    with path.open("ab") as file:
        file.write(seal(row | {"previous": last})[0])
    with pytest.raises(LedgerError, match="at line 4: it is not valid"):
        PeopleLedger(group)


def test_a_ledger_that_becomes_shorter_or_another_in_use_stops_every_charge(group: Path) -> None:
    path = group / FILE_NAME
    with begin(group, "one") as ledger:
        charge(ledger, 2)
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for damaged in (b"".join(lines[:-1]), whole[:-1], whole.replace(b"0.01", b"0.02"), b""):
            path.write_bytes(damaged)
            before = ledger.path.read_bytes()
            with pytest.raises(LedgerError, match="has become shorter, or was exchanged"):
                charge(ledger)
            assert ledger.path.read_bytes() == before
        path.unlink()
        with pytest.raises(LedgerError, match=r"has become shorter|is gone"):
            charge(ledger)
        path.write_bytes(whole)
        charge(ledger)


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_an_append_that_was_cut_off_is_dropped_by_the_next(group: Path, kept: int) -> None:
    rounds(group, "one", 2)
    path = group / FILE_NAME
    whole = path.read_bytes()
    torn = whole.splitlines(keepends=True)[-1][:kept]
    path.write_bytes(whole + torn)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 2)])
    assert path.read_bytes() == whole + torn  # who only looks changes nothing
    rounds(group, "two", 1)
    assert path.read_bytes().startswith(whole + b"{")
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 3)])


# Kills and failures at every point of a charge


class Killed(BaseException):
    """Stands for a process that is gone: nothing is cleaned up after it."""


CALLS = ("write", "fsync", "ftruncate", "fstat", "close")


def dying(patch: pytest.MonkeyPatch, at: int, tear: bool) -> Callable[[], int]:
    """Let the `at`-th call to the system be the last: all later ones are lost.

    With `tear`, half of what it writes is on the disk by then.
    """
    count = 0
    originals = {name: getattr(os, name) for name in CALLS}

    def make(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal count
            if name == "close":
                return originals[name](*args)
            count += 1
            if count == at and tear and name == "write":
                fd, data, *rest = args
                originals[name](fd, data[: len(data) // 2], *rest)
            if count >= at:
                raise Killed
            return originals[name](*args)

        return call

    for name in CALLS:
        patch.setattr(os, name, make(name))
    return lambda: count


@pytest.mark.parametrize("tear", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_whenever_a_charge_is_killed_the_run_goes_on_and_nothing_is_forgotten(
    group: Path, at: int, tear: bool
) -> None:
    with begin(group, "other") as other:
        charge(other, 1)
    ledger = begin(group, "run")
    charge(ledger, 2)
    head = ledger.head  # of the last checkpoint
    with pytest.MonkeyPatch.context() as patch:
        count = dying(patch, at, tear)
        try:
            ledger.charge([release(2), release(3)])
            is_charged = True
        except Killed:
            is_charged = False
    if count() < at:
        assert is_charged  # there are not so many calls in a charge
    ledger.close()
    charge(other, 1)  # others are not held up, and drop what is torn
    with Ledger.open(ledger.path, head, repair_torn_tail=True) as again:
        assert again.head.entries in ((4,) if is_charged else (2, 3, 4))
        PeopleLedger(group).witness(again)
        known = PeopleLedger(group).runs()["run"]
        assert tuple(known.hashes) == again.hashes
        charge(again, 1)
    total = again.head.entries + 2
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, total)])


def test_a_charge_that_fails_in_either_ledger_leaves_both_as_they_were(group: Path) -> None:
    with begin(group, "run") as ledger:
        charge(ledger, 1)
        files = (ledger.path, group / FILE_NAME)
        before = [path.read_bytes() for path in files]
        for name, fails_at in (("write", 2), ("fsync", 1), ("fsync", 2), ("write", 1)):
            calls, original = 0, getattr(os, name)

            def failing(*args: Any, fails_at: int = fails_at, call: Any = original) -> Any:
                nonlocal calls
                calls += 1
                if calls == fails_at:
                    raise OSError(28, "No space left on device")
                return call(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, name, failing)
                with pytest.raises(OSError, match="No space"):
                    charge(ledger)
            assert [path.read_bytes() for path in files] == before
        charge(ledger)
    assert PeopleLedger(group).spent(USER) == Composition.of([(ROUND, 2)])


def test_an_interrupt_after_the_last_append_takes_back_both(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(group, "run") as ledger:
        charge(ledger, 1)
        files = (ledger.path, group / FILE_NAME)
        before = [path.read_bytes() for path in files]
        append = PeopleLedger._append_lines

        def interrupted(self: PeopleLedger, *args: Any) -> None:
            append(self, *args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PeopleLedger, "_append_lines", interrupted)
            with pytest.raises(KeyboardInterrupt):
                charge(ledger)
        assert [path.read_bytes() for path in files] == before
        charge(ledger)
    PeopleLedger(group).witness(Ledger.open(ledger.path))


# The budget


def admitted(budget: PeoplesBudget, event: Event = ROUND) -> int:
    """How many releases of one kind fit."""
    count = 0
    while budget.covers(Composition.of([(event, count + 1)])):
        count += 1
    return count


BUDGET = PeoplesBudget(1.0, 1e-6)


def test_a_budget_stops_all_runs_together_and_writes_nothing_then(group: Path) -> None:
    PeopleLedger(group).declare(BUDGET)
    count = admitted(BUDGET)
    assert 4 < count < 200
    with begin(group, "one") as one, begin(group, "two") as two:
        for number in range(count):
            charge((one, two)[number % 2])
        before = [path.read_bytes() for path in (one.path, two.path, group / FILE_NAME)]
        for ledger in (one, two):
            with pytest.raises(BudgetExceeded) as caught:
                charge(ledger)
            excess = least_epsilon(Composition.of([(ROUND, count + 1)]), 1e-6)
            assert str(caught.value) == (
                "the budget of these people (epsilon 1 at delta 1e-06, user-level under"
                " add/remove-one adjacency) ends this run: the next release would bring all runs on"
                f" them to epsilon {excess:.6g}"
            )
            ledger.charge(
                [
                    Charge(
                        kind="sample",
                        round=0,
                        attempt=0,
                        event=PostProcessing("what is free still goes"),
                        plan_hash=PLAN,
                    )
                ]
            )
        assert (group / FILE_NAME).read_bytes().startswith(before[2])
    assert spent(group) <= BUDGET.epsilon


def test_releases_charged_at_once_fit_together_or_not_at_all(group: Path) -> None:
    PeopleLedger(group).declare(BUDGET)
    count = admitted(BUDGET)
    with begin(group, "one") as one:
        with pytest.raises(BudgetExceeded):
            one.charge([release(n) for n in range(count + 1)])
        one.charge([release(n) for n in range(count - 1)])
        with pytest.raises(BudgetExceeded):
            one.charge([release(count), release(count + 1, PoissonGaussian(0.05, 3.0))])
        one.charge([release(count)])
    assert spent(group) <= BUDGET.epsilon


def test_a_budget_raised_is_on_record_and_lets_runs_go_on(group: Path) -> None:
    people = PeopleLedger(group)
    people.declare(BUDGET)
    with begin(group, "one") as one:
        with pytest.raises(BudgetExceeded):
            charge(one, 1000)
        higher = dataclasses.replace(BUDGET, epsilon=2.0)
        PeopleLedger(group).declare(higher)
        charge(one)
        with pytest.raises(BudgetExceeded, match="epsilon 2 at delta"):
            charge(one, 1000)
    assert people.account().declared == (BUDGET, higher)
    assert spent(group) <= 2.0


def test_a_budget_below_what_is_spent_is_refused(group: Path) -> None:
    rounds(group, "one", 20)
    cost = spent(group)
    people = PeopleLedger(group)
    with pytest.raises(ValueError, match=r"epsilon must be at least the .* have cost already"):
        people.declare(PeoplesBudget(cost * 0.999, 1e-6))
    assert people.budget is None
    people.declare(PeoplesBudget(cost, 1e-6))
    with Ledger.open(group.parent.parent / "one" / "ledger.jsonl") as again:
        people.witness(again)  # all that was spent is within it
        with pytest.raises(BudgetExceeded):
            charge(again)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"simulation": True}, "allows no run with a seed"),
        ({"view": "iid"}, "allows no run on texts mixed among users"),
        ({"adjacency": None}, "allows no run without noise"),
        ({"adjacency": REPLACE}, "cannot count a user-level run under replace-one adjacency"),
        ({"unit": "record"}, "cannot count a record-level run under add/remove-one adjacency"),
    ],
)
def test_a_run_that_the_budget_cannot_count_is_refused_before_it_begins(
    group: Path, changes: dict[str, Any], why: str
) -> None:
    PeopleLedger(group).declare(BUDGET)
    before = (group / FILE_NAME).read_bytes()
    ledger = unknown(group, "run", **changes)
    with pytest.raises(BudgetExceeded, match=why):
        PeopleLedger(group).witness(ledger)
    with pytest.raises(BudgetExceeded, match=why):
        PeopleLedger(group).refuse_hopeless(ledger.header)
    assert (group / FILE_NAME).read_bytes() == before


def test_a_run_whose_first_release_does_not_fit_is_refused_before_any_work(group: Path) -> None:
    people = PeopleLedger(group)
    people.declare(BUDGET)
    rounds(group, "one", admitted(BUDGET))
    people.refuse_hopeless(header("run"))
    people.refuse_hopeless(header("run"), [PostProcessing("free")])
    with pytest.raises(BudgetExceeded, match="ends this run"):
        people.refuse_hopeless(header("run"), [ROUND])


def test_a_budget_counts_what_was_spent_before_it(group: Path) -> None:
    rounds(group, "one", 5)
    PeopleLedger(group).declare(BUDGET)
    with begin(group, "two") as two:
        charge(two, admitted(BUDGET) - 5)
        with pytest.raises(BudgetExceeded):
            charge(two)


def test_what_another_installation_has_released_counts_though_the_budget_does_not_allow_it(
    group: Path,
) -> None:
    PeopleLedger(group).declare(BUDGET)
    ledger = unknown(group, "run")
    charge(ledger, admitted(BUDGET) + 5)
    with pytest.raises(BudgetExceeded, match="is spent: all runs on them have cost"):
        PeopleLedger(group).witness(ledger)
    assert PeopleLedger(group).spent(USER) == ledger.composition()
    with pytest.raises(BudgetExceeded, match="is spent"):
        begin(group, "next")


def test_a_charge_that_failed_once_does_not_hide_what_others_charge_then(group: Path) -> None:
    # As many lines as the failed charge would have had, but dearer ones.
    PeopleLedger(group).declare(BUDGET)
    dear = PoissonGaussian(0.02, 1.0)
    with begin(group, "one") as one, begin(group, "two") as two:
        charge(one, 1)
        with pytest.MonkeyPatch.context() as patch:
            write, counted = os.write, iter(range(2))

            def fail_second(fd: int, data: bytes) -> int:
                if next(counted):  # the people's ledger comes after the run's own
                    raise OSError(28, "full")
                return write(fd, data)

            patch.setattr(os, "write", fail_second)
            with pytest.raises(OSError, match="full"):
                charge(one)
        charge(two, 1, dear)
        with pytest.raises(BudgetExceeded):
            charge(one, 1000)
    assert spent(group) <= BUDGET.epsilon


def exhaust(folder: Path, name: str, event: Event) -> int:
    """Charge until the budget ends it; how often that was."""
    count = 0
    with begin(folder, name) as ledger:
        try:
            while True:
                charge(ledger, 1, event)
                count += 1
        except BudgetExceeded:
            return count


def test_threads_that_charge_the_same_people_never_exceed_their_budget(group: Path) -> None:
    budget = PeoplesBudget(2.0, 1e-6)
    PeopleLedger(group).declare(budget)
    events = [
        ROUND,
        PoissonGaussian(0.05, 1.5),
        PoissonGaussian(0.02, 1.0),
        PoissonGaussian(0.1, 3),
    ]
    counts: dict[Event, int] = {}

    def work(number: int) -> None:
        counts[events[number]] = exhaust(group, f"run-{number}", events[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Composition.of(counts.items())
    assert PeopleLedger(group).spent(USER).counts
    assert dict(PeopleLedger(group).spent(USER).counts) == {e: n for e, n in counts.items() if n}
    assert least_epsilon(total, 1e-6) <= 2.0
    cheapest = min(events, key=lambda event: least_epsilon(Composition.of([event]), 1e-6))
    more = total.followed_by(Composition.of([cheapest]))
    assert not PeoplesBudget(2.0, 1e-6).covers(more)  # and nothing was left over


def work_in_process(folder: Path, number: int) -> None:
    """Charge until the end, or until killed at some moment of it."""
    if number % 2:
        threading.Timer(0.05 * number, os._exit, [9]).start()
    exhaust(folder, f"run-{number}", PoissonGaussian(0.05, 1.0 + number / 10))


def test_processes_that_charge_and_die_never_exceed_the_budget(group: Path) -> None:
    budget = PeoplesBudget(2.0, 1e-6)
    PeopleLedger(group).declare(budget)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work_in_process, args=(group, n)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    known = PeopleLedger(group).runs()
    assert spent(group) <= 2.0
    for number in range(6):
        path = group.parent.parent / f"run-{number}" / "ledger.jsonl"
        if not path.exists():
            continue
        own = Ledger.read(path, torn_is_left_out=True)
        if own.header.run_id not in known:  # killed before anybody knew of it
            assert not own.entries
            continue
        there = tuple(known[own.header.run_id].hashes)
        assert there == own.hashes[: len(there)]  # never more than the run's own ledger
        assert len(own.hashes) - len(there) <= 1  # and one charge less at the most


def test_the_budget_holds_by_the_least_sound_accountant(group: Path) -> None:
    budget = PeoplesBudget(0.4, 1e-6)
    PeopleLedger(group).declare(budget)
    count = exhaust(group, "run", ROUND)
    by_pld = accountant_named("pld").epsilon(Composition.of([(ROUND, count)]), 1e-6)
    by_rdp = accountant_named("rdp").epsilon(Composition.of([(ROUND, count)]), 1e-6)
    assert by_pld <= 0.4 < by_rdp


def test_charges_of_two_runs_that_take_turns_take_few_calls_of_an_accountant(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    original = PeoplesBudget.covers

    def counted(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        return original(*args)

    monkeypatch.setattr(PeoplesBudget, "covers", counted)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    PeopleLedger(group).declare(PeoplesBudget(10.0, 1e-6))
    rare = PoissonGaussian(0.001, 1.0)
    with begin(group, "one") as one, begin(group, "two") as two:
        for _ in range(200):
            charge(one, 1, rare)
            charge(two, 1, PoissonGaussian(0.002, 1.0))
    assert calls < 40


# Groups that turn out to be one


def test_merged_groups_count_everything_and_runs_go_on_in_the_one_that_is_kept(
    tmp_path: Path,
) -> None:
    kept, other = folder_of(tmp_path, GROUP), folder_of(tmp_path, OTHER)
    rounds(kept, "one", 2)
    with begin(other, "two") as two:
        charge(two, 3)
        PeopleLedger(kept).absorb(PeopleLedger(other))
        charge(two, 1)  # in the middle of its training
    PeopleLedger(kept).absorb(PeopleLedger(other))  # again, as after an interruption
    for folder in (kept, other):
        assert PeopleLedger(folder).spent(USER) == Composition.of([(ROUND, 6)])
        assert list(PeopleLedger(folder).runs()) == ["one", "two"]
    PeopleLedger(other).witness(Ledger.open(two.path))
    lines = two.path.read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="cannot go on"):
        PeopleLedger(other).witness(Ledger.open(tmp_path / "cut"))


def test_a_merged_group_without_a_ledger_leads_to_the_other_too(tmp_path: Path) -> None:
    kept, other = folder_of(tmp_path, GROUP), folder_of(tmp_path, OTHER)
    late = PeopleLedger(other)  # somebody who is about to begin
    rounds(kept, "one", 2)
    PeopleLedger(kept).absorb(PeopleLedger(other))
    ledger = unknown(kept, "two")
    late.witness(ledger)
    charge(ledger, 1)
    assert PeopleLedger(kept).spent(USER) == Composition.of([(ROUND, 3)])


@pytest.mark.parametrize("at", range(1, 25))
def test_a_merger_that_is_killed_can_be_repeated_and_loses_nothing(tmp_path: Path, at: int) -> None:
    kept, other = folder_of(tmp_path, GROUP), folder_of(tmp_path, OTHER)
    rounds(kept, "one", 2)
    with begin(other, "two") as two:
        charge(two, 2)
        PeopleLedger(other).declare(BUDGET)
        with pytest.MonkeyPatch.context() as patch:
            dying(patch, at, tear=at % 2 == 0)
            with contextlib.suppress(Killed):
                PeopleLedger(kept).absorb(PeopleLedger(other))
        charge(two, 1)
        PeopleLedger(kept).absorb(PeopleLedger(other))
        charge(two, 1)
    assert PeopleLedger(kept).spent(USER) == Composition.of([(ROUND, 6)])
    assert PeopleLedger(kept).budget == BUDGET


def test_two_copies_of_one_run_in_two_groups_both_count(tmp_path: Path) -> None:
    kept, other = folder_of(tmp_path, GROUP), folder_of(tmp_path, OTHER)
    with begin(kept, "run") as one:
        charge(one, 1)
        path = copy_of(one, "copy")
        charge(one, 1)
    with Ledger.open(path) as two:
        PeopleLedger(other).witness(two)
        charge(two, 3, PoissonGaussian(0.05, 2.0))
    for _ in range(2):
        PeopleLedger(kept).absorb(PeopleLedger(other))
    total = dict(PeopleLedger(kept).spent(USER).counts)
    assert total[PoissonGaussian(0.05, 2.0)] == 3
    assert total[ROUND] >= 2
    assert len(PeopleLedger(kept).runs()) == 2


def test_of_two_budgets_the_stricter_holds_after_a_merger(tmp_path: Path) -> None:
    one = PeoplesBudget(8.0, 1e-6)
    cases: Sequence[tuple[PeoplesBudget, PeoplesBudget]] = [
        (PeoplesBudget(2.0, 1e-5), PeoplesBudget(2.0, 1e-6)),
        (PeoplesBudget(9.0, 1e-7), PeoplesBudget(8.0, 1e-7)),
        (PeoplesBudget(9.0, 1e-6), one),
        (PeoplesBudget(3.0, 1e-6, "record", REPLACE), PeoplesBudget(3.0, 1e-6)),
    ]
    for number, (two, expected) in enumerate(cases):
        kept, other = (folder_of(tmp_path / str(number), name) for name in (GROUP, OTHER))
        PeopleLedger(kept).declare(one)
        PeopleLedger(other).declare(two)
        PeopleLedger(kept).absorb(PeopleLedger(other))
        assert PeopleLedger(kept).budget == expected == one.stricter(two)


# Copies that a corpus carries to another installation


def test_another_installation_takes_over_what_a_copy_knows(tmp_path: Path) -> None:
    here, there = folder_of(tmp_path / "here", GROUP), folder_of(tmp_path / "there", GROUP)
    copy = tmp_path / "corpus" / FILE_NAME
    PeopleLedger(here).write_copy(copy)
    assert not copy.exists()  # nothing is known yet
    rounds(here, "one", 2)
    PeopleLedger(here).declare(BUDGET)
    PeopleLedger(here).write_copy(copy)
    rounds(there, "two", 3)
    for _ in range(2):
        PeopleLedger(there).learn_from(copy)
        assert PeopleLedger(there).spent(USER) == Composition.of([(ROUND, 5)])
        assert PeopleLedger(there).account().declared == (BUDGET,)
    # And back again, with what came in between.
    PeopleLedger(there).write_copy(copy)
    PeopleLedger(here).learn_from(copy)
    assert PeopleLedger(here).spent(USER) == Composition.of([(ROUND, 5)])
    assert copy.stat().st_mode & 0o777 == 0o600


def test_an_old_copy_does_not_take_back_a_budget_that_was_raised(tmp_path: Path) -> None:
    here, there = folder_of(tmp_path / "here", GROUP), folder_of(tmp_path / "there", GROUP)
    copy = tmp_path / "corpus" / FILE_NAME
    higher = dataclasses.replace(BUDGET, epsilon=3.0)
    PeopleLedger(here).declare(BUDGET)
    PeopleLedger(here).write_copy(copy)
    PeopleLedger(here).declare(higher)
    PeopleLedger(here).learn_from(copy)  # its own, from before
    assert PeopleLedger(here).budget == higher
    PeopleLedger(there).learn_from(copy)
    assert PeopleLedger(there).budget == BUDGET
    PeopleLedger(there).declare(higher)
    PeopleLedger(there).learn_from(copy)  # of another installation, and known already
    assert PeopleLedger(there).budget == higher


def test_a_copy_that_was_changed_is_refused_and_a_torn_one_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    here, there = folder_of(tmp_path / "here", GROUP), folder_of(tmp_path / "there", GROUP)
    copy = tmp_path / "corpus" / FILE_NAME
    rounds(here, "one", 2)
    PeopleLedger(here).write_copy(copy)
    whole = copy.read_bytes()
    copy.write_bytes(whole + b'{"half')
    PeopleLedger(there).learn_from(copy)
    assert PeopleLedger(there).spent(USER) == Composition.of([(ROUND, 2)])
    copy.write_bytes(whole.replace(b'"noise_multiplier":1.0', b'"noise_multiplier":8.0'))
    with pytest.raises(LedgerError, match="cannot be trusted at line"):
        PeopleLedger(there).learn_from(copy)


def test_a_figure_under_a_budget_is_never_below_what_was_released(group: Path) -> None:
    assert least_epsilon(Composition(), 1e-6) == 0
    assert not PeoplesBudget(1e9, 1e-6).covers(Composition.of([NonPrivate("no noise")]))
    assert least_epsilon(Composition.of([NonPrivate("no noise")]), 1e-6) == float("inf")
