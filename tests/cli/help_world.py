"""The folder that examples in `--help` are run in: a small file, corpus or run for each name."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.runs.session import TrainingProgress
from tacit.tasks.nlu.generated import generated_utterances
from tacit.train import train
from tests.cli.training import tacit
from tests.runs.small import SALT, WORDS, experiment, make_tokenizer
from tests.tasks.nlu.small import small as nlu
from tests.tasks.nlu.writing import json_lines, write_folder

PEOPLE = 80


def make_world(folder: Path) -> Path:
    """Everything that an example may name, made once; each example is given a copy."""
    (folder / "shared").mkdir(parents=True)
    _write_texts(folder)
    _make_corpus(folder)
    _train_language_models(folder)
    _train_intents(folder)
    _make_models(folder)
    return folder


def _sentences(draw: random.Random, count: int) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=6)) for _ in range(count)]


def _write_texts(folder: Path) -> None:
    draw = random.Random(1)
    for name in ("more.txt", "forum.txt", "my-messages.txt", "wiki.txt"):
        (folder / name).write_text("\n".join(_sentences(draw, 60)))
    (folder / "secrets.txt").write_text("the red cat eats the big dog\n")
    authors = [{"user": f"author {n}", "texts": _sentences(draw, 5)} for n in range(30)]
    lines = "".join(json.dumps(author) + "\n" for author in authors)
    (folder / "books.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    rows = [(f"person {n % 9}", text) for n, text in enumerate(_sentences(draw, 40))]
    columns = {"author": [who for who, _ in rows], "body": [text for _, text in rows]}
    pq.write_table(pa.table(columns), folder / "chats.parquet")


def _make_corpus(folder: Path) -> None:
    """Enough test users with texts held out for an audit, and the same ones every time."""
    draw = random.Random(2)
    people = [(f"user {n}", _sentences(draw, 12)) for n in range(PEOPLE)]
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.3)
    made = folder / "corpora" / "chats"
    ingest_records(people, made, count=PEOPLE, options=options, salt=SALT)
    make_tokenizer(folder)


def _train_language_models(folder: Path) -> None:
    """Runs of a tiny LSTM; examples name rounds 40, 60 and 100 of the first.

    Their noise is large, so that a budget of 8 can be declared for these people afterwards, and
    their clip norm small, so that a hundred rounds of it leave a model that says more than EOS.
    """
    own = {
        "corpus": {"source": str(folder / "corpora" / "chats")},
        "tokenizer": {"source": str(folder / "tokenizer.json")},
        "plan": {"noise_multiplier": 30.0, "clip_norm": 0.001},
        "seed": None,
    }
    runs, plain = folder / "runs", {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    every = {"every": 20, "max_tokens": 200}
    train(experiment(folder, **own, rounds=100, evaluation=every), runs / "first")
    short = own | {"rounds": 2}
    # As few as fit: at most a twentieth of so few people's texts may be replaced.
    canaries = {"canaries": {"sharers": [10.0], "example_probs": [0.2], "per_cell": 1}}
    train(experiment(folder, **short, audit=canaries), runs / "private")
    train(experiment(folder, **(short | {"plan": plain})), runs / "fedavg")
    train(experiment(folder, **(short | {"seed": 1})), runs / "simulated")
    with contextlib.suppress(KeyboardInterrupt):
        train(experiment(folder, **short), runs / "stopped", observer=_stop)
    for name in ("clipping/flat", "clipping/none", "public", "free", "oracle"):
        shutil.copytree(runs / "private", runs / name)


def _stop(_: TrainingProgress) -> None:
    raise KeyboardInterrupt


def _train_intents(folder: Path) -> None:
    """Models of intents and slots, and utterances in both forms that are read."""
    rows = [
        (" ".join(each.tokens), " ".join(each.tags), each.intent)
        for each in generated_utterances("generated:utterances=120,seed=3")
    ]
    for name in ("utterances.jsonl", "other.jsonl"):
        (folder / name).write_text(json_lines(rows))
    write_folder(folder / "atis", rows)
    run = folder / "runs" / "intents"
    short = {"epochs": 1, "batch_size": 32}
    train(nlu(training=short), run)
    for name in ("atis", "nlu"):
        shutil.copytree(run, folder / "runs" / name)
    other = {"source": str(folder / "utterances.jsonl"), "unseen_intents": "keep"}
    train(nlu(training=short, data=other), folder / "runs" / "snips")
    shutil.copytree(folder / "runs" / "snips", folder / "sgd")
    shutil.move(folder / "sgd", folder / "runs" / "snips" / "sgd")


def _make_models(folder: Path) -> None:
    """A pre-trained model, a bundle, one person's model, a tokenizer and a recipe."""
    tiny = ["--model-option", "cells=4", "--model-option", "embedding_size=4", "--threads", 1]
    made: list[list[object]] = [
        ["model", "pretrain", folder / "books.jsonl.gz", "--out", folder / "pretrained", *tiny],
        ["export", folder / "runs" / "first", "--out", folder / "shared" / "first"],
        [
            *("model", "personalize", folder / "shared" / "first"),
            *("--user-text", folder / "my-messages.txt", "--out", folder / "my-model"),
        ],
        [
            *("tokenizer", "train", folder / "tokenizers" / "free", "--size", 300),
            *("--public", folder / "more.txt"),
        ],
    ]
    for words in made:
        code, _, err = tacit(*words)
        assert code == 0, err
    recipe = experiment(folder, tokenizer={"source": "chatterbot", "size": 200}, seed=None)
    (folder / "my-recipe.toml").write_text(recipe.to_toml())
