"""Corpora by name: `chitchat`, real chat that comes with the package, and `synthetic`."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from importlib.metadata import version
from pathlib import Path

from tacit.corpus import layout
from tacit.corpus.hashing import derived
from tacit.corpus.ingest import ingest_records
from tacit.corpus.source import UserCorpus
from tacit.corpus.store import Corpus
from tacit.corpus.synthetic import SyntheticCorpus, SyntheticOptions

BUILTIN = ("chitchat", "synthetic")


def load_corpus(name_or_path: str | Path) -> UserCorpus:
    """A corpus directory, `chitchat`, or `synthetic:users=1000,words=100,...`."""
    name = str(name_or_path)
    if name == "chitchat":
        return chitchat()
    if name == "synthetic" or name.startswith("synthetic:"):
        return SyntheticCorpus(synthetic_options(name))
    if not Path(name).exists():
        raise ValueError(
            f"there is no corpus {name!r}: name a directory that tacit ingest made, or one of"
            f" {', '.join(BUILTIN)}"
        )
    return Corpus.open(name)


def is_builtin(name: str) -> bool:
    """Whether a name stands for a built-in corpus."""
    return name.partition(":")[0] in BUILTIN


def raw_records(name: str) -> tuple[Iterator[tuple[str, list[str]]], int]:
    """The (raw id, texts) pairs of a built-in corpus and how many there are, to ingest them."""
    if name == "chitchat":
        found = chitchat_records()
        return iter(found.items()), len(found)
    corpus = SyntheticCorpus(synthetic_options(name))
    return corpus.records(), len(corpus)


def raw_files(name: str) -> list[Path]:
    """The files that the records of a built-in corpus are read from."""
    if name != "chitchat":
        return []
    import chitchat_dataset

    return [Path(chitchat_dataset.__file__).with_name("dataset.json")]


def is_about_people(name: str) -> bool:
    """Whether a built-in corpus is people's text; a generated one is nobody's."""
    return name == "chitchat"


def synthetic_options(name: str) -> SyntheticOptions:
    """What `synthetic:users=1e6,words=100` asks for."""
    names = [field.name for field in fields(SyntheticOptions)]
    given: dict[str, float] = {}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, text = part.partition("=")
        key = key.strip()
        if key not in names:
            raise ValueError(f"{part!r} in {name!r}: synthetic takes {', '.join(names)}")
        try:
            value = Decimal(text)
            whole = not key.endswith("fraction")
            if not value.is_finite() or (whole and value != value.to_integral_value()):
                raise InvalidOperation
        except InvalidOperation:
            raise ValueError(f"{part!r} in {name!r} has no number, such as {key}=1000") from None
        given[key] = int(value) if whole else float(value)
    return SyntheticOptions(**given)  # type: ignore[arg-type]


def chitchat_records() -> dict[str, list[str]]:
    """All texts of each sender of the Chit-Chat dataset, in the order they were sent."""
    [path] = raw_files("chitchat")
    conversations = json.loads(path.read_text(encoding="utf-8"))
    sent = [
        (said["timestamp"], said["sender"], said["text"])
        for conversation in conversations.values()
        for message in conversation["messages"]
        for said in message
    ]
    sent.sort(key=lambda said: said[0])  # stable: what was sent in one second stays as it was
    found: dict[str, list[str]] = {}
    for _, sender, text in sent:
        if text.strip():  # 33 of 258,145 are blank
            found.setdefault(sender, []).append(text)
    return found


def chitchat() -> Corpus:
    """1,315 people's chat, 2.48M words (MIT); made on first use, and kept in the user's cache."""
    name = f"chitchat-{version('chitchat-dataset')}-{layout.VERSION}"
    try:
        return _cached(_cache_folder() / name)
    except OSError:  # a cache that cannot be written to: one for this process, then
        folder = Path(tempfile.mkdtemp(prefix="tacit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _cached(folder / name)


def _cached(path: Path) -> Corpus:
    with suppress(ValueError):  # not there yet, or damaged
        return Corpus.open(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(path.parent)
    records = chitchat_records()
    fresh = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    # The ids are public already: a fixed salt makes them the same for everybody.
    salt = derived("chitchat salt")[:32]
    files = raw_files("chitchat")
    ingest_records(records.items(), fresh, count=len(records), salt=salt, inputs=files)
    try:
        fresh.rename(path)
    except OSError:  # something is there: another process was faster, or it is damaged
        try:
            found = Corpus.open(path)
        except ValueError:
            shutil.rmtree(path)
            fresh.rename(path)
        else:
            shutil.rmtree(fresh)
            return found
    return Corpus.open(path)


def is_cached(corpus: Corpus) -> bool:
    """Whether a corpus is a built-in one in the user's cache, which nobody moves anywhere."""
    return corpus.path.resolve().is_relative_to(_cache_folder().resolve())


def _cache_folder() -> Path:
    given = os.environ.get("TACIT_CACHE")
    if given:
        return Path(given) / "corpora"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit" / "corpora"
