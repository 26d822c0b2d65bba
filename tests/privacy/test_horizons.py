"""Rounds that are charged together: each charge stands for all rounds of its horizon so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.people_costs import PeoplesBudget
from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy.accountants import accountant_named
from tacit.privacy.budget import Budget, BudgetExceeded
from tacit.privacy.events import (
    Adjacency,
    Composition,
    CyclicPoissonGaussian,
    Event,
    Gaussian,
    PoissonGaussian,
    TurnsGaussian,
    tally,
)
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header, LedgerError
from tacit.privacy.records import canonical_json

ADD_REMOVE, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
PLD = accountant_named("pld")
GROUP = "00" * 8
HEADER = Header("run-1", "user", 1000, 1e-6, adjacency=ADD_REMOVE, people=GROUP)


def turns(rounds: int, name: str = "main 0.0", z: float = 9.0) -> TurnsGaussian:
    """All of the first rounds: later ones only add."""
    return TurnsGaussian(name, rounds, 3, "blt", z / rounds)


def cyclic(rounds: int, name: str = "main 0.0") -> CyclicPoissonGaussian:
    return CyclicPoissonGaussian(name, rounds, 3, "banded", 2.0, 0.25)


def charge(ledger: Ledger, event: Event, round: int | None = None, attempt: int = 0) -> None:
    number = ledger.head.entries if round is None else round
    ledger.charge([Charge("round", number, attempt, event, "ab" * 32)])


def charged(path: Path, events: Sequence[Event], header: Header = HEADER) -> Ledger:
    with Ledger.create(path, header) as ledger:
        for event in events:
            charge(ledger, event)
    return ledger


# As plain data.

horizons = st.one_of(
    st.builds(
        TurnsGaussian,
        st.sampled_from(["main 0.0", "7f-3 3.1"]),
        st.integers(1, 10**6),
        st.integers(1, 10**6),
        st.sampled_from(["blt", "banded", "independent"]),
        st.floats(1e-3, 1e3),
        st.sampled_from(Adjacency),
    ),
    st.builds(
        CyclicPoissonGaussian,
        st.just("main 0.0"),
        st.integers(1, 10**6),
        st.integers(1, 10**6),
        st.just("banded"),
        st.floats(1e-3, 1e3),
        st.floats(1e-6, 1.0),
    ),
)


@given(horizons)
def test_horizons_survive_json(event):
    assert Event.from_json(json.loads(canonical_json(event.to_json()))) == event
    assert event.includes(event)


@pytest.mark.parametrize(
    "change", [{"rounds": 0}, {"separation": 0}, {"noise_multiplier": 0.0}, {"horizon": ""}]
)
def test_a_horizon_that_makes_no_sense_fails_closed(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} must"):
        Event.from_json(turns(2).to_json() | change)


def test_what_is_no_event_is_not_read_as_one():
    with pytest.raises(ValueError, match="unknown privacy event 'horizon'"):
        Event.from_json(turns(2).to_json() | {"kind": "horizon"})


# What counts.


@given(st.permutations(range(1, 8)))
def test_of_a_horizon_only_the_most_rounds_count_in_whatever_order(order):
    counts: dict[Event, int] = {}
    for rounds in order:
        tally(counts, turns(rounds))
        tally(counts, turns(rounds), 5)  # how often it was charged is nothing to a horizon
        tally(counts, Gaussian(1.0))
    assert counts == {turns(7): 1, Gaussian(1.0): 7}


def test_two_horizons_are_two_releases():
    both = Composition.of([turns(3), turns(4), turns(2, "main 4.1"), turns(1, "main 4.1")])
    assert both == Composition.of([Gaussian(9.0 / 4), Gaussian(9.0 / 2)])
    alike = Composition.of([turns(3), turns(3, "branch 3.0")])
    assert alike == Composition.of([(Gaussian(3.0), 2)])


def test_what_two_ledgers_hold_adds_up_even_under_one_name():
    one = Composition.of([turns(3)])
    assert one.followed_by(one) == Composition.of([(Gaussian(3.0), 2)])
    assert Composition.from_json(one.to_json()) == one


def test_cyclic_turns_are_rounds_of_poisson_sampling_as_many_as_a_user_has():
    for rounds, times in ((1, 1), (3, 1), (4, 2), (6, 2), (7, 3)):
        composition = Composition.of([(cyclic(rounds), rounds)])
        assert composition == Composition.of([(PoissonGaussian(0.25, 2.0), times)])


def test_replace_one_stays_replace_one():
    replaced = replace(turns(3), stated_for=REPLACE)
    assert Composition.of([replaced]).adjacency is REPLACE
    with pytest.raises(ValueError, match="mix add/remove-one and replace-one"):
        Composition.of([replaced, turns(1, "other")]).adjacency  # noqa: B018


@pytest.mark.parametrize("kind", [turns, cyclic])
def test_the_first_rounds_cost_no_more_than_all(kind):
    costs = [PLD.epsilon(Composition.of([kind(t)]), 1e-6) for t in range(1, 8)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


# In a ledger.


@pytest.mark.parametrize("kind", [turns, cyclic])
def test_a_ledger_pays_for_all_rounds_once(kind, tmp_path):
    ledger = charged(tmp_path / "ledger.jsonl", [kind(t) for t in range(1, 6)])
    whole = Composition.of([kind(5)])
    for read in (ledger, Ledger.open(ledger.path, ledger.head), Ledger.read(ledger.path)):
        assert len(read.entries) == 5
        assert read.composition() == whole
        assert read.rounds_of("main 0.0") == 5
        assert read.rounds_of("main 5.1") == 0
        guarantee = Guarantee.of(read)
        assert guarantee.rounds == 5
        assert guarantee.epsilon["pld"] == PLD.epsilon(whole, 1e-6)


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        (0, turns(2), r"is round 2 of the horizon 'main 0.0', of which 0 rounds were charged"),
        (3, turns(3), r"is round 3 of the horizon 'main 0.0', of which 3 rounds were charged"),
        (3, turns(2), r"is round 2 of the horizon 'main 0.0', of which 3 rounds were charged"),
        (3, turns(5), r"is round 5 of the horizon 'main 0.0', of which 3 rounds were charged"),
        (3, turns(4, z=90.0), "does not include round 3 of its horizon"),
        (3, replace(turns(4), noise="banded"), "does not include round 3 of its horizon"),
        (3, replace(turns(4), separation=2), "does not include round 3 of its horizon"),
        (3, cyclic(4), "does not include round 3 of its horizon"),
    ],
    ids=[
        "not from the first",
        "repeated",
        "gone back",
        "left out",
        "cheaper",
        "other noise",
        "other turns",
        "other sampling",
    ],
)
def test_a_round_that_its_horizon_does_not_pay_for_is_refused(before, event, message, tmp_path):
    """When it is charged, within one charge, and in a file that says so with a right hash."""
    ledger = charged(tmp_path / "ledger.jsonl", [turns(t) for t in range(1, before + 1)])
    data = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match=message):
        charge(ledger, event)
    assert ledger.path.read_bytes() == data
    together = Ledger.create(tmp_path / "together.jsonl", HEADER)
    events = [*(turns(t) for t in range(1, before + 1)), event]
    with pytest.raises(LedgerError, match=message):
        together.charge([Charge("round", n, 0, e, "ab" * 32) for n, e in enumerate(events)])
    forged = Charge("round", before, 0, event, "ab" * 32)
    ledger.path.write_bytes(data + ledger.line_of(forged))
    with pytest.raises(LedgerError, match=f"line {before + 2}: .*{message}"):
        Ledger.read(ledger.path)


def test_a_branch_begins_a_horizon_of_its_own(tmp_path):
    """The run that it left may go on with the old one, and both would release its next round."""
    parent = charged(tmp_path / "parent.jsonl", [turns(t) for t in range(1, 5)])
    branch = Ledger.branch(tmp_path / "branch.jsonl", parent, 3, "b-3", run_id="b", round=3)
    with branch:
        for event in (turns(4), turns(3)):
            with pytest.raises(
                LedgerError, match=r"goes on with the horizon 'main 0.0' of another"
            ):
                charge(branch, event)
        charge(branch, turns(1, "b-3 3.0"))
        charge(branch, turns(2, "b-3 3.0"))
    whole = Composition.of([turns(3), turns(2, "b-3 3.0")])
    assert branch.composition() == whole
    assert Ledger.open(branch.path, branch.head).composition() == whole
    line = branch.line_of(Charge("round", 4, 0, turns(4), "ab" * 32))
    branch.path.write_bytes(branch.path.read_bytes() + line)
    with pytest.raises(LedgerError, match="of another run"):
        Ledger.read(branch.path)


def test_a_budget_ends_a_horizon_where_all_its_rounds_together_are_spent(tmp_path):
    allowed = PLD.epsilon(Composition.of([turns(4)]), 1e-6)
    budgeted = replace(HEADER, budget=Budget(allowed * 1.001, 1e-6, "pld"))
    with Ledger.create(tmp_path / "ledger.jsonl", budgeted) as ledger:
        for rounds in range(1, 5):
            charge(ledger, turns(rounds))
        with pytest.raises(BudgetExceeded, match="ends this run after 4 rounds"):
            charge(ledger, turns(5))
        with pytest.raises(BudgetExceeded):
            charge(ledger, turns(1, "main 4.1"))  # a new horizon is paid beside the old one
    assert ledger.composition() == Composition.of([turns(4)])


# In the people's ledger.


def known(tmp_path: Path, run: str, events: Sequence[Event]) -> Ledger:
    """A run of its own on the same people."""
    folder = tmp_path / run
    folder.mkdir()
    with Ledger.create(folder / "ledger.jsonl", replace(HEADER, run_id=run)) as ledger:
        PeopleLedger(tmp_path).witness(ledger)
        for event in events:
            charge(ledger, event)
    return ledger


def spent(tmp_path: Path) -> Composition:
    return PeopleLedger(tmp_path).spent(("user", ADD_REMOVE))


def test_people_pay_for_a_horizon_once_at_its_largest(tmp_path):
    known(tmp_path, "one", [turns(t) for t in range(1, 6)])
    assert spent(tmp_path) == Composition.of([turns(5)])


def test_people_pay_for_the_horizons_of_two_runs_though_they_have_one_name(tmp_path):
    for run in ("one", "two"):
        known(tmp_path, run, [turns(t) for t in range(1, 4)])
    assert spent(tmp_path) == Composition.of([(Gaussian(3.0), 2)])


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("kind", [turns, cyclic])
def test_people_pay_once_for_what_a_branch_inherits(goes_on, kind, tmp_path):
    """Whether the branch or the run that it left charged last: of what both share, the larger."""
    parent = known(tmp_path, "parent", [kind(t) for t in range(1, 4)])
    (tmp_path / "b").mkdir()
    path = tmp_path / "b" / "ledger.jsonl"
    with Ledger.branch(path, parent, 2, "b-2", run_id="b", round=2) as branch:
        PeopleLedger(tmp_path).witness(branch)
        for rounds in range(1, 3):
            charge(branch, kind(rounds, "b-2 2.0"))
    last = 3
    if goes_on:
        with parent:
            PeopleLedger(tmp_path).witness(parent)
            charge(parent, kind(4))
        last = 4
    expected = Composition.of([kind(last)]).followed_by(Composition.of([kind(2)]))
    assert dict(spent(tmp_path).counts) == dict(expected.counts)


def test_a_peoples_budget_stops_a_horizon_with_all_its_rounds_together(tmp_path):
    allowed = PLD.epsilon(Composition.of([turns(3)]), 1e-6)
    PeopleLedger(tmp_path).declare(PeoplesBudget(allowed * 1.001, 1e-6))
    with pytest.raises(BudgetExceeded, match="the budget of these people"):
        known(tmp_path, "one", [turns(t) for t in range(1, 5)])
    assert spent(tmp_path) == Composition.of([turns(3)])
    with pytest.raises(BudgetExceeded, match="the budget of these people"):
        known(tmp_path, "two", [turns(1)])
