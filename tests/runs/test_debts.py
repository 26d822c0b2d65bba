"""What a run owes for a tokenizer that was learnt from people's text."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, Composition, PureDP
from tacit.tasks.language.tokenizer_cost import are_disjoint, cost_of
from tacit.tokenizers import learn
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.learn import Users
from tacit.tokenizers.partition_selection import PartitionSelection
from tacit.train import train
from tacit_papers.bagdasaryan2022.heavy_hitters import HeavyHitters, learn_tokenizer
from tests.runs.small import WORDS, experiment, make_folder

SHAPE = ("word", 60)
KEY = bytes(32)


def spent(composition, accountant, delta):
    return accountant_named(accountant).epsilon(composition, delta)


def spent_on(own):
    """What all private runs on the people of a corpus have released."""
    people = load_corpus(own / "corpus").identity
    return PeopleLedger.open(people).spent(("user", Adjacency.ADD_REMOVE))


@pytest.fixture
def own(tmp_path):
    """A corpus whose register is nobody else's."""
    folder = make_folder(tmp_path / "own")
    (folder / "candidates.txt").write_text(" ".join(WORDS) + "\n")
    return folder


def hitters(own, part="", seed=1, name="hitters", epsilon=30.0):
    users = Users.of(str(own / "corpus"), part, delta=1e-3)
    method = HeavyHitters(epsilon, hashes=8, width=64, threshold=0.0)
    made = learn_tokenizer(users, str(own / "candidates.txt"), method, *SHAPE, seed)
    return made.save(own / name)


def with_tokenizer(own, source, part="", **changes):
    return experiment(own, **changes).changed(
        tokenizer={"source": str(source)}, corpus={"part": part}
    )


def test_the_same_people_pay_for_both(own):
    folder = hitters(own)
    run = train(with_tokenizer(own, folder), own / "run")
    assert [entry.kind for entry in run.ledger.entries[:3]] == ["words", "tokenizer", "round"]
    plain = train(experiment(own), own / "plain")
    both, alone = run.guarantee().epsilon["rdp"], plain.guarantee().epsilon["rdp"]
    together = Composition.of([PureDP(30.0)]).counts + plain.ledger.composition().counts
    assert both == pytest.approx(spent(Composition.of(together), "rdp", 1e-3))
    assert both > max(alone, 29)
    assert "includes what it cost to learn the tokenizer" in run.guarantee().claim


def test_other_people_of_the_corpus_make_the_larger_epsilon_hold(own):
    folder = hitters(own, "1/2")
    run = train(with_tokenizer(own, folder, "2/2", plan={"cohort": 5}), own / "run")
    assert [entry.kind for entry in run.ledger.entries[:2]] == ["tokenizer", "round"]
    mine = spent(run.ledger.composition(), "rdp", 1e-3)
    theirs = spent(LearntTokenizer.load(folder).history.ledger.composition(), "rdp", 1e-3)
    assert run.guarantee().epsilon["rdp"] == max(mine, theirs) == theirs
    assert "part 1/2" in run.guarantee().claim
    assert "larger of the two" in run.guarantee().claim


def test_the_parts_of_a_corpus_are_other_people(own):
    everybody = Users.of(str(own / "corpus")).source
    halves = [Users.of(str(own / "corpus"), part).source for part in ("1/2", "2/2")]
    ids = [{half.user_id(i) for i in range(len(half))} for half in halves]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == {everybody.user_id(i) for i in range(len(everybody))}


def test_the_register_counts_the_tokenizer_once(own):
    folder = hitters(own, seed=None)
    train(with_tokenizer(own, folder, seed=None).changed(seed=None), own / "run")
    counted = spent_on(own)
    assert sum(n for event, n in counted.counts if isinstance(event, PureDP)) == 1


def test_samples_of_a_run_owe_what_the_run_has_cost(own):
    parent = train(experiment(own, seed=None).changed(seed=None), own / "parent")
    learnt = parent.sampled_tokenizer(4, *SHAPE, KEY, tokens=500)
    folder = learnt.save(own / "sampled")
    assert len(LearntTokenizer.load(folder).history.ledger.entries) == 1 + 4 + 1
    run = train(with_tokenizer(own, folder).changed(seed=None), own / "run")
    assert sum(entry.kind == "round" for entry in run.ledger.entries) == 4 + 6
    counted = spent_on(own).counts
    assert sum(n for event, n in counted if event.kind == "poisson-gaussian") == 6 + 6
    assert run.guarantee().rounds == 10


def test_samples_of_one_half_are_free_for_the_other(own):
    half = {"plan": {"cohort": 5}}
    first = experiment(own, **half).changed(corpus={"part": "1/2"}, plan={"noise_multiplier": 2.0})
    parent = train(first, own / "parent")
    folder = parent.sampled_tokenizer(None, *SHAPE, KEY, tokens=500).save(own / "sampled")
    run = train(with_tokenizer(own, folder, "2/2", **half), own / "run")
    mine = spent(run.ledger.composition(), "rdp", 1e-3)
    theirs = spent(parent.ledger.composition(), "rdp", 1e-3)
    assert theirs < mine == run.guarantee().epsilon["rdp"]


def test_a_model_without_noise_gives_a_tokenizer_without_a_guarantee(own):
    open_ = experiment(own, plan={"noise_multiplier": 0.0})
    parent = train(open_, own / "parent")
    folder = parent.sampled_tokenizer(None, *SHAPE, KEY, tokens=500).save(own / "sampled")
    with pytest.raises(ValueError, match="without noise"):
        train(with_tokenizer(own, folder), own / "run")
    accepted = with_tokenizer(own, folder).changed(tokenizer={"accept_oracle": True})
    run = train(accepted, own / "accepted")
    assert run.guarantee().epsilon["rdp"] == math.inf


def test_a_simulation_serves_simulations_only(own):
    folder = hitters(own, seed=1)
    with pytest.raises(ValueError, match="comes from a simulation"):
        train(with_tokenizer(own, folder).changed(seed=None), own / "run")


def test_a_private_tokenizer_without_its_history_is_refused(own):
    folder = hitters(own)
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match=r"ledger\.jsonl that says what that cost is not beside"):
        train(with_tokenizer(own, folder), own / "run")


def test_another_corpus_is_left_out_of_the_claim(own, tmp_path):
    from tacit.corpus.grouping import UserOptions
    from tacit.corpus.ingest import ingest_records
    from tests.runs.small import texts_of

    folder = hitters(own)
    records = [(f"other {n}", texts_of(n)) for n in range(60)]
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest_records(records, tmp_path / "other", count=60, options=options, salt="11" * 16)
    wanted = with_tokenizer(own, folder).changed(corpus={"source": str(tmp_path / "other")})
    run = train(wanted, own / "run")
    assert "users of another corpus, from whose text the tokenizer" in run.guarantee().claim


def test_a_budget_is_for_the_people_of_the_tokenizer_too(own):
    folder = hitters(own, "1/2")
    wanted = with_tokenizer(
        own, folder, "2/2", plan={"cohort": 5}, privacy={"budget_epsilon": 10.0}
    )
    with pytest.raises(ValueError, match=r"above privacy\.budget_epsilon = 10"):
        train(wanted, own / "run")


def test_what_a_branch_of_such_a_run_owes_is_the_same(own):
    folder = hitters(own, "1/2")
    run = train(with_tokenizer(own, folder, "2/2", plan={"cohort": 5}), own / "run")
    branch = train(run.experiment.changed(rounds=7), own / "branch", branch_from=(run.path, 6))
    assert branch.guarantee().epsilon["rdp"] >= run.guarantee().epsilon["rdp"]
    assert "part 1/2" in branch.guarantee().claim


def test_samples_of_a_run_that_owes_to_others_are_refused(own):
    folder = hitters(own, "1/2")
    run = train(with_tokenizer(own, folder, "2/2", plan={"cohort": 5}), own / "run")
    with pytest.raises(ValueError, match="tell about both parts"):
        run.sampled_tokenizer(None, *SHAPE, KEY, tokens=500)


def test_a_private_tokenizer_is_nothing_to_switch_to(own):
    switch = {"source": str(hitters(own))}
    phases = [{"rounds": 1}, {"rounds": 1, "tokenizer": switch}]
    with pytest.raises(ValueError, match="begin a run with it"):
        train(experiment(own, rounds=2, phases=phases), own / "run")


@pytest.mark.parametrize("part", ["2/2", ""], ids=["other part", "everybody"])
def test_replace_one_adjacency_is_refused_beside_a_private_tokenizer(own, part):
    """Who takes another's place may be of the other part: then both parts change."""
    folder = hitters(own, "1/2")
    fixed = {"plan": {"cohort": 5, "sampling": "fixed"}}
    with pytest.raises(ValueError, match="add/remove-one adjacency only"):
        train(with_tokenizer(own, folder, part, **fixed), own / "run")
    phase = {"plan": {"cohort": 5}, "phases": [{"rounds": 3}, {"rounds": 3, "plan": fixed["plan"]}]}
    with pytest.raises(ValueError, match="add/remove-one adjacency only"):
        train(with_tokenizer(own, folder, part, **phase), own / "run")


def test_a_tokenizer_of_a_run_with_fixed_cohorts_is_refused(own):
    fixed = experiment(own, plan={"cohort": 5, "sampling": "fixed"}).changed(corpus={"part": "1/2"})
    folder = train(fixed, own / "parent").sampled_tokenizer(None, *SHAPE, KEY, tokens=500)
    folder = folder.save(own / "sampled")
    with pytest.raises(ValueError, match="add/remove-one adjacency only"):
        train(with_tokenizer(own, folder, "2/2", plan={"cohort": 5}), own / "run")


def test_the_charge_is_on_record_before_any_noise(own, monkeypatch):
    def dies(self, *given):
        raise KeyboardInterrupt

    monkeypatch.setattr(HeavyHitters, "learn", dies)
    with pytest.raises(KeyboardInterrupt):
        hitters(own, seed=None)
    assert spent_on(own) == Composition.of([PureDP(30.0)])


def test_partition_selection_is_charged_as_it_says(own):
    users = Users.of(str(own / "corpus"), delta=1e-3)
    method = PartitionSelection.for_budget(8.0, 1e-3, 10)
    made = learn.release(users, method.events, method.learn, asdict(method), *SHAPE)
    assert made.history.ledger.composition().costly() == Composition.of(method.events).counts
    assert spent(made.history.ledger.composition(), "pld", 1e-3) <= 8.0


def test_an_oracle_and_an_unknown_tokenizer_void(own):
    made = learn.oracle(Users.of(str(own / "corpus")), *SHAPE)
    debt = cost_of(experiment(own), load_corpus(own / "corpus"), made)
    assert debt.event.kind == "non-private"


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_parts_are_disjoint_exactly_if_no_hash_is_in_both(m, n, data):
    a, b = data.draw(st.integers(1, m)), data.draw(st.integers(1, n))
    met = any(h % m == a - 1 and h % n == b - 1 for h in range(m * n))
    assert are_disjoint(f"{a}/{m}", f"{b}/{n}") == (not met)
    assert not are_disjoint("", f"{b}/{n}")


def test_nothing_is_owed_for_a_public_tokenizer(own):
    public = LearntTokenizer.load(own / "tokenizer.json")
    debt = cost_of(experiment(own), load_corpus(own / "corpus"), public)
    assert (debt.event, debt.inherited, debt.header_entry) == (None, None, None)


def test_a_counted_number_of_users_behind_a_tokenizer_is_published_and_excluded(own):
    """Partition selection without a declared population: its ledger has the exact number."""
    users = Users.of(str(own / "corpus"), delta=1e-3)
    method = PartitionSelection.for_budget(8.0, 1e-3, 10)
    made = learn.release(users, method.events, method.learn, asdict(method), *SHAPE, seed=1)
    folder = made.save(own / "out")
    counted = LearntTokenizer.load(folder).history.ledger.header
    assert counted.population == len(users.source)
    assert counted.population_is_counted
    wanted = with_tokenizer(own, folder, plan={"population": 500})
    run = train(wanted, own / "run")
    assert "the number of users from whose text the tokenizer was learnt" in run.guarantee().claim


def test_parts_of_two_ingests_with_other_salts_are_not_taken_for_disjoint(own, tmp_path):
    """Parts are cut by salted ids: half 2 of one ingest has people of half 1 of another."""
    from tacit.corpus.grouping import UserOptions
    from tacit.corpus.ingest import ingest_records
    from tests.runs.small import texts_of

    folder = hitters(own, "1/2")
    records = [(f"user {n}", texts_of(n)) for n in range(60)]
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest_records(records, tmp_path / "again", count=60, options=options, salt="11" * 16)
    wanted = with_tokenizer(own, folder, "2/2", plan={"cohort": 5})
    run = train(wanted.changed(corpus={"source": str(tmp_path / "again")}), own / "run")
    assert run.ledger.header.prior_costs[0].whom == "same"
    assert [entry.kind for entry in run.ledger.entries[:2]] == ["words", "tokenizer"]


def test_what_one_half_paid_for_a_tokenizer_is_in_the_joint_figure_once(own):
    folder = hitters(own, "1/2", seed=None)
    wanted = with_tokenizer(own, folder, "2/2", plan={"cohort": 5}).changed(seed=None)
    for name in ("one", "two"):
        train(wanted, own / name)
    assert dict(spent_on(own).costly())[PureDP(30.0)] == 1
