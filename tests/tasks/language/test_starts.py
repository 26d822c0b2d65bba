"""A start brings weights, sizes and tokenizer; what contradicts it or is not public is refused."""

import json
import os

import numpy as np
import pytest

from tacit.cli.requests import requests
from tacit.config.experiment import Experiment
from tacit.corpus.files import sha256_of
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest
from tacit.models import registry, weights
from tacit.models.base import to_vector
from tacit.tasks.language.starts import fill_in_start, with_start
from tacit.tokenizers import build, provenance
from tacit.train import train
from tests.cli.training import refused
from tests.runs.small import WORDS, experiment, make_folder, texts_of

SIZES = {"embedding_size": 5, "cells": 7, "unit_norm": False, "output_bias": True}


def write_start(folder, words=WORDS, name="cifg", public_texts=(), **sizes):
    """A folder as `tacit model pretrain` writes it."""
    folder.mkdir()
    tokenizer = build.word_level(words, provenance=provenance.public("a list in the tests"))
    model = registry.build(name, tokenizer.vocab_size, seed=3, **(SIZES | sizes))
    data = weights.to_bytes(model, public_texts=public_texts)
    (folder / "model.safetensors").write_bytes(data)
    tokenizer.save(folder / "tokenizer.json")
    return model


@pytest.fixture
def own(tmp_path):
    return make_folder(tmp_path / "own")


def unsaid(own, **changes) -> Experiment:
    """The small experiment without a word about its model and tokenizer."""
    tables = experiment(own).model_dump()
    del tables["tokenizer"]
    return Experiment.from_data(tables | {"model": changes}, "the test")


def test_a_start_fills_in_the_sizes_and_the_tokenizer_of_a_run(own, tmp_path):
    model = write_start(tmp_path / "start")
    start = str(tmp_path / "start")
    run = train(unsaid(own, start=start).changed(rounds=1), tmp_path / "run")
    assert np.array_equal(to_vector(run.model(0)), to_vector(model))
    kept = run.experiment
    assert (kept.model.name, kept.model.start) == ("cifg", start)
    assert kept.model.options == SIZES | {"layers": 1, "context_size": 0}
    assert (kept.tokenizer.source, kept.tokenizer.kind) == (start, "word")
    assert kept.tokenizer.size == run.tokenizer.vocab_size
    inputs = {each.what: each for each in run.ledger.header.public_inputs}
    file = tmp_path / "start" / "model.safetensors"
    assert inputs["starting weights"].sha256 == sha256_of(file)
    assert inputs["dictionary"].name == inputs["starting weights"].name == "start"


def test_a_start_that_reads_a_vector_about_the_user_is_refused(own, tmp_path):
    write_start(tmp_path / "start", context_size=2)
    with pytest.raises(ValueError, match="context_size must be 0 in a training, got 2"):
        train(unsaid(own, start=str(tmp_path / "start")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_filled_in_once_stays(own, tmp_path):
    write_start(tmp_path / "start")
    filled = fill_in_start(unsaid(own, start=str(tmp_path / "start")))
    assert fill_in_start(filled) == filled
    plain = experiment(own)
    assert fill_in_start(plain) == plain


def test_the_base_model_is_named_and_not_a_path(own):
    filled = fill_in_start(unsaid(own, start="base"))
    assert filled.model.start == filled.tokenizer.source == "base:en"
    assert filled.model.name == "lstm"
    assert filled.tokenizer.size == 10_000


def test_with_start_replaces_another_model_and_tokenizer(own, tmp_path):
    write_start(tmp_path / "start")
    before = experiment(own, model={"pretrain": {"source": "chatterbot"}})
    after = with_start(before, str(tmp_path / "start"))
    assert after == fill_in_start(unsaid(own, start=str(tmp_path / "start")))
    assert after.model.pretrain is None


def test_a_run_that_was_started_so_goes_on_with_the_same_words(own, tmp_path):
    write_start(tmp_path / "start")
    recipe = tmp_path / "own.toml"
    recipe.write_text(experiment(own, rounds=1).to_toml())
    [asked] = requests(str(recipe), tmp_path / "run", [], start=str(tmp_path / "start"))
    train(asked.experiment, asked.run)
    [again] = requests(
        str(recipe), tmp_path / "run", [], resume=True, start=str(tmp_path / "start")
    )
    assert again.experiment == asked.experiment


def test_another_tokenizer_of_the_same_size_is_refused(own, tmp_path):
    """Only the sizes could be compared otherwise, and the weights would mean nothing."""
    write_start(tmp_path / "start", words=[f"{word}s" for word in WORDS])
    asked = experiment(own, model={"start": str(tmp_path / "start"), "name": "cifg"})
    asked = asked.changed(model={"options": SIZES})
    with pytest.raises(ValueError, match=r"was trained with the tokenizer.json in it"):
        train(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_sizes_than_the_start_has_are_refused(own, tmp_path):
    write_start(tmp_path / "start")
    asked = unsaid(own, start=str(tmp_path / "start"), options={"cells": 9})
    with pytest.raises(ValueError, match=r"holds CIFGConfig.*asks for LSTMConfig"):
        train(asked, tmp_path / "run")


def test_a_start_that_was_trained_on_the_ingested_file_is_refused(tmp_path):
    rows = [(f"user {n}", text) for n in range(60) for text in texts_of(n)]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in rows))
    own = make_folder(tmp_path / "own")
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest(file, tmp_path / "corpus", options=options)
    digest = sha256_of(file)
    write_start(tmp_path / "start", public_texts=[f"chats.jsonl (sha256 {digest})"])
    write_start(tmp_path / "other", public_texts=["books.jsonl (sha256 " + "0" * 64 + ")"])
    corpus = {"source": str(tmp_path / "corpus")}
    asked = unsaid(own, start=str(tmp_path / "start")).changed(corpus=corpus, rounds=1)
    with pytest.raises(ValueError, match=r"model.start.*learnt from a file that was ingested"):
        train(asked, tmp_path / "run")
    train(asked.changed(model={"start": str(tmp_path / "other")}), tmp_path / "run")


def test_mistakes_about_a_start_are_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    run = ["--run", tmp_path / "run"]
    small = ["mcmahan2018-small", *run]
    assert "--start must be a folder that" in refused(*small, "--start", tmp_path / "nowhere")
    assert "has no tokenizer.json" in refused(*small, "--start", tmp_path / "empty")
    assert "there is no base model 'base:xx'" in refused(*small, "--start", "base:xx")
    assert "has its model already" in refused("--resume", *run, "--start", "base")
    assert "--start is for" in refused("dupuy2021-clc", *run, "--start", "base")
    assert not (tmp_path / "run").exists()


def test_without_a_start_the_working_directory_is_nobodys_business(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a pipe")
    monkeypatch.chdir(tmp_path)
    assert fill_in_start(Experiment()) == Experiment()
    with pytest.raises(ValueError, match="is a pipe"):
        fill_in_start(Experiment().changed(model={"start": "a pipe"}))
