"""What may be claimed is a function of a ledger's header and entries, and of nothing else."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accountants import accountant_named
from tacit.privacy.budget import Budget
from tacit.privacy.events import (
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
from tacit.privacy.guarantee import Guarantee, figures
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, PublicInput
from tests.privacy.guarantees import HEADER, REPLACE, ROUND, SHA, beside, of

# The accountant


def test_the_least_sound_figure_is_claimed() -> None:
    # The grid of pld is bounded, so that it is 25% above rdp here.
    found = of((ROUND, 10**9))
    assert found.epsilon["pld"] > 1.2 * found.epsilon["rdp"]
    assert found.accountant == "rdp"
    assert found.value == min(found.epsilon.values())
    assert "accounted by rdp" in found.claim


def test_an_accountant_asked_for_by_name_is_kept_though_others_give_less() -> None:
    for asked in ("pld", "rdp", "moments"):
        found = of((ROUND, 100), accountant=asked)
        assert found.accountant == asked
        assert next(iter(found.epsilon)) == asked
        assert found.value == accountant_named(asked).epsilon(Composition.of([(ROUND, 100)]), 1e-6)
        assert found.epsilon == of((ROUND, 100)).epsilon


def test_only_sound_accountants_have_a_figure() -> None:
    assert set(of(ROUND).epsilon) == {"pld", "rdp", "moments"}
    assert set(of(Gaussian(1.0)).epsilon) == {"pld", "rdp", "moments", "zcdp"}
    assert set(of(TruncatedPoissonGaussian(1000, 0.01, 30, 1.0)).epsilon) == {"pld"}
    assert set(of(FixedSizeGaussian(1000, 10, 1.0), adjacency=REPLACE).epsilon) == {"rdp"}
    # One that is asked for and would give no bound has none either.
    found = of(ROUND, accountant="zcdp")
    assert "zcdp" not in found.epsilon
    assert found.value == min(found.epsilon.values())


def test_beyond_the_reach_of_the_accountant_asked_for_the_least_other_holds() -> None:
    tight = of(PureDP(0.5), (Gaussian(3.0), 2), accountant="zcdp")
    assert tight.accountant == "zcdp"
    lapsed = of((Gaussian(3.0), 2), Lapse(1e-6), accountant="zcdp")
    assert lapsed.value == math.inf


# Costs


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ROUND, PoissonGaussian(0.1, 0.3), Gaussian(2.0), PureDP(0.3)]),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=20, deadline=None)
def test_the_figures_are_those_of_all_releases_in_any_order(
    releases: list[tuple[Event, int]],
) -> None:
    found = of(*releases)
    assert found.epsilon == pytest.approx(figures(Composition.of(releases), 1e-6))
    assert of(*reversed(releases)).epsilon == pytest.approx(found.epsilon)
    assert found.rounds == sum(count for _, count in releases)


def test_what_costs_nothing_is_in_no_part() -> None:
    free = PostProcessing("a sample")
    assert of(ROUND, free, free) == of(ROUND)
    assert of(free).parts == ()
    assert of(free).value == 0


def test_one_release_without_noise_is_the_end_of_it() -> None:
    found = of((ROUND, 3), NonPrivate("no noise"), (ROUND, 3))
    assert found.value == math.inf
    assert found.reasons == ("no noise",)
    assert found.why_not_for_release == "the run has no privacy guarantee"
    assert found.as_row()["epsilon"] == {"pld": None}


@pytest.mark.parametrize("theirs", [PureDP(0.01), PureDP(9.0)])
def test_the_larger_epsilon_holds_for_both_parts_of_a_corpus(theirs: PureDP) -> None:
    alone = of((ROUND, 100))
    found = of((ROUND, 100), prior_costs=(beside(theirs),))
    for name, epsilon in found.epsilon.items():
        assert epsilon == max(alone.epsilon[name], figures(Composition.of([theirs]), 1e-6)[name])


def test_a_cost_beside_that_the_accountant_cannot_read_is_taken_by_the_least_sound_one() -> None:
    truncated = TruncatedPoissonGaussian(1000, 0.1, 200, 0.5)
    theirs = figures(Composition.of([(truncated, 50)]), 1e-6)["pld"]
    found = of((Gaussian(50.0), 1), accountant="zcdp", prior_costs=(beside((truncated, 50)),))
    assert found.accountant == "zcdp"
    assert found.value == theirs == found.cost_of(found.header.prior_costs[0])


def test_a_cost_elsewhere_changes_no_figure_and_is_left_out_in_words() -> None:
    elsewhere = beside(PureDP(99.0), whom="elsewhere", excluded=("their test users",))
    found = of((ROUND, 100), prior_costs=(elsewhere,))
    assert found.epsilon == of((ROUND, 100)).epsilon
    assert found.excluded[-2:] == (
        "their test users",
        "the users of another corpus, from whose text the tokenizer was learnt",
    )


# Nothing but the ledger


def test_the_claim_is_a_function_of_header_and_entries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = dataclasses.replace(
        HEADER,
        budget=Budget(50.0, 1e-6, "pld"),
        people="0123456789abcdef",
        experiment="ab" * 32,
        public_inputs=(PublicInput("dictionary", "words.txt", SHA),),
        prior_costs=(beside(PureDP(0.5)),),
    )
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "ledger.jsonl"
    with Ledger.create(path, header) as ledger:
        ledger.charge([Charge("round", n, 0, ROUND, SHA, estimator="fixed") for n in range(3)])
    claimed = Guarantee.of(ledger)
    assert Guarantee.of(Ledger.read(path)) == claimed
    # Neither where it is, nor what is around it, nor notes and hashes of plans have a word in it.
    (tmp_path / "other").mkdir()
    shutil.copy(path, tmp_path / "other" / "book")
    (tmp_path / "other" / "experiment.toml").write_text("seed = 1\n")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert Guarantee.of(Ledger.read(tmp_path / "other" / "book")).claim == claimed.claim
    with Ledger.create(tmp_path / "third", header) as third:
        for n in range(3):
            third.charge([Charge("round", n + 9, n, ROUND, "00", note="a note", estimator="fixed")])
    assert Guarantee.of(third) == claimed


def test_a_remark_about_others_is_no_part_of_the_claim() -> None:
    found = of(ROUND)
    said = found.beside("Others were here.")
    assert said == found
    assert said.claim == found.claim
    assert said.as_row()["other_runs"] == "Others were here."
    assert found.as_row()["other_runs"] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"simulation": True}, "this is a simulation"),
        ({"audit": True}, "this is an audit run"),
        ({"view": "iid"}, "mixed from people's texts"),
        ({"view": "synthetic"}, None),
    ],
)
def test_what_must_not_be_given_away_says_why(changes: dict[str, object], why: str | None) -> None:
    found = of(ROUND, **changes).why_not_for_release
    assert (found is None) if why is None else (why in str(found))
