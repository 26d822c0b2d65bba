"""Parsers of what comes from outside, each with what it may raise: nothing but a `ValueError`.

`OSError` is the disk's.  Whatever else comes out of a parser is a bug, in it or in its caller.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.fuzz import mutations
from tests.hostile.fuzz.child import Ended
from tests.hostile.fuzz.place import Place
from tests.hostile.fuzz.verdicts import Failure

_EXPECTED = (ValueError, OSError)


def _ledger(path: Path) -> None:
    from tacit.privacy.guarantee import Guarantee
    from tacit.privacy.ledger import Ledger

    ledger = Ledger.read(path)
    if not ledger.entries:
        Guarantee.of(ledger)


def _recipe(path: Path) -> None:
    from tacit.tasks import recipes

    recipes.load(str(path))


def _experiment(path: Path) -> None:
    from tacit.tasks import read_experiment

    read_experiment(path.read_text(encoding="utf-8"), str(path))


def _tokenizer(path: Path) -> None:
    from tacit.tokenizers.tokenizer import Tokenizer

    words = Tokenizer.load(path)
    words.decode(words.encode("the red cat"))


def _weights(path: Path) -> None:
    from tacit.models import weights

    weights.load_config(path)
    weights.trained_on(path)
    weights.load(path)


def _rows(format: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from tacit.corpus.files import InputFile
        from tacit.corpus.readers import Reader

        for _ in Reader(None, None, None, path.parent).records(InputFile(path, format, "somebody")):
            pass

    return read


def _utterances(path: Path) -> None:
    from tacit.tasks.nlu.readers import load_nlu

    load_nlu(path)


def _texts(path: Path) -> None:
    from tacit.runs.personalization import read_texts

    read_texts(path)


@dataclass(frozen=True)
class Parser:
    """What reads a file, what the file is called, and good ones in the world to begin with."""

    read: Callable[[Path], None]
    name: str
    seeds: tuple[str, ...]


PARSERS: dict[str, Parser] = {
    "ledger": Parser(_ledger, "ledger.jsonl", ("run/ledger.jsonl", "nlu/ledger.jsonl")),
    "recipe": Parser(_recipe, "own.toml", ("recipe.toml", "nlu.toml")),
    "experiment": Parser(
        _experiment, "experiment.toml", ("run/experiment.toml", "nlu/experiment.toml")
    ),
    "tokenizer": Parser(_tokenizer, "tokenizer.json", ("tokenizer.json", "pieces/tokenizer.json")),
    "weights": Parser(_weights, "model.safetensors", ("bundle/model.safetensors",)),
    "csv": Parser(_rows("csv"), "rows.csv", ("chats.csv",)),
    "jsonl": Parser(_rows("jsonl"), "rows.jsonl", ("chats.jsonl",)),
    "parquet": Parser(_rows("parquet"), "rows.parquet", ("chats.parquet",)),
    "gzip": Parser(_rows("jsonl"), "rows.jsonl.gz", ("books.jsonl.gz",)),
    "utterances": Parser(_utterances, "said.jsonl", ("said.jsonl",)),
    "texts": Parser(_texts, "texts.jsonl", ("chats.jsonl",)),
}


def cause_of(name: str, path: Path) -> str | None:
    """What is wrong with how a parser ends on a file; None if it reads or refuses it."""
    try:
        PARSERS[name].read(path)
    except _EXPECTED:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException:
        return Ended(70, "", traceback.format_exc(), 0.0).cause
    return None


def seeds_of(name: str, world: Path) -> list[bytes]:
    """Good files to begin with."""
    paths = [world / seed for seed in PARSERS[name].seeds]
    return [path.read_bytes() for path in paths if path.exists()]


@dataclass(frozen=True)
class ParserCase:
    """Many inputs of one parser in one child, each a good file that was changed at random."""

    name: str
    seed: int
    count: int = 300

    kind = "parsers, unguided"

    @property
    def words(self) -> list[str]:
        return [self.name]

    @property
    def summary(self) -> str:
        return f"{self.count} inputs of the parser {self.name}"

    @property
    def kinds(self) -> list[str]:
        return [self.name]

    def names(self, place: Place) -> set[str]:
        return set()

    def damage(self, place: Place, folder: Path) -> None:
        """Nothing: the parser is given bytes."""

    def run(self, place: Place) -> Failure | None:
        from tests.hostile.fuzz import child

        seeds = seeds_of(self.name, place.world)
        with place.case(set(), lambda _: None) as folder:
            ended = child.call(
                lambda: self._try(seeds, folder),
                folder,
                limit=child.LIMIT * 3,
                environment=child.environment_of(folder, place.cache),
                drops=place.drops,
            )
            found = folder / "found.json"
            causes = json.loads(found.read_text()) if found.exists() else {}
        for cause in causes:
            return Failure("parser", f"{self.name}: {cause}")
        if ended.was_stopped or ended.code:
            return Failure("parser", f"{self.name}: ends with {ended.code}: {ended.cause}")
        return None

    def _try(self, seeds: Sequence[bytes], folder: Path) -> None:
        draw, path = random.Random(self.seed), folder / PARSERS[self.name].name
        causes: dict[str, str] = {}
        for _ in range(self.count):
            data = draw.choice(seeds)
            for _ in range(draw.choice((1, 1, 2, 5))):
                data = mutations.of_bytes(data, draw)
            path.write_bytes(data)
            if cause := cause_of(self.name, path):
                causes.setdefault(cause, data[:2000].hex())
                (folder / "found.json").write_text(json.dumps(causes))


def draw(random_: random.Random, place: Place) -> ParserCase:
    """Any parser."""
    return ParserCase(random_.choice(list(PARSERS)), random_.randrange(2**32))


def shrunk(name: str, data: bytes, folder: Path, tries: int = 400) -> bytes:
    """A shorter input with the same cause, found by leaving parts out."""
    path = folder / PARSERS[name].name

    def cause(given: bytes) -> str | None:
        path.write_bytes(given)
        return cause_of(name, path)

    wanted, size = cause(data), max(len(data) // 2, 1)
    while size and tries > 0:
        at = 0
        while at < len(data) and tries > 0:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            if cause(shorter) == wanted:
                data = shorter
            else:
                at += size
        size //= 2
    return data
