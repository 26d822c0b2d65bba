"""The law of expected accuracy, and the rehearsal that it starts from."""

import dataclasses

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.evaluation.accuracy import Metrics
from tacit.models import weights
from tacit.models.base import to_vector
from tacit.planner import law
from tacit.planner import rehearsal as module
from tacit.planner.choice import Choice, Reading
from tacit.planner.noises import PlannedNoise
from tacit.planner.outlook import expect
from tacit.planner.proposal import Wish, _draft
from tacit.planner.rehearsal import Rehearsal, rehearse
from tacit.tokenizers.tokenizer import Tokenizer
from tests.planner.test_proposal import CORPUS, start  # noqa: F401  (a fixture)

READING = Reading(200, 1.0, 100.0)
NOISE = PlannedNoise("independent", "poisson", None, 1.0, 1.0)
CHOICE = Choice(rounds=32, cohort=1000, noises=NOISE, noise=0.5, reading=READING, gain=0.5)


def metrics(accuracy, loss, targets=1000):
    return Metrics(targets=targets, top1=round(accuracy * targets), log_prob=-loss * targets)


START = metrics(0.15, 5.0)
LEARNT = Rehearsal(START, START, metrics(0.18, 4.5))


def test_more_rounds_and_less_noise_are_better():
    longer = dataclasses.replace(CHOICE, rounds=64)
    noisier = dataclasses.replace(CHOICE, noise=10.0)
    assert expect(LEARNT, longer).accuracy > expect(LEARNT, CHOICE).accuracy
    assert expect(LEARNT, noisier).accuracy < expect(LEARNT, CHOICE).accuracy
    reading_more = dataclasses.replace(CHOICE, reading=Reading(800, 4.0, 30.0))
    assert expect(LEARNT, reading_more).accuracy > expect(LEARNT, CHOICE).accuracy


def test_the_law_has_the_limits_that_its_constants_are_named_for():
    assert law.fall(0.3, 10**9, 0.0) == pytest.approx(0.3 * law.MOST)
    assert law.fall(0.3, round(law.HALF), 0.0) == pytest.approx(0.3 * law.MOST / 2)
    for gain in (0.0, 0.3, 2.0):  # noise costs the same, however much there is to learn
        cost = law.fall(gain, 100, 0.0) - law.fall(gain, 100, law.SCATTER / 10)
        assert cost == pytest.approx(1.0)
    assert law.fall(0.3, 20, 0.0, reading=4) == pytest.approx(
        law.fall(0.3, 20, 0.0) * 4**law.READING
    )


def test_a_slower_server_goes_less_far_and_is_carried_astray_less():
    assert law.fall(0.3, 100, 0.0, 0.5) == law.fall(0.3, 50, 0.0)
    assert law.fall(0.3, 100, 20.0, 0.3) > law.fall(0.3, 100, 20.0, 1.0)


def test_where_nothing_is_learnt_nothing_is_promised():
    nothing = dataclasses.replace(CHOICE, gain=0.0, noise=0.01)
    assert expect(LEARNT, nothing).accuracy == pytest.approx(0.15, abs=1e-4)


def test_where_noise_outweighs_what_is_learnt_the_start_is_better():
    noisy = dataclasses.replace(CHOICE, gain=0.01, noise=200.0)
    assert expect(LEARNT, noisy).accuracy < 0.15
    hopeless = dataclasses.replace(CHOICE, noise=1e6)
    assert expect(LEARNT, hopeless).accuracy == 0.0


@pytest.fixture
def small(start):  # noqa: F811
    experiment = _draft(Wish(CORPUS, start=start), 100)
    experiment = experiment.changed(update={"learning_rate": 0.2}, server={"learning_rate": 0.5})
    model = weights.load(f"{start}/model.safetensors")
    return experiment, model, Tokenizer.load(start)


def test_a_rehearsal_learns_and_leaves_the_model_as_it_was(small):
    experiment, model, tokenizer = small
    before = to_vector(model)
    result = rehearse(experiment, model, tokenizer, load_corpus(CORPUS).test)
    assert (to_vector(model) == before).all()
    assert result.gain > 0.05
    assert result.before.targets == result.after.targets > 100


def test_those_who_train_are_not_measured_on(small, monkeypatch):
    experiment, model, tokenizer = small
    test, trained, measured = load_corpus(CORPUS).test, [], []
    learners, held_out = module._Learners.of, module.held_out_texts

    def watched_learners(people, users, *rest):
        trained.extend(users)
        return learners(people, users, *rest)

    def watched_texts(users, *rest):
        if users is not test:  # the start is measured on everybody
            measured.extend(users._indices.tolist())
        return held_out(users, *rest)

    monkeypatch.setattr(module._Learners, "of", watched_learners)
    monkeypatch.setattr(module, "held_out_texts", watched_texts)
    rehearse(experiment, model, tokenizer, test)
    assert trained
    assert measured
    assert not set(trained) & set(measured)
