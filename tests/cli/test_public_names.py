"""A public text that comes with tacit goes by the same name in every command that reads one."""

from __future__ import annotations

import pytest

from tacit.config import recipes
from tests.runs.small import experiment, make_folder

TINY = "--model-option embedding_size=8 --model-option cells=16 --epochs 0.2 --threads 1".split()


@pytest.fixture
def recipe(small, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(experiment(small, corpus={"max_tokens_per_user": 30}).to_toml())
    return path


@pytest.mark.parametrize(
    "name", ["chatterbot", pytest.param("sotu+chatterbot", marks=pytest.mark.slow)]
)
def test_a_public_text_is_known_by_its_name(name, command, recipe, tmp_path):
    learnt = command("tokenizer train").json(tmp_path / "words", "--public", name, "--size", 300)
    assert learnt["provenance"] == f"public: {name}"
    suggest = command("model suggest-clip")
    assert suggest.json(recipe, "--public", name, "--users", 6, "--rounds", 0)["clip_norm"] > 0


@pytest.mark.slow
def test_pre_training_and_training_know_it_too(command, small, recipe, tmp_path):
    start = tmp_path / "start"
    words = ("--tokenizer", "public:chatterbot", "--vocab", 100)
    made = command("model pretrain").json("chatterbot", "--out", start, *TINY, *words)
    assert made["provenance"] == "public: chatterbot"
    settings = ("--set", "tokenizer.source=chatterbot", "--set", "rounds=1")
    command("train").says(recipe, "--run", tmp_path / "run", *settings)
    assert recipes.load(str(tmp_path / "run" / "experiment.toml")).only()


def test_heavy_hitters_look_for_its_words(command, tmp_path):
    corpus = make_folder(tmp_path / "users") / "corpus"
    settings = ("--epsilon", 100, "--words", 2, "--threshold", 0, "--size", 265)
    row = command("papers heavy-hitters").json(
        tmp_path / "out", corpus, *settings, "--candidates", "chatterbot"
    )
    assert row["provenance"].startswith("private: heavy hitters")


def test_a_name_that_is_none_is_refused_by_each(command, recipe, tmp_path):
    for name, arguments in {
        "tokenizer train": [tmp_path / "words", "--public", "chaterbot"],
        "model suggest-clip": [recipe, "--public", "chaterbot"],
        "model pretrain": ["chaterbot", "--out", tmp_path / "start"],
    }.items():
        assert "chaterbot" in command(name).refused(*arguments)
