"""A declared budget ends a run before the release that would exceed it."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import budget
from tacit.privacy.accountants import accountant_named
from tacit.privacy.budget import Budget, BudgetExceeded, Cover
from tacit.privacy.events import Composition, Event, NonPrivate, PoissonGaussian, PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Head, Header

ROUND = PoissonGaussian(0.01, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def append(ledger: Ledger, round: int, event: Event = ROUND, kind: str = "round") -> Head:
    return ledger.charge([Charge(kind, round, 0, event, "ab")])


class Meter:
    """An accountant that charges a price per event, and counts how often it is asked."""

    def __init__(self, prices: dict[Event, float]) -> None:
        self.prices = prices
        self.calls = 0

    def epsilon(self, composition: Composition, delta: float) -> float:
        assert delta == 1e-6
        self.calls += 1
        return sum(self.prices[event] * count for event, count in composition.costly())


@pytest.fixture
def charging(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[Event, float]], Meter]:
    """Makes all budgets be measured by the meter of these prices."""

    def charge(prices: dict[Event, float]) -> Meter:
        meter = Meter(prices)
        monkeypatch.setattr(budget, "accountant_named", lambda name: meter)
        return meter

    return charge


def budgeted(epsilon: float) -> Header:
    return Header("run-1", "user", 1000, 1e-5, Budget(epsilon, 1e-6, "pld"))


def test_a_budget_ends_the_run_before_anything_is_written(path: Path, charging) -> None:
    charging({ROUND: 0.3})
    with Ledger.create(path, budgeted(1.0)) as ledger:
        for round in range(3):
            append(ledger, round)
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded) as caught:
            append(ledger, 3)
        assert str(caught.value) == (
            "the budget of epsilon 1 at delta 1e-06 (pld) ends this run after 3 rounds:"
            " the next release would reach epsilon 1.2"
        )
        assert path.read_bytes() == before
        append(ledger, 3, PostProcessing("free"), kind="release")  # what is free still goes
    again = Ledger.open(path)
    with pytest.raises(BudgetExceeded, match=r"after 3 rounds: .* reach epsilon 1\.2"):
        append(again, 3)


def test_equal_rounds_take_few_calls_of_the_accountant(path: Path, charging) -> None:
    meter = charging({ROUND: 2.0**-10})
    with Ledger.create(path, budgeted(1.5)) as ledger:
        for round in range(1536):
            append(ledger, round)
            if round % 100 == 0:
                append(ledger, round, PostProcessing("a sample"), kind="release")
        for _ in range(3):
            with pytest.raises(BudgetExceeded, match="after 1536 rounds"):
                append(ledger, 1536)
    assert meter.calls <= 12 + 11


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.integers(1, 40)), max_size=5),
    st.integers(1, 200),
)
@settings(deadline=None, max_examples=40)
def test_a_run_is_stopped_exactly_where_every_single_round_accounted_would_stop_it(
    phases: list[tuple[float, int]], epsilon: int
) -> None:
    prices: dict[Event, float] = {PoissonGaussian(0.01, z): z for z in (1.0, 2.0, 3.0)}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(budget, "accountant_named", lambda name: Meter(prices))
        with Ledger.create(Path(directory) / "ledger", budgeted(epsilon)) as ledger:
            spent = 0.0
            for price, count in phases:
                for _ in range(count):
                    fits = spent + price <= epsilon
                    round = len(ledger.entries)
                    if fits:
                        append(ledger, round, PoissonGaussian(0.01, price))
                        spent += price
                    else:
                        with pytest.raises(BudgetExceeded, match=f"epsilon {spent + price:g}$"):
                            append(ledger, round, PoissonGaussian(0.01, price))


def test_an_entry_that_failed_to_be_written_is_not_charged(
    path: Path, charging, monkeypatch: pytest.MonkeyPatch
) -> None:
    charging({ROUND: 1.0})
    with Ledger.create(path, budgeted(2.0)) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: 3)
            with pytest.raises(OSError, match="only 3 of"):
                append(ledger, 0)
        append(ledger, 0)
        append(ledger, 1)
        with pytest.raises(BudgetExceeded, match="after 2 rounds"):
            append(ledger, 2)


@pytest.mark.parametrize("epsilon", [math.inf, math.nan])
def test_an_epsilon_that_is_no_finite_number_exceeds_every_budget(
    path: Path, epsilon: float, charging
) -> None:
    charging({NonPrivate("no noise"): epsilon})
    ledger = Ledger.create(path, budgeted(1e6))
    with pytest.raises(BudgetExceeded, match=f"after 0 rounds: .* epsilon {epsilon}"):
        append(ledger, 0, NonPrivate("no noise"))


def test_a_branch_goes_on_within_the_budget_of_its_parent(tmp_path: Path, charging) -> None:
    charging({ROUND: 1.0})
    with Ledger.create(tmp_path / "run", budgeted(3.0)) as ledger:
        for round in range(3):
            append(ledger, round)
    with Ledger.branch(tmp_path / "branch", ledger, 2, "b", run_id="run-2") as branch:
        append(branch, 2)
        with pytest.raises(BudgetExceeded, match="after 3 rounds"):
            append(branch, 3)


def test_a_budget_is_measured_by_the_accountant_that_it_names(path: Path) -> None:
    composition = Composition.of([(ROUND, 10)])
    for name in ("pld", "rdp", "moments"):
        expected = accountant_named(name).epsilon(composition, 1e-6)
        assert Budget(1.0, 1e-6, name).spent_by(composition) == expected
    unknown = Header("run-1", "user", 1000, 1e-5, Budget(1.0, 1e-6, "gauss"))
    with Ledger.create(path, unknown) as ledger:
        with pytest.raises(ValueError, match="accountant must be one of"):
            append(ledger, 0)
        assert not ledger.entries
    assert Ledger.read(path).header.budget == Budget(1.0, 1e-6, "gauss")


@given(st.lists(st.floats(-0.5, 0.5), min_size=64, max_size=64), st.floats(1, 30))
def test_what_is_admitted_was_accounted_within_the_budget_though_figures_jump(
    jumps: list[float], epsilon: float
) -> None:
    accounted: dict[int, float] = {}

    def fits(composition: Composition) -> bool:
        count = composition.counts[0][1]
        accounted.pop(count, None)  # the last to be tried comes last
        accounted[count] = count + jumps[count % 64]
        return accounted[count] <= epsilon

    cover = Cover(fits, {})
    admitted = 0
    while cover.admits({ROUND: admitted + 1}):
        admitted += 1
        assert any(count >= admitted and cost <= epsilon for count, cost in accounted.items())
    assert list(accounted)[-1] == admitted + 1  # what is refused was itself the last to be tried
    assert accounted[admitted + 1] > epsilon


@given(
    st.lists(st.floats(-2, 2), min_size=64, max_size=64),
    st.floats(1, 60),
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
)
def test_several_at_once_are_admitted_only_within_what_was_accounted(
    jumps: list[float], epsilon: float, wanted: list[int]
) -> None:
    fitting: set[int] = set()

    def fits(composition: Composition) -> bool:
        count = composition.counts[0][1]
        is_within = count + jumps[count % 64] <= epsilon
        if is_within:
            fitting.add(count)
        return is_within

    cover = Cover(fits, {})
    admitted = 0
    for count in wanted:
        if cover.admits({ROUND: admitted + count}):
            admitted += count
            assert max(fitting) >= admitted
        else:
            assert admitted + count not in fitting


def test_releases_of_several_kinds_are_looked_at_together(path: Path, charging) -> None:
    other = PoissonGaussian(0.02, 1.0)
    charging({ROUND: 1.0, other: 2.0})
    with Ledger.create(path, budgeted(6.0)) as ledger:
        ledger.charge([release(0), release(1, other)])
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded, match=r"would reach epsilon 8$"):
            ledger.charge([release(2), release(3, other), release(4, other)])
        with pytest.raises(BudgetExceeded, match=r"would reach epsilon 7$"):
            ledger.charge([release(2 + n) for n in range(4)])
        assert path.read_bytes() == before
        ledger.charge([release(2 + n) for n in range(3)])
        with pytest.raises(BudgetExceeded, match="after 5 rounds"):
            ledger.charge([release(5, other)])


def release(round: int, event: Event = ROUND) -> Charge:
    return Charge("round", round, 0, event, "ab")


KINDS = [PoissonGaussian(0.01, 1.0), PoissonGaussian(0.01, 2.0), PoissonGaussian(0.01, 3.0)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=60),
    st.dictionaries(st.integers(0, 2), st.integers(1, 30)),
    st.floats(0, 300),
    st.lists(st.floats(-0.4, 0.4), min_size=16, max_size=16),
)
def test_a_cover_admits_only_what_was_accounted_within_the_budget(
    charges: list[tuple[int, int]], before: dict[int, int], limit: float, jumps: list[float]
) -> None:
    price = dict(zip(KINDS, (1.0, 2.5, 4.0), strict=True))
    fitting: list[dict[Event, int]] = []

    def fits(composition: Composition) -> bool:
        counts: dict[Event, int] = dict(composition.counts)
        size = sum(counts.values())
        cost = sum(price[event] * n for event, n in counts.items()) + jumps[size % 16]
        if cost <= limit:
            fitting.append(counts)
        return cost <= limit

    spent: dict[Event, int] = {KINDS[kind]: n for kind, n in before.items()}
    cover = Cover(fits, spent)
    for kind, count in charges:
        wanted = {**spent, KINDS[kind]: spent.get(KINDS[kind], 0) + count}
        if cover.admits(wanted):
            assert any(
                all(large.get(event, 0) >= n for event, n in wanted.items()) for large in fitting
            )
            spent = wanted
        else:
            cost = sum(price[event] * n for event, n in wanted.items())
            assert cost + 0.4 > limit  # it is refused only where it is too much itself


def test_a_cover_takes_few_calls_though_two_kinds_take_turns() -> None:
    calls = 0

    def fits(composition: Composition) -> bool:
        nonlocal calls
        calls += 1
        return sum(n for _, n in composition.counts) <= 10_000

    spent: dict[Event, int] = {KINDS[2]: 777}
    cover = Cover(fits, spent)
    for n in range(10_000 - 777):
        kind = KINDS[n % 2]
        spent = {**spent, kind: spent.get(kind, 0) + 1}
        assert cover.admits(spent)
    for kind in KINDS:
        assert not cover.admits({**spent, kind: spent[kind] + 1})
    assert calls < 60
