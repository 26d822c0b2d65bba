"""A projected claim is the actual one wherever nothing is changed, and says what it is elsewhere.

Ledgers are built directly, with several kinds of releases: rounds of different noise, words of a
tokenizer, those of the run that a branch left, and costs to others of the corpus.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.budget import Budget
from tacit.privacy.claims import ALWAYS_EXCLUDED, PROJECTED
from tacit.privacy.events import (
    Adjacency,
    Composition,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
)
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header, PriorCost, PublicInput
from tacit.privacy.projection import Projection
from tacit.report.claim import claim_facts, ledger_facts, projected_facts
from tacit.report.facts import gather
from tacit.report.page import render
from tacit.tokenizers.learn import Users
from tacit.train import train
from tacit_papers.bagdasaryan2022.heavy_hitters import HeavyHitters, learn_tokenizer
from tests.runs.small import WORDS, experiment, make_folder

PUBLIC = (PublicInput("dictionary", "words.txt", "ab" * 32),)
NOISES = st.sampled_from([0.6, 1.0, 2.0])
COSTS = st.sampled_from(
    [Composition.of([PureDP(3.0)]), Composition.of([(PoissonGaussian(0.1, 0.8), 3)])]
)
WORD_EVENTS = st.sampled_from([PureDP(1.0), Gaussian(3.0), Lapse(1e-10), PostProcessing("free")])


@dataclass(frozen=True)
class Made:
    """A ledger, and the cohort of its rounds."""

    ledger: Ledger
    cohort: float

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of(self.ledger)

    @property
    def own(self) -> Projection:
        header = self.ledger.header
        return Projection(self.cohort, header.population, header.delta)


def releases(events, kind, first=1):
    estimator = "fixed-denominator" if kind == "round" else None
    return [
        Charge(kind, first + number, 0, event, "ab" * 32, estimator=estimator)
        for number, event in enumerate(events)
    ]


def made_ledger(folder, header, words, rounds, later=()):
    """The ledger of a run, or of a branch that goes on with `later` rounds."""
    with Ledger.create(folder / "ledger.jsonl", header) as ledger:
        ledger.charge(releases(words, "words", 0))
        ledger.charge(releases(rounds, "round"))
    if not later:
        return ledger
    count = len(ledger.entries)
    branch = Ledger.branch(
        folder / "branch.jsonl",
        ledger,
        count,
        "other",
        run_id="22",
        round=len(rounds),
    )
    with branch:
        branch.charge(releases(later, "round", len(rounds) + 1))
    return branch


@st.composite
def ledgers(draw, accountants=(None, "pld", "rdp", "moments")):
    """Of any mixture of releases that can be projected."""
    population = draw(st.integers(20, 100_000))
    cohort = draw(st.integers(1, population // 2))
    noises = draw(st.lists(NOISES, min_size=1, max_size=3))
    later = draw(st.lists(NOISES, max_size=2))
    words = draw(st.lists(WORD_EVENTS, max_size=2))
    beside = draw(st.none() | COSTS)
    rounds, more = ([PoissonGaussian(cohort / population, z) for z in zs] for zs in (noises, later))
    asked = draw(st.sampled_from(accountants))
    sound = {one.name for one in sound_accountants(Composition.of([*words, *rounds, *more]))[0]}
    costs = (PriorCost("tokenizer", "elsewhere", people="ff"),)
    if beside is not None:
        costs = (PriorCost("tokenizer", "beside", part="1/2", releases=beside),)
        sound &= {one.name for one in sound_accountants(beside)[0]}
    header = Header(
        run_id="11",
        unit="user",
        population=population,
        population_is_counted=draw(st.booleans()),
        delta=draw(st.sampled_from([1e-3, 1e-5])),
        adjacency=Adjacency.ADD_REMOVE,
        accountant=asked if asked in sound else None,
        budget=draw(st.none() | st.just(Budget(8.0, 1e-3, "pld"))),
        simulation=draw(st.booleans()),
        audit=draw(st.booleans()),
        excluded=(*ALWAYS_EXCLUDED, "something of this run alone"),
        public_inputs=PUBLIC,
        prior_costs=costs,
    )
    with tempfile.TemporaryDirectory() as folder:
        return Made(made_ledger(Path(folder), header, words, rounds, more), float(cohort))


@settings(max_examples=12)
@given(ledgers())
def test_projected_to_itself_a_run_has_its_actual_epsilon_by_every_accountant(made):
    actual, there = made.guarantee, made.guarantee.projected(made.own)
    assert there.epsilon == actual.epsilon
    assert there.accountant == actual.accountant
    assert there.parts == actual.parts
    assert there.excluded == actual.excluded
    assert there.header.public_inputs == actual.header.public_inputs
    assert there.header.prior_costs == actual.header.prior_costs
    without = Projection(made.cohort, actual.header.population)
    assert actual.projected(without).epsilon == actual.epsilon  # and its delta is the default


@settings(max_examples=12)
@given(ledgers(), st.integers(1, 50), st.integers(1, 1000), st.sampled_from([None, 1e-6]))
def test_a_projected_claim_is_labelled_and_keeps_what_the_actual_one_says(made, times, more, delta):
    actual = made.guarantee
    population = actual.header.population * more
    to = Projection(min(made.cohort * times, population), population, delta)
    there = actual.projected(to)
    assert PROJECTED in there.claim
    assert PROJECTED not in actual.claim
    assert "something of this run alone" in there.claim
    assert str(PUBLIC[0]) in there.claim
    facts = projected_facts(actual, to)
    own = claim_facts(actual)
    assert (facts["label"], facts["sentence"]) == (PROJECTED, there.claim)
    for kept in ("public_inputs", "simulation", "audit", "view", "unit", "adjacency", "parent"):
        assert facts[kept] == own[kept]
    assert [one["whom"] for one in facts["prior_costs"]] == [
        one["whom"] for one in own["prior_costs"]
    ]
    kept = {*actual.header.excluded, *actual.excluded} - {*there.excluded}
    kept = {whom for whom in kept if "since delta is not below" not in whom}  # that has its own
    is_other = actual.header.population_is_counted and more > 1
    assert len(kept) == is_other  # the number of people that was counted is not theirs


@pytest.mark.slow
@settings(max_examples=12)
@given(ledgers(), st.floats(1.0, 20.0))
def test_more_people_a_round_never_cost_more_at_the_same_noise_on_the_average(made, times):
    actual, population = made.guarantee, made.ledger.header.population
    cohort = min(made.cohort * times, float(population))
    assume(cohort > made.cohort)
    there = actual.projected(Projection(cohort, population, actual.delta))
    for name, epsilon in there.epsilon.items():
        assert epsilon <= actual.epsilon[name] * (1 + 1e-3) + 1e-9  # accountants round up


@settings(max_examples=12)
@given(ledgers())
def test_facts_of_a_claim_are_a_function_of_the_ledger_and_survive_json(made):
    facts = claim_facts(made.guarantee)
    assert facts == claim_facts(made.guarantee.beside("Others were trained."))
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    found = ledger_facts(made.ledger)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rounds_of_different_cohorts_grow_in_proportion(tmp_path):
    """10 and 20 of 100 users: where the largest cohort is 40, both have twice the noise."""
    header = Header("11", "user", 100, 1e-3, adjacency=Adjacency.ADD_REMOVE)
    rounds = [PoissonGaussian(0.1, 1.0), PoissonGaussian(0.2, 1.0)]
    actual = Guarantee.of(made_ledger(tmp_path, header, [], rounds))
    there = actual.projected(Projection(40, 100))
    assert [part.event for part in there.parts] == [
        PoissonGaussian(0.2, 2.0),
        PoissonGaussian(0.4, 2.0),
    ]
    assert actual.projected(Projection(20, 100)).epsilon == actual.epsilon


@pytest.mark.parametrize(
    "event", [FixedSizeGaussian(100, 10, 1.0), NonPrivate("no noise"), Gaussian(1.0)], ids=str
)
def test_rounds_whose_noise_does_not_grow_with_the_cohort_are_refused(tmp_path, event):
    header = Header("11", "user", 100, 1e-3, adjacency=event.adjacency)
    ledger = made_ledger(tmp_path, header, [], [event])
    with pytest.raises(ValueError, match="a projection needs noisy rounds with Poisson sampling"):
        projected_facts(Guarantee.of(ledger), Projection(10, 100))


def test_a_run_without_a_round_has_nothing_to_project(tmp_path):
    header = Header("11", "user", 100, 1e-3, adjacency=Adjacency.ADD_REMOVE)
    ledger = made_ledger(tmp_path, header, [PureDP(1.0)], [])
    with pytest.raises(ValueError, match="at least one round"):
        projected_facts(Guarantee.of(ledger), Projection(10, 100))


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("projected"))
    (folder / "candidates.txt").write_text(" ".join(WORDS) + "\n")
    return folder


def projected_to_itself(run):
    """The facts of a report whose projection is the run's own cohort and population."""
    population = run.ledger.header.population
    facts = gather(run, projection=Projection(run.experiment.plan.cohort, population))
    assert facts["projected"]["epsilon"] == facts["claim"]["epsilon"]
    assert facts["projected"]["excluded"] == facts["claim"]["excluded"]
    assert facts["projected"]["sentence"] in render(facts).replace("&#39;", "'")
    return facts


def test_what_the_same_people_paid_for_their_tokenizer_is_projected_with_the_rounds(people):
    learnt = learn_tokenizer(
        Users.of(str(people / "corpus"), delta=1e-3),
        str(people / "candidates.txt"),
        HeavyHitters(8.0, hashes=8, width=64, threshold=0.0),
        "word",
        60,
        seed=1,
    ).save(people / "hitters")
    run = train(experiment(people, rounds=2, tokenizer={"source": str(learnt)}), people / "same")
    facts = projected_to_itself(run)
    [cost] = facts["claim"]["prior_costs"]
    assert (cost["what"], cost["whom"]) == ("tokenizer", "same")
    assert facts["projected"]["prior_costs"] == facts["claim"]["prior_costs"]
    larger = gather(run, projection=Projection(10_000, 10**9, 1e-3))["projected"]
    assert larger["epsilon"][larger["accountant"]] > 7  # words cost what they cost
    assert "prior-costs" in render(facts)


def test_what_a_branch_inherited_is_projected_with_its_own_rounds(people):
    parent = train(experiment(people, rounds=2, plan={"noise_multiplier": 0.3}), people / "parent")
    quieter = experiment(people, rounds=3, plan={"noise_multiplier": 2.0})
    branch = train(quieter, people / "branch", branch_from=(parent.path, 2))
    facts = projected_to_itself(branch)
    counts = [
        (one["event"]["noise_multiplier"], one["count"]) for one in facts["claim"]["releases"]
    ]
    assert counts == [(0.3, 2), (2.0, 1)]
    assert facts["claim"]["parent"]["run_id"] == parent.ledger.header.run_id
    assert facts["claim"]["parent"]["round"] == 2
    assert facts["ledger"]["parent"] == facts["claim"]["parent"]
    page = render(facts)
    assert parent.ledger.header.run_id in page
    assert "after round 2, whose releases until then are counted here" in page
