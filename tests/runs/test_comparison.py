"""What a model is held against in public: nothing in it may come from training users' bare text."""

import json

import pytest

from tacit.corpus.store import Corpus
from tacit.evaluation.accuracy import ACCURACIES
from tacit.runs.comparison import published_baselines, released_claim
from tacit.runs.directory import RunDirectory
from tacit.runs.export import export_run
from tacit.runs.figures import better_baselines, describe_loss
from tacit.runs.private_baselines import release_baselines
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.train import train
from tests.runs.small import experiment, make_folder


@pytest.fixture
def run(tmp_path):
    folder = make_folder(tmp_path / "own")
    train(experiment(folder, seed=None, rounds=2), folder / "run")
    return LanguageRun.open(folder / "run")


def test_a_training_ends_with_figures_of_what_it_has_to_beat(run):
    result = run.directory.result()["baselines"]
    assert list(result) == ["start", "unigram", "bigram"]
    first, last = run.metrics()[0], run.metrics()[-1]
    for name in ACCURACIES:
        assert result["start"][name] == first[name]
        assert all(row[name] is not None for row in result.values())
    assert {row["targets"] for row in result.values()} == {last["targets"]}
    assert published_baselines(run) == result
    assert released_claim(run) is None


def test_no_training_user_is_read_for_them(run, monkeypatch):
    def read(self):
        raise AssertionError("the training users' text was opened")

    monkeypatch.setattr(Corpus, "train", property(read))
    assert list(run.measure_baselines()) == ["start", "unigram", "bigram"]


def test_a_corpus_that_is_gone_stops_no_run_from_ending(run):
    (run.path.parent / "corpus").rename(run.path.parent / "elsewhere")
    assert list(run.measure_baselines()) == ["start"]


def test_private_ones_are_published_with_their_claim(run):
    released = release_baselines(StoredModel.open(run.path), 3.0)
    baselines = published_baselines(run)
    assert baselines["private_bigram"] == released.figures["bigram"]
    assert "User-level (3.000, 0.001)" in released_claim(run)


def change_result(run, **baselines):
    directory = RunDirectory(run.path)
    result = directory.result()
    result["baselines"] |= baselines
    directory.finish(result)


def test_the_card_shows_them_and_says_what_the_model_loses_to(run, tmp_path):
    change_result(run, bigram={"accuracy_top1": 0.99, "perplexity": 2.0})
    export_run(run.path, tmp_path / "bundle")
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "| the test users' bigram | 99.00% | - | 2.0 |" in card  # as written in an older run
    assert "**This model is right less often" in card
    assert "the test users' bigram (99.00%)" in card
    assert "fitted on the training users" not in card


def test_a_model_that_beats_them_is_not_warned_of(run, tmp_path):
    worst = {"accuracy_top1": 0.0, "perplexity": 1e9}
    change_result(run, start=worst, unigram=worst, bigram=worst)
    export_run(run.path, tmp_path / "bundle")
    assert "right less often" not in (tmp_path / "bundle" / "README.md").read_text()


def test_what_is_better_and_how_it_is_said():
    model = {"accuracy_top1": 0.2}
    baselines = {"unigram": {"accuracy_top1": 0.25}, "bigram": {"accuracy_top1": 0.2}}
    assert better_baselines(model, baselines) == {"unigram": 0.25}
    assert better_baselines({}, baselines) == {}
    assert better_baselines(model, {"start": {"accuracy_top1": None}}) == {}
    assert describe_loss("The model", model, {"unigram": 0.25, "start": 0.3}) == (
        "The model is right less often (20.00%) than these baselines: the test users' unigram"
        " (25.00%) and the starting model (30.00%). It should beat them before it is used."
    )


def test_nothing_of_it_is_private(run):
    assert "baselines" in json.loads(run.directory.result_file.read_text())
    assert not list(run.directory.private.glob("*baselines*"))
