"""Cases on command lines: every option of every command, with values that nobody should type.

Commands and options are those of the tree as it is, so a new one is covered by being there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.fuzz.place import Place
from tests.hostile.fuzz.verdicts import Failure

NUMBERS = (
    *("-1", "0", "1", "nan", "inf", "-inf", "1e-300", "1e300", "-1e300", "1e-3", "0.5", "2"),
    *(
        "9" * 30,
        "1e15",
        "1e400",
        "0x10",
        "1_000",
        "١٢",
        "",
        " ",
        "abc",
        "1,5",
        "1e",
        "--json",
        "1" * 5000,
    ),
)
PATHS = (
    *("", ".", "..", "/", "missing", "missing/deeper", "corpus", "fifo", "/dev/null", "loop"),
    *("/dev/full", "dangling", "unreadable", "a" * 300, "a\x1b[31mb", "a\nb", "[bold]b[/bold]"),
    *("../out", "\udcff", "~", "~nobody-of-that-name/x", "corpus/../recipe.toml", "\u202egnp", "-"),
    *(
        "recipe.toml/x",
        "tokenizer.json",
        "run",
        "bundle",
        "chats.csv",
        "empty",
        "*",
        "out/",
        "nul.toml",
    ),
)
WORDS = (
    *(
        "",
        " ",
        "nobody",
        "a=b",
        "=",
        "=1",
        "rounds=",
        "rounds=nan",
        "rounds=1e400",
        "plan.clip_norm=-1",
    ),
    *("plan.noise_multiplier=1e-300", "corpus.source=", "a.b.c.d=1", "rounds=[[", "rounds={a=1}"),
    *(
        "model.options={cells=1e30}",
        "x" * 10_000,
        "\x1b]0;t\x07",
        "[red]x[/red]",
        "../../x",
        "\ud800",
    ),
    *("run@", "run@-1", "run@99", "run@1e9", "@", "run@1@2", "synthetic:users=1e30", "synthetic:"),
    *("synthetic:users=-1", "synthetic:users=nan,words=0", "generated:utterances=0", "memorized>0"),
    *(
        "auc>nan",
        "all",
        "train",
        "1/0",
        "1/2",
        "0/2",
        "3/2",
        "a/b",
        "00" * 16,
        "zz",
        "%d.%m.%Y",
        "%",
        ";;",
    ),
    *(
        "utf-16",
        "idna",
        "rot13",
        "1GiB",
        "-1GiB",
        "0",
        "1e999GiB",
        "name=\u202e",
        "tokenizer.source=fifo",
    ),
)
# What is typed where nothing hostile is: by what the help calls the value.
USUAL: dict[str, tuple[str, ...]] = {
    "RUN": ("run", "nlu", "planted", "bundle"),
    "RUN...": ("run", "planted"),
    "RUN@ROUND": ("run@2", "switched@3"),
    "RUN[@ROUND]": ("run@2", "run"),
    "PATH": ("run", "bundle"),
    "CORPUS": ("corpus",),
    "C": ("corpus", "5"),
    "RECIPE": ("recipe.toml", "child.toml", "nlu.toml"),
    "NAME": ("recipe.toml", "word", "poisson", "rdp", "fresh", "test"),
    "INPUT": ("chats.csv", "letters"),
    "TEXT": ("public.txt",),
    "TEXT...": ("public.txt", "books.jsonl.gz"),
    "[TEXT]": ("the red",),
    "FOLDER": ("out", "words"),
    "DIR": ("out", "pretrained"),
    "OUT": ("out",),
    "FILE": ("out.png", "messages.txt", "phrases.txt"),
    "FILE.toml": ("out.toml",),
    "KEY=VALUE": ("rounds=1", "seed=1"),
    "PLACE...": ("words", "run"),
    "WHICH": ("tokenizer.json",),
    "HOST:PORT": ("127.0.0.1:1",),
    "HOST": ("127.0.0.1",),
    "EXPERIMENT": ("recipe.toml",),
    "D": ("said.jsonl", "1e-3"),
}
# Commands whose work may rightly take as long as somebody asks for: told to end after a while.
WORKS = ("train", "plan", "demo", "papers", "model", "tokenizer", "audit", "evaluate", "predict")
WORKS += ("federate",)  # a client answers for ever
WORK_SECONDS = 4.0
SETTINGS = ("--workers", "1")
WORLD = {
    *("corpus", "tokenizer.json", "said.jsonl", "run", "planted", "switched", "nlu", "bundle"),
    *("recipe.toml", "child.toml", "nlu.toml", "chats.csv", "letters", "public.txt", "words"),
    *("books.jsonl.gz", "pretrained", "messages.txt", "phrases.txt"),
}


@cache
def tree() -> dict[tuple[str, ...], Any]:
    """Every command that does something, by the words that lead to it."""
    from typer.main import get_command

    from tacit.cli.main import app

    def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        if hasattr(command, "commands"):
            for name, each in command.commands.items():
                yield from leaves(each, (*words, name))
        else:
            yield words, command

    return dict(leaves(get_command(app)))


@dataclass(frozen=True)
class LineCase:
    """A command, and its parts: an argument or an option with its value each."""

    command: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]

    kind = "command lines"

    @property
    def words(self) -> list[str]:
        return [*self.command, *(word for part in self.parts for word in part)]

    @property
    def summary(self) -> str:
        return f"tacit {' '.join(map(repr, self.words))[:1000]}"

    @property
    def kinds(self) -> list[str]:
        return [" ".join(self.command)]

    def names(self, place: Place) -> set[str]:
        return WORLD

    def damage(self, place: Place, folder: Path) -> None:
        """Put things there that are no files."""
        os.mkfifo(folder / "fifo")
        (folder / "loop").symlink_to("loop")
        (folder / "dangling").symlink_to("nowhere")
        (folder / "empty").touch()
        (folder / "nul.toml").write_bytes(b"\0" * 100)
        (folder / "unreadable").touch(mode=0)
        os.chmod(folder / "fifo", 0o666)

    def run(self, place: Place) -> Failure | None:
        work = WORK_SECONDS if self.command[0] in WORKS else None
        with place.case(self.names(place), lambda folder: self.damage(place, folder)) as folder:
            return place.judge(self.words, folder, work)[1]

    def smaller(self) -> Iterator[LineCase]:
        for index in range(len(self.parts)):
            yield replace(self, parts=self.parts[:index] + self.parts[index + 1 :])


def draw(random_: random.Random, place: Place) -> LineCase:
    """Any command; what it needs is mostly as it should be, and a few options are not."""
    words = random_.choice(list(tree()))
    parameters = [one for one in tree()[words].params if one.name != "help"]
    parts: list[tuple[str, ...]] = []
    optional = []
    for one in parameters:
        if one.required or not one.opts[0].startswith("-"):
            if one.required or random_.random() < 0.7:
                parts.append(_part(one, random_, hostile=random_.random() < 0.15))
        else:
            optional.append(one)
    few = random_.sample(optional, min(len(optional), random_.choice((0, 1, 1, 2, 2, 3, 6))))
    parts += [_part(one, random_, hostile=random_.random() < 0.8) for one in few]
    if any(one.opts[0] == "--workers" for one in parameters if one not in few):
        parts.append(SETTINGS)
    if random_.random() < 0.02:
        parts.append((random_.choice((*WORDS, *PATHS)),))
    random_.shuffle(parts)
    usable = [part for part in parts if not any("\0" in word for word in part)]
    return LineCase(words, tuple(usable))


def _part(parameter: Any, random_: random.Random, *, hostile: bool) -> tuple[str, ...]:
    name = parameter.opts[0] if parameter.opts else parameter.name
    if getattr(parameter, "is_flag", False):
        return (name,)
    metavar = parameter.metavar or ""
    if hostile:
        value = random_.choice(random_.choice((NUMBERS, PATHS, WORDS)))
    else:
        value = random_.choice(USUAL.get(metavar, ("1", "2", "0.5")))
    return (name, value) if name.startswith("-") else (value,)
