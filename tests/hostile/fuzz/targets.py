"""What is damaged, and the commands that read it.

A line is a command as it is typed in the world's folder.  What it makes is called `out`, so that
something half-written shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUICKLY = "--samples 100 --controls 2"
_SMALL = "--model-option cells=4 --model-option embedding_size=4 --threads 1 --measure-tokens 100"
# What runs of language and of utterances, and the state, refer to.
NEEDED = {"corpus", "tokenizer.json", "said.jsonl"}


@dataclass(frozen=True)
class Target:
    """One thing of the world, a file or a folder, and what reads it.

    `verified`: `tacit verify` answers for its files.  `other`: a thing of the same kind, whose
    files take the place of this one's.
    """

    path: str
    lines: tuple[str, ...]
    verified: bool = False
    other: str = ""
    needs: tuple[str, ...] = ()

    def files(self, world: Path) -> list[str]:
        """Its files, relative to the world."""
        whole = world / self.path
        found = [whole] if whole.is_file() else whole.rglob("*")
        return sorted(str(path.relative_to(world)) for path in found if path.is_file())

    def donors(self, world: Path, file: str) -> Iterator[str]:
        """Files that may be put in the place of one."""
        if self.other:
            twin = self.other + file.removeprefix(self.path)
            if (world / twin).is_file():
                yield twin
        yield from (name for name in self.files(world) if name != file)

    def names(self, line: str, world: Path) -> set[str]:
        """What of the world a case needs: what the line names, and what that refers to."""
        words = {word.partition("@")[0].partition("=")[2] or word.partition("@")[0]
                 for word in line.split()}  # fmt: skip
        tops = {Path(word).parts[0] for word in words if word}
        there = {name for name in tops if (world / name).exists()}
        return there | NEEDED | {self.path, *self.needs}


def _model(name: str, leg: str) -> tuple[str, ...]:
    """What every language model can be asked, in a run, a bundle or a folder."""
    return (
        f"predict {name} the --json",
        f"evaluate {name} --corpus corpus --tokens 200 --json",
        f"tokenizer sample {name}{leg} --out out --tokens 50",
        f"model personalize {name} --user-text messages.txt --out out --epochs 1 --json",
        f"audit {name} --phrases phrases.txt {QUICKLY} --json",
    )


def _start(name: str) -> tuple[str, ...]:
    return (f"train recipe.toml --start {name} --run out --workers 1 --quiet --json",)


def _run(name: str, other: str) -> tuple[str, ...]:
    """What every run can be asked."""
    return (
        f"verify {name} --json",
        f"verify {name}",
        f"ledger {name} --json",
        f"ledger {name} --plot out.png",
        f"report {name} --out out.html --json",
        f"report {name} --out out.html --internal --json",
        f"export {name} --out out --json",
        f"export {name} --out out --not-for-release --json",
        f"compare {name} {other} --json",
        f"compare {name} {other}",
        f"evaluate {name} --json",
        f"evaluate {name}",
        f"train --resume --run {name} --workers 1 --quiet --json",
    )


def _language(name: str) -> tuple[str, ...]:
    return (
        *_model(name, "@2"),
        f"evaluate {name} --baselines --tokens 200 --json",
        f"train --from {name}@2 --run out --rounds 4 --workers 1 --quiet --json",
        f"tokenizer train out --from {name}@2 --kind word --size 40 --tokens 300 --json",
        f"tokenizer swap {name}@2 --run out --rounds 4 --kind word --size 40 --tokens 300"
        " --workers 1 --quiet",
    )


def _corpus(name: str) -> tuple[str, ...]:
    return (
        f"corpus info {name} --json",
        f"corpus head {name} --json",
        f"corpus head {name}",
        f"corpus export {name} out.jsonl",
        f"corpus budget {name} --epsilon 8 --delta 1e-3 --json",
        "train recipe.toml --run out --workers 1 --quiet --json",
        "evaluate run --json",
        "train --resume --run stopped --workers 1 --quiet --json",
        f"tokenizer train out --partition-selection {name} --epsilon 5 --delta 1e-3 --size 40",
        f"tokenizer train out --oracle {name} --size 40",
    )


def _tokenizer(name: str) -> tuple[str, ...]:
    return (
        f"train recipe.toml --run out --set tokenizer.source={name} --workers 1 --quiet --json",
        f"tokenizer swap run@2 --tokenizer {name} --run out --rounds 4 --workers 1 --quiet",
        f"model pretrain books.jsonl.gz --tokenizer {name} --out out --epochs 1 {_SMALL}",
    )


def _recipe(name: str) -> tuple[str, ...]:
    return (
        f"recipes show {name}",
        f"recipes show {name} --source",
        f"recipes show {name} --json",
        f"train {name} --run out --workers 1 --quiet",
        f"model suggest-clip {name} --public public.txt --users 3 --rounds 0",
    )


def _input(name: str) -> tuple[str, ...]:
    return (
        f"ingest {name} --out out --json",
        f"ingest {name} --out out --skip-bad-rows",
    )


_TEXT = (
    "model personalize bundle --user-text {} --out out --epochs 1",
    "audit run --phrases {} " + QUICKLY,
    "tokenizer train out --public {} --kind word --size 40",
    "tokenizer train out --public {} --kind bpe --size 300",
    "ingest {} --out out",
)
_UTTERANCES = (
    "train nlu.toml --run out --workers 1 --quiet --json",
    "train --resume --run nlu-stopped --workers 1 --quiet --json",
    "evaluate nlu --json",
    "audit nlu --json",
    "papers nlu nlu.toml --out out",
)

TARGETS: dict[str, Target] = {
    "run": Target("run", (*_run("run", "other"), *_language("run")), True, "other"),
    "a planted run": Target(
        "planted",
        (*_run("planted", "run"), *_language("planted"), f"audit planted {QUICKLY} --json"),
        True,
        "run",
    ),
    "a switched run": Target(
        "switched", (*_run("switched", "run"), *_language("switched")), True, "run"
    ),
    "a run of correlated noise": Target(
        "turns", (*_run("turns", "run"), *_language("turns")), True, "run"
    ),
    "a stopped run of correlated noise": Target(
        "turns-stopped", _run("turns-stopped", "turns"), True, "turns"
    ),
    "a stopped run": Target("stopped", _run("stopped", "run"), True, "simulated"),
    "a simulated run": Target("simulated", _run("simulated", "run"), True, "run"),
    "a run of intents": Target(
        "nlu",
        (
            *_run("nlu", "nlu-other"),
            "predict nlu please --json",
            "audit nlu --json",
            "train --from nlu@1 --run out --epochs 3 --quiet --json",
        ),
        True,
        "nlu-other",
    ),
    "a stopped run of intents": Target(
        "nlu-stopped", _run("nlu-stopped", "nlu"), True, "nlu-other"
    ),
    "a bundle": Target(
        "bundle",
        (
            *_model("bundle", ""),
            *_start("bundle"),
            "verify bundle --json",
            "verify bundle",
            "ledger bundle --json",
        ),
        True,
        "simulated-bundle",
    ),
    "a bundle of intents": Target(
        "nlu-bundle",
        ("verify nlu-bundle --json", "ledger nlu-bundle --json", "predict nlu-bundle please"),
        True,
    ),
    "a corpus": Target("corpus", _corpus("corpus"), needs=("run", "stopped")),
    "people": Target(
        "state",
        (
            *("verify run --json", "corpus budget corpus --json", "corpus info corpus --json"),
            "train recipe.toml --run out --workers 1 --quiet --json",
            "train --resume --run stopped --workers 1 --quiet --json",
            "ingest chats.csv --out out --json",
        ),
    ),
    "a tokenizer's file": Target("tokenizer.json", _tokenizer("tokenizer.json")),
    "a folder of words": Target("words", _tokenizer("words"), other="learnt"),
    "a tokenizer from people": Target("learnt", _tokenizer("learnt"), other="words"),
    "byte pairs": Target("pieces", _tokenizer("pieces"), other="words"),
    "a start": Target(
        "pretrained", (*_model("pretrained", ""), *_start("pretrained")), other="bundle"
    ),
    "one person's model": Target("personal", _model("personal", "")[:3], other="pretrained"),
    "a recipe": Target("recipe.toml", (*_recipe("recipe.toml"), *_recipe("child.toml"))),
    "a recipe that extends": Target("child.toml", _recipe("child.toml"), needs=("recipe.toml",)),
    "a recipe of intents": Target("nlu.toml", _recipe("nlu.toml")[:4]),
    "CSV": Target("chats.csv", _input("chats.csv")),
    "TSV": Target("chats.tsv", _input("chats.tsv")),
    "JSON Lines": Target("chats.jsonl", _input("chats.jsonl")),
    "Parquet": Target("chats.parquet", _input("chats.parquet")),
    "lines of text": Target("chats.txt", tuple(line.format("chats.txt") for line in _TEXT)),
    "gzip": Target(
        "books.jsonl.gz",
        (
            *_input("books.jsonl.gz"),
            f"model pretrain books.jsonl.gz --tokenizer tokenizer.json --out out {_SMALL}",
        ),
    ),
    "a folder of texts": Target("letters", _input("letters")),
    "utterances": Target("said.jsonl", _UTTERANCES, needs=("nlu", "nlu-stopped")),
}
