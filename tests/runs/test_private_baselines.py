"""Private baselines: charged before the noise, charged again when repeated, and never half made."""

import json

import numpy as np
import pytest

from tacit.corpus.people_costs import PeoplesBudget
from tacit.corpus.people_ledger import PeopleLedger
from tacit.mechanisms.noisy_counts import NoisyCounts
from tacit.privacy.budget import BudgetExceeded
from tacit.privacy.events import Gaussian, PostProcessing
from tacit.privacy.ledger_lines import LedgerError
from tacit.privacy.randomness import RunKey
from tacit.runs import private_baselines as subject
from tacit.runs.private_baselines import PrivateBaselines, release_baselines
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.tokenizers import learn
from tacit.train import train
from tests.runs.small import experiment, make_folder


@pytest.fixture
def stored(tmp_path):
    folder = make_folder(tmp_path / "own")
    train(experiment(folder, seed=None, rounds=1), folder / "run")
    return StoredModel.open(folder / "run")


def people_of(stored):
    return PeopleLedger.open(stored.run.ledger.header.people)


def charges(stored):
    """The events of every run on these people but the one that was trained."""
    own = stored.run.ledger.header.run_id
    return [run.events for name, run in people_of(stored).runs().items() if name != own]


def test_the_release_is_charged_to_both_ledgers_and_claims_what_was_asked(stored):
    released = release_baselines(stored, 2.0)
    guarantee, header = released.guarantee, released.ledger.header
    assert 1.99 < guarantee.value <= 2.0
    assert "User-level (2.000, 0.001)-differential privacy" in guarantee.claim
    assert "counts of tokens and of pairs of them" in guarantee.claim
    own = stored.run.ledger.header
    assert (header.population, header.delta, header.people) == (own.population, 1e-3, own.people)
    [[counts, made]] = charges(stored)
    assert isinstance(counts, Gaussian)
    assert isinstance(made, PostProcessing)
    assert [entry.event for entry in released.ledger.entries] == [counts, made]
    assert (
        "This corpus has 1 other run on record." in LanguageRun.open(stored.path).guarantee().others
    )


def test_noise_is_drawn_only_after_the_charge_is_on_the_disk(stored, monkeypatch):
    seen = []

    def release(self, total, noise, progress=None):
        seen.append([list(events) for events in charges(stored)])
        raise RuntimeError("the machine stops")

    monkeypatch.setattr(NoisyCounts, "release", release)
    with pytest.raises(RuntimeError):
        release_baselines(stored, 2.0)
    [[events]] = seen
    assert len(events) == 1
    assert len(charges(stored)) == 1  # charged, though nothing came of it
    assert PrivateBaselines.read(stored.path) is None  # and nothing half made is left


def test_repeating_it_is_a_second_charge_with_other_noise(stored):
    first = release_baselines(stored, 2.0)
    second = release_baselines(stored, 2.0)
    assert len(charges(stored)) == 2
    assert first.ledger.header.run_id != second.ledger.header.run_id
    assert not np.array_equal(first.bigram.unigram.probs, second.bigram.unigram.probs)
    last = PrivateBaselines.read(stored.path)
    assert np.array_equal(last.bigram.unigram.probs, second.bigram.unigram.probs)
    joint = people_of(stored).joint(second.ledger)
    assert joint.counted == 3
    assert joint.epsilon > second.guarantee.value


def test_a_budget_is_kept_before_any_work(stored, monkeypatch):
    ledger = people_of(stored)
    ledger.declare(PeoplesBudget(ledger.account().runs[0].epsilon + 50, 1e-3))

    def total(self, users):
        raise AssertionError("the users' text was counted")

    monkeypatch.setattr(NoisyCounts, "total", total)
    with pytest.raises(BudgetExceeded):
        release_baselines(stored, 500.0)
    assert charges(stored) == []


def test_the_same_noise_never_hides_another_sum(stored):
    key, header = RunKey.from_seed(1), stored.run.ledger.header
    one = NoisyCounts(1.0, 100, 20, 0)
    users = [np.array([0, 3, 4]), np.array([0, 4, 4])]
    proofs = {
        subject._proof(key, header, one, one.total(users)),
        subject._proof(key, header, one, one.total(users[:1])),
        subject._proof(key, header, NoisyCounts(2.0, 100, 20, 0), one.total(users)),
    }
    assert len(proofs) == 3


def test_a_seeded_key_makes_it_a_simulation(stored):
    released = release_baselines(stored, 2.0, key=RunKey.from_seed(3))
    assert released.guarantee.claim.startswith("Simulation, not for release")
    assert charges(stored) == [[]]  # remembered by its header alone


def test_figures_are_those_of_the_run_s_own_test_texts(stored):
    released = release_baselines(stored, 1e4)
    [row] = [row for row in stored.run.metrics() if row["round"] == 1]
    for figures in released.figures.values():
        assert figures["targets"] == row["targets"]
        assert figures["unknown_rate"] == row["unknown_rate"]


def test_with_hardly_any_noise_the_unigram_is_that_of_the_people(stored):
    """Each of them with the same say, so that shares differ a little from plain counts."""
    probs = release_baselines(stored, 1e5).bigram.unigram.probs
    cache_words = np.zeros(stored.tokenizer.vocab_size)
    train_users = stored.corpus(None).train
    for user in range(len(train_users)):
        for text in train_users.texts(user):
            np.add.at(cache_words, stored.tokenizer.encode(text)[1:], 1)
    assert np.abs(probs - cache_words / cache_words.sum()).max() < 0.02
    assert probs.sum() == pytest.approx(1)


def test_damage_is_refused(stored):
    release_baselines(stored, 2.0)
    file = stored.path / "baselines" / "1" / "bigram.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(LedgerError, match="is not the file that its ledger is about"):
        PrivateBaselines.read(stored.path)


def test_users_who_were_mixed_are_refused(tmp_path):
    folder = make_folder(tmp_path / "own")
    train(experiment(folder, seed=None, rounds=1, corpus={"view": "iid"}), folder / "run")
    with pytest.raises(ValueError, match="would protect nobody"):
        release_baselines(StoredModel.open(folder / "run"), 2.0)


def test_a_tokenizer_of_the_people_s_own_text_is_refused(tmp_path):
    folder = make_folder(tmp_path / "own")
    learn.oracle(learn.Users.of(str(folder / "corpus")), "word", 20).save(folder / "oracle")
    changed = {"source": str(folder / "oracle"), "accept_oracle": True}
    train(experiment(folder, seed=None, rounds=1, tokenizer=changed), folder / "run")
    with pytest.raises(ValueError, match="need a public tokenizer"):
        release_baselines(StoredModel.open(folder / "run"), 2.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_an_epsilon_that_is_none_is_refused(stored, epsilon):
    with pytest.raises(ValueError, match="the epsilon of private baselines"):
        release_baselines(stored, epsilon)
    assert charges(stored) == []


def test_nothing_private_is_in_the_folder(stored):
    release_baselines(stored, 2.0)
    names = {path.name for path in (stored.path / "baselines" / "1").iterdir()}
    assert names == {"ledger.jsonl", "bigram.safetensors", "figures.json"}
    figures = json.loads((stored.path / "baselines" / "1" / "figures.json").read_text())
    assert set(figures) == {"unigram", "bigram"}
