"""A plan from a corpus, an epsilon and a time, with a start that is small enough for tests."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tacit.cli.proposal import _rows
from tacit.config.experiment import Experiment
from tacit.corpus.builtin import SyntheticCorpus, load_corpus
from tacit.models import registry, weights
from tacit.planner import proposal
from tacit.planner.proposal import Wish, propose
from tacit.planner.speed import TrainingSpeed
from tacit.privacy import durable
from tacit.tokenizers import build, provenance

CORPUS = "synthetic:users=400,words=60"


def wish(**given):
    """With noise that is soon solved for, where which kind is best is not what is asked."""
    return Wish(CORPUS, **{"noise": "independent"} | given)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder as `tacit model pretrain` writes it."""
    folder = tmp_path_factory.mktemp("start")
    users = SyntheticCorpus().test
    texts = (text for user in range(len(users)) for text in users.texts(user))
    tokenizer = build.learn("word", texts, 200, provenance=provenance.public("words"))
    tokenizer.save(folder / "tokenizer.json")
    model = registry.build("lstm", tokenizer.vocab_size, embedding_size=4, cells=6)
    durable.write_whole(folder / "model.safetensors", weights.to_bytes(model))
    return str(folder)


@pytest.fixture(autouse=True)
def _fixed_speed(monkeypatch):
    def measured(experiment, model, *, workers, seconds):
        return TrainingSpeed(50.0 * workers, 0.1, 20_000.0)

    def users_per_second(experiment, model, *, workers, seconds):
        return 10_000.0 * workers / (100 + experiment.corpus.max_tokens_per_user)

    monkeypatch.setattr(proposal, "measure_speed", measured)
    monkeypatch.setattr(proposal, "users_per_second", users_per_second)


def test_a_plan_is_an_experiment_that_can_be_written_and_read(start):
    made = propose(Wish(CORPUS, epsilon=4.0, minutes=5.0, start=start))
    experiment = made.experiment
    assert Experiment.from_toml(experiment.to_toml(), "the plan") == experiment
    assert experiment.privacy.target_epsilon == 4.0
    assert experiment.rounds == made.choice.rounds
    assert experiment.plan.cohort == made.choice.cohort
    assert experiment.model.start == start
    assert experiment.tokenizer.source == start
    assert experiment.model.options["cells"] == 6


def test_it_takes_the_time_that_was_asked_for_and_no_more(start):
    made = propose(wish(epsilon=8.0, minutes=1.0, start=start))
    assert made.seconds <= 60
    one, two = (
        propose(wish(minutes=1.0, workers=workers, start=start)).facts.readings[0]
        for workers in (1, 2)
    )
    assert two.users_per_second == 2 * one.users_per_second


def test_weights_are_declared_as_if_everybody_wrote_as_much_as_test_people_do(start):
    made = propose(wish(start=start))
    plan, facts = made.experiment.plan, made.facts
    assert plan.user_weight_cap == proposal.FULL_WEIGHT
    assert 0.3 < facts.weight <= 1  # about 60 words each
    assert plan.total_weight == pytest.approx(facts.weight * facts.population, rel=1e-4)
    declared = propose(wish(population=10_000, start=start))
    assert declared.experiment.plan.total_weight == pytest.approx(10_000 * facts.weight, rel=1e-4)


def test_people_with_little_text_are_not_asked_for_more(start):
    """Nobody has more than 200 tokens, so that a longer reading would be the same."""
    assert [each.tokens for each in propose(wish(start=start)).facts.readings] == [200]


def test_a_declared_population_is_the_one_that_is_accounted_for(start):
    counted = propose(wish(start=start))
    declared = propose(wish(population=100_000, start=start))
    assert counted.facts.population == len(load_corpus(CORPUS).train)
    assert declared.facts.population == 100_000
    assert declared.experiment.plan.population == 100_000
    assert declared.facts.delta == pytest.approx(100_000**-1.1)
    assert declared.choice.cohort <= counted.facts.users  # more are not there to take part


def test_numbers_that_contradict_each_other_are_refused_before_anything_is_measured(
    start, monkeypatch
):
    monkeypatch.setattr(proposal, "measure_speed", None)
    with pytest.raises(ValueError, match=r"privacy\.delta must be below 1/population"):
        propose(wish(delta=0.5, start=start))
    with pytest.raises(ValueError, match=r"plan\.population of 100 is less than the"):
        propose(wish(population=100, start=start))


class Guarded:
    """Users who are there, and whose text is not to be read."""

    def __init__(self, users):
        self._count = len(users)

    def __len__(self):
        return self._count

    def texts(self, user):
        raise AssertionError("a training user's text was read")


def test_no_decision_rests_on_the_text_of_people_who_are_protected(start, monkeypatch):
    corpus = load_corpus(CORPUS)
    guarded = SimpleNamespace(
        train=Guarded(corpus.train), test=corpus.test, about_people=corpus.about_people
    )
    monkeypatch.setattr(proposal, "load_corpus", lambda name: guarded)
    assert propose(wish(start=start)).choice.rounds >= 8
    with pytest.raises(AssertionError, match="was read"):
        guarded.train.texts(0)


def test_a_time_that_is_too_short_is_refused_before_work(start):
    with pytest.raises(ValueError, match=r"--minutes 0\.01 is too short"):
        propose(wish(minutes=0.01, start=start))


def test_every_reason_is_about_a_value_that_the_experiment_has(start):
    made = propose(wish(start=start))
    for key in made.reasons:
        tables = made.experiment.model_dump()
        for part in key.split("."):
            tables = tables[part]


def test_more_users_mean_less_noise(start):
    others = propose(wish(start=start)).others()
    assert set(others) == {
        "people x 4",
        "time x 4",
        "epsilon x 2",
        "epsilon / 2",
    }


def test_a_plan_that_hardly_beats_its_start_says_so(start):
    made = propose(wish(epsilon=1000.0, start=start))
    noisy = replace(made, choice=replace(made.choice, noise=200.0))
    assert "worth it?" not in dict(_rows(made))
    assert "worth it?" in dict(_rows(noisy))
