"""`tacit evaluate`: figures of test users, from a run or from a folder with a model."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.evaluation.accuracy import ACCURACIES, evaluate
from tacit.evaluation.baselines import Bigram
from tacit.evaluation.held_out import held_out_texts
from tacit.runs.run import Run
from tacit.train import train
from tests.runs.small import experiment, make_folder, texts_of

FIGURES = [*ACCURACIES, "perplexity", "tokens"]


@pytest.fixture
def tacit(command):
    return command("evaluate")


def last_row(run, round):
    [row] = [row for row in Run.open(run).metrics() if row["round"] == round]
    return row


@pytest.mark.parametrize("round", [None, 0, 2, 6])
def test_figures_are_those_that_training_measured(tacit, private_run, round):
    found = tacit.json(private_run, *([] if round is None else ["--round", round]))
    expected = last_row(private_run, 6 if round is None else round)
    assert set(FIGURES) | {"unknown_rate", "run", "round"} <= set(found)
    assert found["round"] == expected["round"]
    assert found["tokens"] == expected["targets"]
    for name in FIGURES[:-1]:
        assert found[name] == pytest.approx(expected[name], rel=1e-9)


def test_only_test_users_are_read(tacit, private_run, monkeypatch):
    from tacit.corpus.store import Corpus

    def read(self):
        raise AssertionError("the training users' text was opened")

    monkeypatch.setattr(Corpus, "train", property(read))
    assert tacit.json(private_run)["tokens"] > 0


def test_fewer_tokens_can_be_asked_for(tacit, private_run):
    assert tacit.json(private_run, "--tokens", 50)["tokens"] == 50


def test_baselines_are_fitted_on_the_training_users_and_labelled(tacit, private_run):
    found = tacit.json(private_run, "--baselines")["baselines"]
    assert "without privacy" in found["fitted"]
    run = Run.open(private_run)
    corpus, words = run.corpus(), run.tokenizer
    texts = [words.encode(t) for user in range(len(corpus.train)) for t in corpus.train.texts(user)]
    bigram = Bigram.fit(texts, words.vocab_size, bos=words.bos)
    sequences = held_out_texts(corpus.test, words, run.experiment.evaluation.max_tokens).sequences
    for name, predictor in (("bigram", bigram), ("unigram", bigram.unigram)):
        expected = evaluate(predictor, sequences, bos=words.bos, unk=words.unk)
        assert found[name]["perplexity"] == pytest.approx(expected.perplexity)
        assert found[name]["tokens"] == expected.targets
    printed = tacit.says(private_run, "--baselines")
    assert "unigram (not" in printed  # a narrow terminal goes on in the next line
    assert "without privacy, for comparison only" in printed


def test_private_baselines_are_released_once_and_shown_again_for_free(tacit, tmp_path):
    own = make_folder(tmp_path / "own")
    train(experiment(own, seed=None, rounds=1), own / "run")
    assert "private_baselines" not in tacit.json(own / "run", "--baselines")
    released = tacit.json(own / "run", "--private-baselines", 3)
    assert "baselines" not in released
    private = released["private_baselines"]
    assert private["epsilon"]["pld"] == pytest.approx(3, rel=0.01)
    assert "User-level (3.000, 0.001)-differential privacy" in private["claim"]
    assert "All 2 private ones together" in private["other_runs"]
    again = tacit.json(own / "run", "--baselines")
    assert again["private_baselines"] == private
    assert len(list((own / "run" / "baselines").iterdir())) == 1  # nothing was released for it
    assert "private_baselines" not in tacit.json(own / "run")
    printed = tacit.says(own / "run", "--baselines")
    assert "private bigram" in printed
    assert "a release of their own about the same people" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--private-baselines", 0], "the epsilon of private baselines must be"),
        (["--private-baselines", 2, "--corpus", "chitchat"], "leave out --corpus"),
    ],
)
def test_private_baselines_that_cannot_be_are_refused(tacit, private_run, options, message):
    assert message in tacit.refused(private_run, *options)
    assert not (private_run / "baselines").exists()


def test_a_model_that_loses_to_a_baseline_is_warned_of(tacit, private_run, monkeypatch):
    model = tacit.json(private_run)["accuracy_top1"]
    bigram = tacit.json(private_run, "--baselines")["baselines"]["bigram"]["accuracy_top1"]
    printed = tacit.says(private_run, "--baselines")
    assert ("is right less often" in printed) == (bigram > model)


def test_a_folder_with_a_model_needs_a_corpus(tacit, private_run, tmp_path):
    folder = tmp_path / "pretrained"
    folder.mkdir()
    shutil.copy(
        private_run / "checkpoints" / "model-000006.safetensors", folder / "model.safetensors"
    )
    shutil.copy(private_run / "tokenizer.json", folder)
    assert "add --corpus CORPUS" in tacit.refused(folder)
    found = tacit.json(folder, "--corpus", private_run.parent / "corpus", "--tokens", 200)
    assert found["round"] is None
    assert found["perplexity"] == pytest.approx(tacit.json(private_run)["perplexity"], rel=1e-9)


def test_people_who_do_not_exist_can_be_measured_on(tacit, synthetic_run):
    found = tacit.json(synthetic_run)
    assert found["unknown_rate"] > 0.5  # their words are not in this dictionary
    assert found["tokens"] > 0


def test_another_corpus_in_the_place_of_the_run_s_own_is_refused(tacit, private_run, tmp_path):
    own = make_folder(tmp_path / "own")
    train(experiment(own, seed=None, rounds=1), own / "run")
    shutil.move(own / "corpus", own / "before")
    people = [(f"somebody else {n}", ["the dog runs"] * 3) for n in range(60)]
    ingest_records(people, own / "corpus", count=60, options=UserOptions(test_fraction=0.3))
    assert "is another corpus than the one" in tacit.refused(own / "run")
    assert json.dumps(tacit.json(own / "run", "--corpus", own / "corpus"))


def test_another_split_of_the_same_people_is_another_corpus(tacit, tmp_path):
    """Those who are tested on now may be those who were trained on then."""
    own = make_folder(tmp_path / "own")
    train(experiment(own, seed=None, rounds=1), own / "run")
    shutil.rmtree(own / "corpus")
    records = [(f"user {n}", texts_of(n)) for n in range(60)]
    options = UserOptions(test_fraction=0.6, held_out_fraction=0.0)
    ingest_records(records, own / "corpus", count=60, options=options)
    assert "is another corpus than the one" in tacit.refused(own / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--round", "3"], "there is no checkpoint of round 3; the nearest is"),
        (["--tokens", "0"], "--tokens must be at least 1, got 0"),
        (["--corpus", "nowhere"], "there is no corpus 'nowhere'"),
        (["--tokens", "many"], "is not a whole number"),
    ],
)
def test_mistakes_are_one_sentence(tacit, private_run, arguments, message):
    assert message in tacit.refused(private_run, *arguments)


def test_a_place_without_a_model_is_refused(tacit, tmp_path):
    assert "there is no run and no model at" in tacit.refused(tmp_path / "nothing")
    assert "holds no model" in tacit.refused(tmp_path)
