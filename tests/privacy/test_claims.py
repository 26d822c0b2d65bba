"""The words of a claim: everything that an epsilon means, wherever one is printed."""

from __future__ import annotations

import pytest

from tacit.privacy.claims import PROJECTED, format_delta, format_epsilon
from tacit.privacy.events import (
    Adjacency,
    DistributedGaussian,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PureDP,
    TruncatedPoissonGaussian,
    TurnsDistributedGaussian,
)
from tacit.privacy.guarantee import ReleaseGroup
from tacit.privacy.ledger_lines import PriorCost, PublicInput
from tacit.privacy.projection import Projection
from tests.privacy.guarantees import REPLACE, ROUND, SHA, beside, of

POISSON = "Poisson sampling with probability 0.01"


def released(*parts: object, **changes: object) -> str:
    """The middle of the sentence: what was released."""
    claim = of(*parts, **changes).claim  # type: ignore[arg-type]
    return claim.partition("declared public: ")[2].partition(", accounted by")[0]


def test_one_plan_in_full() -> None:
    found = of((ROUND, 5000))
    assert found.claim == (
        f"User-level ({format_epsilon(found.value)}, 1e-06)-differential privacy under"
        " add/remove-one adjacency, with the population of 1,000 users declared public: 5,000"
        " rounds, Poisson sampling with probability 0.01, Gaussian noise of 1 times the"
        " sensitivity, accounted by pld; excluded: the choice of settings; test users, who are"
        " disjoint from the training users and unprotected."
    )


def test_one_round_is_singular() -> None:
    assert released(ROUND).startswith("1 round, ")
    assert released(ROUND, counted="epochs").startswith("1 epoch, ")
    assert released((ROUND, 2), counted="steps").startswith("2 steps, ")


def test_a_branch_says_how_much_noise_each_of_its_rounds_had() -> None:
    low, high = PoissonGaussian(0.01, 0.3), PoissonGaussian(0.01, 2.0)
    assert released((low, 2), high) == (
        f"3 rounds, {POISSON}, Gaussian noise of 0.3 times the sensitivity in 2 of them and of 2"
        " times in 1"
    )
    assert released((low, 2), (ROUND, 1500), high).endswith(
        "of 0.3 times the sensitivity in 2 of them and of 1 times in 1,500 and of 2 times in 1"
    )


def test_rounds_that_differ_in_their_estimator_alone_are_said_once() -> None:
    one, other = (ReleaseGroup("round", ROUND, 2, how) for how in ("fixed-denominator", "other"))
    assert released(one, other) == (
        f"4 rounds, {POISSON}, Gaussian noise of 1 times the sensitivity"
    )


def test_rounds_that_are_sampled_differently_are_said_apart() -> None:
    truncated = TruncatedPoissonGaussian(1000, 0.02, 40, 2.0)
    assert released((ROUND, 2), (truncated, 3)) == (
        f"2 rounds, {POISSON}, Gaussian noise of 1 times the sensitivity; then 3 rounds, Poisson"
        " sampling with probability 0.02, cut to 40 a round, Gaussian noise of 2 times the"
        " sensitivity"
    )
    fixed = FixedSizeGaussian(1000, 10, 0.5)
    assert released(fixed, adjacency=REPLACE).startswith(
        "1 round, fixed-size sampling of 10 a round without replacement, "
    )


def test_noise_that_decays_is_said_from_first_to_last() -> None:
    falling = [Gaussian(2.0 - 0.25 * n) for n in range(5)]
    assert released(*falling, counted="epochs") == (
        "5 epochs, reshuffled, without amplification by sampling, Gaussian noise that falls from 2"
        " to 1 times the sensitivity"
    )
    mixed = [PoissonGaussian(0.01, z) for z in (1.0, 3.0, 2.0, 1.5)]
    assert released(*mixed).endswith("Gaussian noise of between 1 and 3 times the sensitivity")


def test_words_of_a_tokenizer_come_first() -> None:
    words = ReleaseGroup("words", PureDP(2.0), 1)
    assert released(words, (ROUND, 2)).startswith(
        "words reported under pure differential privacy of epsilon 2.000; then 2 rounds, "
    )
    assert released(ReleaseGroup("words", PureDP(2.0), 3)) == (
        "words reported under pure differential privacy of epsilon 2.000, 3 times"
    )
    chosen = [ReleaseGroup("words", Gaussian(5.0), 1), ReleaseGroup("words", Lapse(1e-7), 1)]
    assert released(*chosen) == (
        "words released with Gaussian noise of 5 times the sensitivity; then a failure with"
        " probability 1e-07, part of delta"
    )
    assert released(ReleaseGroup("scaling", Gaussian(5.0), 1), (ROUND, 1)).startswith(
        "scaling factors of the layers released with Gaussian noise of 5 times the sensitivity; "
    )


def test_a_printed_pure_epsilon_is_never_below_the_real_one() -> None:
    assert "epsilon 2.001" in released(ReleaseGroup("words", PureDP(2.0000004), 1))


def test_the_users_who_paid_for_the_tokenizer_are_named() -> None:
    same = PriorCost("tokenizer", "same")
    assert of(ROUND, prior_costs=(same,)).claim.endswith(
        ".  This includes what it cost to learn the tokenizer from the same users."
    )
    others = of(ROUND, prior_costs=(beside(PureDP(3.0)),))
    theirs = format_epsilon(others.cost_of(others.header.prior_costs[0]))
    assert others.claim.endswith(
        ".  The tokenizer was learnt from part 1/2 of the corpus's users, none of whom are trained"
        f" on here, at epsilon {theirs}: the epsilon stated is the larger of the two, and holds for"
        " the users of both parts."
    )
    weights = PriorCost("starting weights", "elsewhere")
    assert "; the users of other corpora on whose text the starting model was trained." in (
        of(ROUND, prior_costs=(weights,)).claim
    )
    assert "those who paid for the clip norm" in (
        of(ROUND, prior_costs=(PriorCost("clip norm", "elsewhere"),)).claim
    )


def test_everything_declared_public_is_listed_with_its_digest() -> None:
    inputs = (PublicInput("dictionary", "words.txt", SHA), PublicInput("text", "sotu", "ab" * 32))
    assert of(ROUND, public_inputs=inputs).claim.endswith(
        "unprotected; declared public: the dictionary words.txt (sha256 0123456789abcdef); the text"
        " sotu (sha256 abababababababab)."
    )


def test_every_exclusion_is_in_the_sentence() -> None:
    found = of(
        ROUND,
        excluded=("the weather", "the news"),
        population_is_counted=True,
        prior_costs=(beside(PureDP(1.0), whom="elsewhere", excluded=("the news", "their tests")),),
    )
    assert found.excluded == (
        "the weather",
        "the news",
        "the number of training users, which is published",
        "their tests",
        "the users of another corpus, from whose text the tokenizer was learnt",
    )
    assert f"; excluded: {'; '.join(found.excluded)}." in found.claim
    assert "excluded" not in of(ROUND, excluded=()).claim


def test_noise_that_users_add_says_who_has_to_be_honest_and_what_is_compared() -> None:
    each = DistributedGaussian(shares=90, share_stddev=600.0, sensitivity=5700.0, coordinates=10**6)
    assert "under zero-out-one adjacency" in of(each, adjacency=Adjacency.ZERO_OUT).claim
    assert released((each, 5), adjacency=Adjacency.ZERO_OUT) == (
        "5 rounds, no sampling (everybody in every round, at least 90 honest ones add noise),"
        " discrete Gaussian noise of 0.998614 times the sensitivity"
    )
    turns = TurnsDistributedGaussian("main", 25, 10, "independent", each.noise_multiplier, each)
    assert released((turns, 25), adjacency=Adjacency.ZERO_OUT) == (
        "25 rounds, no sampling assumed (each user at most 3 times, at least 10 rounds apart, at"
        " least 90 honest ones a round add noise), independent discrete Gaussian noise of 0.998614"
        " times the sensitivity of each turn"
    )


def test_records_are_not_called_users() -> None:
    claim = of((ROUND, 2), unit="record", counted="steps", population_is_counted=True).claim
    assert claim.startswith("Record-level (")
    assert "population of 1,000 records declared public: 2 steps, " in claim
    assert "the number of training records, which is published" in claim


def test_the_adjacency_is_said_though_the_header_leaves_it_open() -> None:
    assert "under add/remove-one adjacency" in of(ROUND, adjacency=None).claim


@pytest.mark.parametrize("view", ["iid", "synthetic"])
def test_made_up_users_have_no_claim(view: str) -> None:
    assert of(ROUND, view=view, simulation=True, audit=True).claim == (
        "No claim about people: the users of this run are synthetic, and a guarantee for them says"
        " nothing about anybody."
    )


def test_what_is_not_for_release_says_so_first() -> None:
    plain = of(ROUND).claim
    seeded = "Simulation, not for release, because its noise follows from a seed."
    audited = "Audit run, with canaries planted among its texts or users."
    assert of(ROUND, simulation=True).claim == f"{seeded}  {plain}"
    assert of(ROUND, audit=True).claim == f"{audited}  {plain}"
    assert of(ROUND, audit=True, simulation=True).claim == f"{audited}  {seeded}  {plain}"


def test_where_nothing_holds_nothing_is_claimed() -> None:
    none = of(ROUND, NonPrivate("no noise is added"), NonPrivate("an oracle's vocabulary"))
    assert none.claim == "No differential privacy: an oracle's vocabulary; no noise is added."
    assert of().claim == "Nothing was released yet: no round has been run."
    assert of(counted="epochs").claim == "Nothing was released yet: no epoch has been run."
    lapsed = of(ROUND, Lapse(0.5)).claim
    assert lapsed.startswith("No guarantee: pld gives no finite epsilon for 1 round, ")


def test_a_projection_is_labelled_and_keeps_all_else() -> None:
    actual = of(
        ReleaseGroup("words", PureDP(2.0), 1),
        ReleaseGroup("round", ROUND, 100, "fixed-denominator"),
        public_inputs=(PublicInput("dictionary", "words.txt", SHA),),
        prior_costs=(PriorCost("tokenizer", "same"),),
    )
    larger = actual.projected(Projection(100, 10_000, 1e-6))
    assert f"-differential privacy ({PROJECTED}) under" in larger.claim
    assert PROJECTED not in actual.claim
    assert larger.excluded == actual.excluded
    for said in ("words reported", "declared public: the dictionary words.txt", "This includes"):
        assert said in larger.claim
    own = actual.projected(Projection(10, 1000))
    assert own.epsilon == actual.epsilon
    assert own.claim.replace(f" ({PROJECTED})", "") == actual.claim


def test_a_printed_delta_is_never_below_the_real_one() -> None:
    assert format_delta(1e-6) == "1e-06"
    assert format_delta(1.23456701e-6) == "1.23457e-06"
    assert format_epsilon(float("inf")) == "infinity"


def test_an_epsilon_above_100_is_said_to_be_no_meaningful_guarantee() -> None:
    at_most = of((PoissonGaussian(0.01, 0.5), 100))
    beyond = of((PoissonGaussian(0.5, 0.05), 100))
    assert at_most.value <= 100 < beyond.value
    assert at_most.is_meaningful
    assert not beyond.is_meaningful
    assert at_most.claim.startswith("User-level (")
    epsilon = format_epsilon(beyond.value)
    assert beyond.claim.startswith(
        f"No meaningful guarantee: epsilon is above 100.  User-level ({epsilon}, "
    )
    assert not of(NonPrivate("no noise")).is_meaningful
