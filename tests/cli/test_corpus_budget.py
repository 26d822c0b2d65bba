"""`tacit corpus budget`: one hard stop over all runs on the same people."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.runs.run import Run
from tacit.train import train
from tacit.train import train as train_nlu
from tests.runs.small import experiment, make_corpus, make_folder
from tests.tasks.nlu.small import of_method
from tests.tasks.nlu.writing import json_lines, write


@pytest.fixture
def own(tmp_path):
    """A corpus whose people nobody else trains on."""
    return make_folder(tmp_path / "own")


@pytest.fixture
def tacit(command):
    return command("corpus")


def test_a_budget_is_declared_shown_and_counted_down(tacit, own):
    corpus = own / "corpus"
    assert "No budget is declared" in tacit.says("budget", corpus)
    found = tacit.json("budget", corpus)
    assert (found["budget"], found["spent"], found["runs"]) == (None, None, [])
    declared = {"epsilon": 8.0, "delta": 1e-3, "unit": "user", "adjacency": "add/remove-one"}
    found = tacit.json("budget", corpus, "--epsilon", "8", "--delta", "1e-3")
    assert found["budget"] == declared
    assert (found["spent"], found["left"]) == (0.0, 8.0)
    run = train(experiment(own, seed=None, rounds=2), own / "one")
    found = tacit.json("budget", corpus)
    assert found["people"] == load_corpus(corpus).identity
    assert 0 < found["spent"] < 8
    assert found["left"] == 8 - found["spent"]
    (row,) = found["runs"]
    assert row == {
        "run_id": run.ledger.header.run_id,
        "unit": "user",
        "adjacency": "add/remove-one",
        "releases": 2,
        "epsilon": found["spent"],
        "delta": 1e-3,
        "not_counted": None,
    }
    said = tacit.says("budget", corpus)
    assert "Budget: epsilon 8 at delta 0.001, user-level under add/remove-one adjacency" in said
    assert run.ledger.header.run_id in said


def test_raising_is_on_record_and_lowering_below_what_is_spent_is_refused(tacit, own):
    corpus = own / "corpus"
    tacit.says("budget", corpus, "--epsilon", "8", "--delta", "1e-3")
    train(experiment(own, seed=None, rounds=2), own / "one")
    said = tacit.refused("budget", corpus, "--epsilon", "0.1", "--delta", "1e-3")
    assert "epsilon must be at least the" in said
    assert "have cost already, got 0.1" in said
    found = tacit.json("budget", corpus, "--epsilon", "9", "--delta", "1e-3")
    assert [one["epsilon"] for one in found["declared"]] == [8.0, 9.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "8"], "--delta is missing"),
        (["--delta", "1e-6"], "--epsilon is missing"),
        (["--epsilon", "0", "--delta", "1e-6"], "epsilon must be"),
        (["--epsilon", "8", "--delta", "1"], "delta must be"),
        (
            ["--epsilon", "8", "--delta", "1e-6", "--unit", "pet"],
            "unit must be one of user, record",
        ),
        (["--epsilon", "8", "--delta", "1e-6", "--adjacency", "swap"], "adjacency must be one of"),
    ],
)
def test_mistakes_are_one_sentence_and_declare_nothing(tacit, own, options, message):
    assert message in tacit.refused("budget", own / "corpus", *options)
    assert tacit.json("budget", own / "corpus")["budget"] is None


def test_nobody_needs_a_budget_for_made_up_text(tacit):
    assert "made-up text" in tacit.refused("budget", "synthetic:users=60,words=40")


def test_a_budget_ends_a_run_between_two_rounds_for_all_runs_together(tacit, own):
    corpus = own / "corpus"
    alone = train(experiment(own, seed=None, rounds=3), own / "one").guarantee().epsilon
    limit = 1.3 * min(alone.values())
    tacit.says("budget", corpus, "--epsilon", limit, "--delta", "1e-3")
    stopped = train(experiment(own, seed=None), own / "two")
    assert 0 < stopped.round < 6
    result = json.loads((own / "two" / "result.json").read_text())
    assert "the budget of these people" in result["ending"]
    assert (
        "ends this run: the next release would bring all runs on them to epsilon"
        in (result["ending"])
    )
    assert not (own / "two" / "private" / "key").exists()
    found = tacit.json("budget", corpus)
    assert found["spent"] <= limit
    assert sum(row["releases"] for row in found["runs"]) == 3 + stopped.round
    # Nothing fits any more: a third run is refused before it leaves anything behind.
    with pytest.raises(ValueError, match="the budget of these people"):
        train(experiment(own, seed=None), own / "three")
    assert not (own / "three").exists()
    # With a higher budget the one that was stopped goes on as a branch.
    tacit.says("budget", corpus, "--epsilon", 3 * limit, "--delta", "1e-3")
    more = train(None, own / "branch", branch_from=(own / "two", stopped.round))
    assert Run.open(more.path).round == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "allows no run with a seed"),
        ({"corpus": {"view": "iid"}}, "allows no run on texts mixed among users"),
        ({"plan": {"noise_multiplier": 0.0}}, "allows no run without noise"),
        ({"plan": {"sampling": "fixed"}}, "cannot count a user-level run under replace-one"),
        ({"plan": {"noise_multiplier": 0.01}}, "ends this run: the next release would bring"),
    ],
)
def test_what_the_budget_cannot_cover_is_refused_before_any_work(tacit, own, changes, message):
    tacit.says("budget", own / "corpus", "--epsilon", "8", "--delta", "1e-3")
    with pytest.raises(ValueError, match=message):
        train(experiment(own, **{"seed": None, **changes}), own / "run")
    assert not (own / "run").exists()
    assert tacit.json("budget", own / "corpus")["runs"] == []


def test_the_budget_follows_the_people_to_another_ingest_and_a_copy(tacit, own):
    tacit.says("budget", own / "corpus", "--epsilon", "8", "--delta", "1e-3")
    train(experiment(own, seed=None, rounds=2), own / "one")
    shutil.copytree(own / "corpus", own / "copy")
    make_corpus(own / "again")
    spent = tacit.json("budget", own / "corpus")["spent"]
    for name in ("copy", "again"):
        found = tacit.json("budget", own / name)
        assert found["spent"] == spent
        assert found["budget"]["epsilon"] == 8.0


def test_a_corpus_carries_its_budget_to_another_installation(tacit, own, tmp_path, monkeypatch):
    tacit.says("budget", own / "corpus", "--epsilon", "8", "--delta", "1e-3")
    train(experiment(own, seed=None, rounds=2), own / "one")
    before = tacit.json("budget", own / "corpus")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))
    assert tacit.json("budget", own / "corpus") == before
    higher = tacit.json("budget", own / "corpus", "--epsilon", "9", "--delta", "1e-3")
    assert higher["budget"]["epsilon"] == 9.0
    train(experiment(own, seed=None, rounds=2), own / "two")
    after = tacit.json("budget", own / "corpus")
    assert after["budget"]["epsilon"] == 9.0
    assert after["spent"] > before["spent"]


def utterances(path):
    """A set of utterances of the same people as the small corpus has."""
    rows = [
        (f"{verb} the {thing} number {n}", "O O B-thing O B-number", verb)
        for n in range(180)
        for verb, thing in [("play" if n % 2 else "stop", "song" if n % 3 else "film")]
    ]
    return write(path, json_lines(rows, user=[f"user {n % 60}" for n in range(180)]))


def of_utterances(source, **training):
    return of_method(
        "dp-sgd",
        data={"source": str(source), "user_column": "user"},
        training={"epochs": 3, **training},
    ).changed(seed=None)


@pytest.mark.slow
def test_the_budget_is_one_for_language_models_and_for_intents(tacit, own):
    source = utterances(own / "said.jsonl")
    tacit.says("budget", own / "corpus", "--epsilon", "30", "--delta", "1e-3", "--unit", "record")
    found = tacit.json("budget", source)  # recognised by their ids
    assert found["people"] == load_corpus(own / "corpus").identity
    assert found["budget"]["unit"] == "record"
    # Of users there is no budget, and what cannot be counted is refused.
    with pytest.raises(ValueError, match="cannot count a user-level run"):
        train(experiment(own, seed=None), own / "run")
    run = train_nlu(of_utterances(source), own / "said")
    found = tacit.json("budget", own / "corpus")
    (row,) = found["runs"]
    assert row["run_id"] == run.ledger.header.run_id
    assert found["spent"] == row["epsilon"] > 0
    # A budget that covers no whole epoch refuses a training of intents before any work.
    limit = 1.01 * found["spent"]
    tacit.says("budget", source, "--epsilon", limit, "--delta", "1e-3", "--unit", "record")
    with pytest.raises(ValueError, match="ends this run: the next release would bring all runs"):
        train_nlu(of_utterances(source), own / "again")
    assert not (own / "again").exists()
    # One that covers some of its epochs ends it between two.
    limit = 1.3 * found["spent"]
    tacit.says("budget", source, "--epsilon", limit, "--delta", "1e-3", "--unit", "record")
    stopped = train_nlu(of_utterances(source), own / "again")
    assert 0 < stopped.leg < 3
    result = json.loads((own / "again" / "result.json").read_text())
    assert "the budget of these people" in result["ending"]
    assert tacit.json("budget", source)["spent"] <= limit
    with pytest.raises(ValueError, match="allows no run with a seed"):
        train_nlu(of_utterances(source).changed(seed=1), own / "seeded")
    assert not (own / "seeded").exists()
