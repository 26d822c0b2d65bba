"""The folder that every case is given a copy of: one of each thing that a command reads.

All paths are relative to it, so a copy of it is whole by itself.  Everything is tiny.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
from pathlib import Path
from unittest import mock

from tests.hostile.fuzz import child, privilege

SENTENCES = 40


def build(folder: Path, cache: Path | None, *, whole: bool) -> None:
    """Make the world in a child, so that this process stays as it is.

    Without `whole`, only what the cases of the usual tests need.
    """
    for path in (folder, cache):
        if path is not None:
            path.mkdir(parents=True)
            if cache is not None:
                privilege.give(path)
    ended = child.call(
        lambda: _make(whole),
        folder,
        limit=600.0,
        memory=12 << 30,
        environment=child.environment_of(folder, cache),
        drops=cache is not None,
    )
    if ended.code != 0:
        raise RuntimeError(f"the world cannot be made: {ended.err}")


def _make(whole: bool) -> None:
    import torch

    from tacit.train import train
    from tests.runs.small import experiment, make_corpus, make_tokenizer

    torch.set_num_threads(1)
    here = Path()
    for name in ("state", "tmp", "home"):
        Path(name).mkdir()
    make_corpus(Path("corpus"))
    make_tokenizer(here)
    _texts()
    _recipes(experiment(here))
    private = experiment(here, seed=None).changed(
        seed=None, rounds=3, privacy={"accountant": None, "budget_epsilon": 50.0}
    )
    train(private, "run")
    _tacit(f"audit run --phrases phrases.txt {_QUICKLY}")
    _tacit("report run")
    _tacit("export run --out bundle")
    _utterances()
    train(_nlu(), "nlu")
    _stopped(experiment(here, seed=None).changed(seed=None, rounds=4), "stopped")
    if not whole:
        return
    train(private.changed(rounds=2, audit={"canaries": _CANARIES}), "planted")
    _tacit(f"audit planted {_QUICKLY}")
    _tacit("report planted")
    train(private, "other")
    _tacit("report other")
    train(experiment(here, seed=None).changed(seed=None, **_SWITCHED), "switched")
    train(private.changed(**_TURNS), "turns")
    _stopped(experiment(here, seed=None).changed(seed=None, **_TURNS), "turns-stopped")
    train(experiment(here), "simulated")
    _tacit("export simulated --out simulated-bundle --not-for-release")
    train(_nlu(), "nlu-other")
    _tacit("report nlu")
    _tacit("audit nlu")
    _stopped(_nlu(), "nlu-stopped")
    _tacit("export nlu --out nlu-bundle")
    _tacit(f"model pretrain books.jsonl.gz --out pretrained {TINY}")
    _tacit("model personalize bundle --user-text messages.txt --out personal --epochs 1")
    _tacit("tokenizer train words --public public.txt --kind word --size 60")
    _tacit("tokenizer train pieces --public public.txt --kind bpe --size 300")
    _tacit(
        "tokenizer train learnt --partition-selection corpus --epsilon 5 --delta 1e-3 --kind word"
        " --size 36"
    )


TINY = (
    "--model-option cells=4 --model-option embedding_size=4 --threads 1 --epochs 1"
    " --measure-tokens 100 --tokenizer tokenizer.json"
)
_QUICKLY = "--samples 200 --controls 3"
_CANARIES = {
    **{"sharers": [2.0], "example_probs": [1.0], "per_cell": 3},
    **{"words": 3, "max_share": 0.9},
}
_SWITCH = {"sampled_tokens": 200, "size": 15}
_SWITCHED = {"rounds": 3, "phases": [{"rounds": 1}, {"rounds": 2, "tokenizer": _SWITCH}]}
# Noise that is correlated over the rounds, which are one release.
_TURNS = {"rounds": 4, "plan": {"sampling": "min-separation", "separation": 3, "noise": "banded"}}


def _tacit(line: str) -> None:
    from tacit.cli.main import main

    with open("printed", "w") as file:
        both = (contextlib.redirect_stdout(file), contextlib.redirect_stderr(file))
        try:
            with both[0], both[1]:
                main(line.split())
        except SystemExit as stop:
            code = stop.code
    said = Path("printed").read_text()
    Path("printed").unlink()
    if code:
        raise RuntimeError(f"tacit {line}: {said}")


def _nlu() -> object:
    """A private one, whose noise is the same in all steps: its epsilon takes no time."""
    from tests.tasks.nlu.small import of_method

    return of_method(
        "dp-sgd",
        seed=None,
        data={"source": "said.jsonl"},
        training={"epochs": 2},
        privacy={"budget_epsilon": 30.0},
    )


def _stopped(experiment: object, name: str) -> None:
    """A run that ended in the middle, to be resumed."""
    from tacit.runs.checkpoints import Checkpoints
    from tacit.train import train

    write, calls = Checkpoints.write, []

    def stops(*given: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(*given)

    with mock.patch.object(Checkpoints, "write", stops), contextlib.suppress(KeyboardInterrupt):
        train(experiment, name)


def _recipes(base: object) -> None:
    from tests.tasks.nlu.small import small

    recipes = {
        "recipe.toml": base.changed(rounds=2),  # type: ignore[attr-defined]
        "switching.toml": base.changed(**_SWITCHED),  # type: ignore[attr-defined]
        "turns.toml": base.changed(**_TURNS),  # type: ignore[attr-defined]
    }
    for name, experiment in recipes.items():
        Path(name).write_text(experiment.to_toml())
    Path("nlu.toml").write_text(
        small(data={"source": "said.jsonl"}, training={"epochs": 1}).to_toml()
    )
    Path("child.toml").write_text(
        'extends = "recipe.toml"\nname = "child"\n[variants.one]\nrounds = 1\n'
        "[variants.two.plan]\nclip_norm = 0.2\n"
    )


def _texts() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.runs.small import WORDS

    draw = random.Random(1)
    said = [" ".join(draw.choices(WORDS, k=6)) for _ in range(SENTENCES)]
    for name in ("messages.txt", "public.txt", "chats.txt"):
        Path(name).write_text("\n".join(said) + "\n")
    Path("salt").write_text("00" * 16)
    Path("salt").chmod(0o600)
    Path("phrases.txt").write_text("the red cat eats the big dog\na dog runs\n")
    rows = [(f"person {n % 9}", n, text) for n, text in enumerate(said)]
    Path("chats.csv").write_text(
        "user,time,text\n" + "".join(f'"{who}",{n},"{text}"\n' for who, n, text in rows)
    )
    Path("chats.tsv").write_text(
        "user\ttime\ttext\n" + "".join(f"{who}\t{n}\t{text}\n" for who, n, text in rows)
    )
    lines = [json.dumps({"user": who, "time": n, "text": text}) for who, n, text in rows]
    Path("chats.jsonl").write_text("\n".join(lines) + "\n")
    names = ("user", "time", "text")
    columns = {name: [row[n] for row in rows] for n, name in enumerate(names)}
    pq.write_table(pa.table(columns), "chats.parquet")
    authors = [{"user": f"author {n}", "texts": said[n : n + 4]} for n in range(12)]
    books = "".join(json.dumps(author) + "\n" for author in authors)
    Path("books.jsonl.gz").write_bytes(gzip.compress(books.encode(), mtime=0))
    Path("letters").mkdir()
    for n in range(3):
        (Path("letters") / f"writer {n}.txt").write_text("\n".join(said[n::3]))


def _utterances() -> None:
    rows = [
        {
            "tokens": ["please", "call", f"n{place}"],
            "tags": ["O", "O", "B-who"],
            "intent": f"i{place % 2}",
            "user": f"u{place % 20}",
        }
        for place in range(80)
    ]
    Path("said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def copy(world: Path, names: set[str], there: Path, *, drops: bool) -> None:
    """A case's own folder with some things of the world, which belongs to its child."""
    there.mkdir()
    for name in sorted({*names, "state", "tmp", "home"}):
        if (world / name).is_dir():
            shutil.copytree(world / name, there / name, copy_function=_copy)
        elif (world / name).is_file():
            _copy(world / name, there / name)
    if drops:
        _give_all(there)


def _copy(source: object, target: object) -> None:
    shutil.copyfile(str(source), str(target))
    shutil.copymode(str(source), str(target))


def _give_all(folder: Path) -> None:
    privilege.give(folder)
    for path in folder.rglob("*"):
        privilege.give(path)
