"""`tacit papers pretrain-bert` as a user meets it: a folder, a table, JSON, and mistakes."""

import json

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM

from tacit.models.bert import load_pretrained
from tacit.tasks.nlu.encoding import Labels, PieceEncoder
from tacit.tasks.nlu.models import build
from tacit.tokenizers.wordpiece import PieceVocabulary
from tests.models.small_bert import pretrained_options

TINY = (
    "--vocab 60 --batch 8 --unroll 10 --warmup 5 --threads 1 --width 8 --layers 1 --heads 2"
    " --intermediate 8 --positions 20"
).split()
FILES = {
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
    *("origin.json", "metrics.jsonl", "curve.png"),
}


@pytest.fixture
def book(tmp_path):
    """Lines in which one word is said again and again, each line another."""
    words = "cat dog bird cow hen fox bee owl".split()
    generator = np.random.default_rng(0)
    lines = [" ".join([str(generator.choice(words))] * 6) for _ in range(150)]
    path = tmp_path / "book.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def pretrain(command):
    return command("papers pretrain-bert")


def test_a_folder_is_made_that_says_where_it_is_from_and_that_a_tagger_begins_with(
    pretrain, tmp_path, book
):
    out = tmp_path / "made"
    found = pretrain.json(
        book, "--out", out, *TINY, "--epochs", "8", "--lr", "2e-2", "--measure-every", "50"
    )
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    model, unigram = found["held_out"]["model"], found["held_out"]["unigram"]
    assert model["perplexity"] < unigram["perplexity"]
    assert model["targets"] == unigram["targets"] > 5
    assert (found["provenance"], found["texts"]) == ("public: book", ["book"])
    assert PieceVocabulary.load(out).provenance == "public: book"
    assert json.loads((out / "origin.json").read_text())["held_out"] == found["held_out"]
    theirs = BertForMaskedLM.from_pretrained(out)
    assert theirs.config.vocab_size == found["vocabulary"] <= 60

    encoder = PieceEncoder.from_folder(out)
    tagger = build("bert", Labels(("ask",), ("O",)), encoder, pretrained_options(out))
    load_pretrained(tagger, out)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(tagger.bert.get_parameter(words), theirs.bert.get_parameter(words))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows] == [
        "settings",
        *["point"] * (len(rows) - 4),
        "trained",
        *["held_out"] * 2,
    ]
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_the_model_and_the_baseline_and_a_seed_writes_the_same_weights(
    pretrain, tmp_path, book
):
    for name in ("one", "two"):
        arguments = [book, "--out", tmp_path / name, *TINY, "--epochs", "0.3", "--seed", "4"]
        printed = pretrain.says(*arguments)
    for word in ("BERT (", "unigram", "perplexity", "right", "masked pieces of held-out text"):
        assert word in printed
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--width 9", "width must be a multiple of heads, 2, got 9"),
        ("--masked-share 2", "masked-share must be strictly between 0 and 1, got 2"),
        ("--lr nan", "learning_rate must be a finite number above 0, got nan"),
        ("--minutes 0", "minutes must be a finite number above 0"),
        ("--unroll 21", "unroll must be at most positions, 20, got 21"),
        ("--unroll 2", "unroll must be at least 3"),
        ("--vocab 3", "size must be at least 7"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--measure-tokens 0", "--measure-tokens must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    pretrain, tmp_path, book, arguments, named
):
    assert named in pretrain.refused(book, "--out", tmp_path / "made", *TINY, *arguments.split())
    assert [path.name for path in tmp_path.iterdir()] == [book.name]


def test_text_that_is_missing_private_or_too_short_is_refused(pretrain, tmp_path, book):
    out = ("--out", tmp_path / "made", *TINY)
    assert "nothing.txt" in pretrain.refused(tmp_path / "nothing.txt", *out)
    assert "chitchat is a corpus of people's text" in pretrain.refused("chitchat", *out)
    book.write_text("one line\n", encoding="utf-8")
    assert "there is no text to hold out" in pretrain.refused(book, *out)
    (tmp_path / "made").mkdir()
    assert "exists already" in pretrain.refused(book, *out)
    assert list((tmp_path / "made").iterdir()) == []


def test_a_missing_package_is_one_sentence(pretrain, tmp_path, book, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = pretrain.refused(book, "--out", tmp_path / "made", *TINY)
    assert (
        "tacit papers pretrain-bert needs the package transformers: pip install 'tacit-dp[nlu]'"
        in message
    )


def test_ctrl_c_leaves_nothing_half_written(pretrain, tmp_path, book, monkeypatch):
    seen = []

    def interrupted(*_):
        seen.extend(tmp_path.glob(".made.*/metrics.jsonl"))
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit_papers.dupuy2021.masked.MaskedModel.score", interrupted)
    code, out, err = pretrain(book, "--out", tmp_path / "made", *TINY)
    assert (code, out, err) == (
        130,
        "",
        "tacit: interrupted; nothing is half-written: the same command begins again\n",
    )
    assert seen  # so something was there to be left behind
    assert [path.name for path in tmp_path.iterdir()] == [book.name]
