"""What the tests of `tacit train` share: a training of a second, and how to call the command."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.corpus.builtin import SyntheticCorpus
from tacit.tokenizers import build, provenance

CORPUS = "synthetic:users=60,words=40"
SETTINGS = (
    "model.options={embedding_size=8,cells=8}",
    "tokenizer.source=TOKENIZER",  # made once for all tests: a vocabulary takes seconds
    "plan.cohort=10",
    "plan.noise_multiplier=1",
    "update.learning_rate=0.5",
    "evaluation.every=2",
)
TINY = ["--corpus", CORPUS, "--workers", "1", "--delta", "1e-3"]
TINY += [word for setting in SETTINGS for word in ("--set", setting)]
ROUNDS = 6

# Lives as long as the tests do.
_FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def tokenizer() -> str:
    """A vocabulary that has the corpus's words, in a file that stands for a public one."""
    users = SyntheticCorpus().test
    texts = (text for user in range(len(users)) for text in users.texts(user))
    made = build.learn("word", texts, 200, provenance=provenance.public("words"))
    path = Path(_FOLDER.name) / "tokenizer.json"
    made.save(path)
    return str(path)


def with_tokenizer(word: object) -> str:
    return str(word).replace("TOKENIZER", tokenizer())


def tacit(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main([with_tokenizer(word) for word in words])
    code = stop.value.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


def train(*words: object) -> tuple[int, str, str]:
    return tacit("train", *words)


def refused(*words: object) -> str:
    code, out, err = train(*words)
    assert (code, out) == (2, ""), err
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    return err


def weights(run: Path, rounds: int) -> bytes:
    return (run / "checkpoints" / f"model-{rounds:06d}.safetensors").read_bytes()


def flat(text: str) -> str:
    return " ".join(text.split())
