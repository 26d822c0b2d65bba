"""A training small enough to be run dozens of times: 40 users, 2,000 parameters, real files."""

import random
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.tokenizers import build, provenance

WORDS = (
    "the a dog cat runs sleeps eats and then quickly slowly red blue big small house tree".split()
)
SALT = "00" * 16
TRAINED = 44  # of the 60 users: the others are test users


def texts_of(user: int) -> list[str]:
    draw = random.Random(user)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(draw.randint(2, 6))]


def make_corpus(path: Path, changed: dict[int, list[str]] | None = None, users: int = 60) -> Path:
    """60 users with their texts; some may be changed.  The salt, and so the identity, is fixed."""
    records = [(f"user {n}", (changed or {}).get(n, texts_of(n))) for n in range(users)]
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest_records(records, path, count=len(records), options=options, salt=SALT)
    return path


def make_tokenizer(path: Path) -> Path:
    words = build.word_level(WORDS, provenance=provenance.public("a list in the tests"))
    return words.save(path / "tokenizer.json")


def experiment(folder: Path, **changes) -> Experiment:
    """A private training of 6 rounds on the corpus and tokenizer in `folder`."""
    base = Experiment.from_data(
        {
            "name": "small",
            "rounds": 6,
            "corpus": {"source": str(folder / "corpus")},
            "tokenizer": {"source": str(folder / "tokenizer.json")},
            "model": {"name": "lstm", "options": {"embedding_size": 6, "cells": 8}},
            "update": {"batch_size": 2, "unroll": 5, "learning_rate": 0.5, "shuffle": True},
            "plan": {"cohort": 10, "clip_norm": 0.3, "noise_multiplier": 1.0},
            "server": {"optimizer": "momentum"},
            "privacy": {"delta": 1e-3, "accountant": "rdp"},
            "evaluation": {"every": 2, "max_tokens": 200},
            "seed": 5,
        },
        "the small experiment",
    )
    return base.changed(**changes) if changes else base


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    make_corpus(path / "corpus")
    make_tokenizer(path)
    return path


def files_of(run: Path) -> dict[str, bytes]:
    """Everything that two equal runs have in common, byte for byte."""
    names = [*run.glob("checkpoints/*"), *run.glob("*.jsonl"), *run.glob("*.toml")]
    names += run.glob("tokenizer.json")
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(names)}
