"""The base models that come with tacit: their names, and that their folders are whole."""

import json
from pathlib import Path

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.files import sha256_of
from tacit.models import weights
from tacit.tokenizers.base import base_name, languages, path_of
from tacit.tokenizers.public import declare
from tacit.tokenizers.tokenizer import Tokenizer


def test_a_base_model_has_a_long_and_a_short_name():
    assert path_of("base") == path_of("base:en")
    assert base_name("base") == base_name("base:en") == "base:en"


def test_any_other_name_is_a_path(tmp_path, monkeypatch):
    assert path_of("pretrained") == Path("pretrained")
    assert base_name("pretrained") is None
    assert base_name("") is None
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()  # a folder of that name comes first
    assert base_name("base") is None
    assert path_of("base") == Path("base")


def test_an_unknown_language_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"no base model 'base:xx'; there is base:en"):
        path_of("base:xx")


@pytest.mark.parametrize("language", languages())
def test_a_base_model_s_tokenizer_fits_its_weights_and_is_public(language):
    folder = path_of(f"base:{language}")
    tokenizer = Tokenizer.load(folder)
    assert weights.load_config(folder / "model.safetensors").vocab_size == tokenizer.vocab_size
    assert weights.trained_on(folder / "model.safetensors") == ()
    assert tokenizer.provenance.startswith("public: ")
    assert tokenizer.why_void is None


@pytest.mark.parametrize("language", languages())
def test_what_a_base_model_is_made_of_is_on_record(language):
    folder = path_of(f"base:{language}")
    record = json.loads((folder / "provenance.json").read_text())
    assert record["files"] == {name: sha256_of(folder / name) for name in record["files"]}
    assert record["files"].keys() == {"model.safetensors", "tokenizer.json"}
    texts = " ".join(weights.public_texts(folder / "model.safetensors"))
    for text in record["texts"]:  # so that people whose text it is are refused
        assert f"{text['name']} (sha256 {text['sha256']})" in texts
    scores = record["held_out"]
    assert scores["model"]["perplexity"] < scores["bigram"]["perplexity"]
    assert record["command"].startswith("tacit model pretrain ")


def test_a_base_model_is_declared_public_by_its_name_and_digest():
    corpus = load_corpus("synthetic:users=20,words=1")
    named = declare("starting weights", "base", corpus)
    file = path_of("base") / "model.safetensors"
    assert (named.name, named.sha256) == ("base:en", sha256_of(file))
    assert declare("dictionary", "base", corpus).sha256 == sha256_of(
        path_of("base") / "tokenizer.json"
    )
