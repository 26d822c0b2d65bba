"""Corpora by name: `chitchat`, real chat that comes with the package, and `synthetic`.

This is the one place that knows these names.  Everything else loads a corpus and asks it, above
all whether it is about people (`UserCorpus.about_people`).
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tacit.corpus import store
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
        return _chitchat()
    if is_synthetic(name):
        return SyntheticCorpus(_synthetic_options(name))
    if not Path(name).exists():
        raise ValueError(
            f"there is no corpus {name!r}: name a directory that tacit ingest made, or one of"
            f" {', '.join(BUILTIN)}"
        )
    return Corpus.open(name)


def is_builtin(name: str) -> bool:
    """Whether a name stands for a built-in corpus."""
    return name.partition(":")[0] in BUILTIN


def is_synthetic(name: str) -> bool:
    """Whether a name stands for a generated corpus, which is about nobody."""
    return name.partition(":")[0] == "synthetic"


def ingest_builtin(name: str, out: str | Path, **settings: Any) -> Corpus:
    """Make a corpus directory of a built-in corpus; `settings` are those of `ingest_records`.

    Whether it is about people is recorded in it: chitchat is, a generated corpus is not.
    """
    if is_synthetic(name):
        corpus = SyntheticCorpus(_synthetic_options(name))
        settings |= {"count": len(corpus), "about_people": False}
        return ingest_records(corpus.records(), out, **settings)
    records = chitchat_records()
    settings |= {"count": len(records), "inputs": [_chitchat_file()]}
    return ingest_records(records.items(), out, **settings)


def _synthetic_options(name: str) -> SyntheticOptions:
    """What `synthetic:users=1e6,words=100` asks for."""
    names = [field.name for field in fields(SyntheticOptions)]
    options: dict[str, Any] = {}
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
        options[key] = int(value) if whole else float(value)
    return SyntheticOptions(**options)


def _chitchat_file() -> Path:
    """The file that the dataset's package brings along."""
    import chitchat_dataset

    return Path(chitchat_dataset.__file__).with_name("dataset.json")


def chitchat_records() -> dict[str, list[str]]:
    """All texts of each sender of the Chit-Chat dataset, in the order they were sent."""
    conversations = json.loads(_chitchat_file().read_text(encoding="utf-8"))
    sent = [
        (said["timestamp"], said["sender"], said["text"])
        for conversation in conversations.values()
        for message in conversation["messages"]
        for said in message
    ]
    sent.sort(key=lambda said: said[0])  # stable: what was sent in one second stays as it was
    records: dict[str, list[str]] = {}
    for _, sender, text in sent:
        if text.strip():  # 33 of 258,145 are blank
            records.setdefault(sender, []).append(text)
    return records


def _chitchat() -> Corpus:
    """1,315 people's chat, 2.48M words (MIT); made on first use, and kept in the user's cache."""
    name = f"chitchat-{version('chitchat-dataset')}-{store.VERSION}"
    try:
        return _cached_chitchat(_cache_folder() / name)
    except OSError:  # a cache that cannot be written to: one for this process, then
        folder = Path(tempfile.mkdtemp(prefix="tacit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _cached_chitchat(folder / name)


def _cached_chitchat(path: Path) -> Corpus:
    """The corpus at a path, made if it is not there or damaged.

    It is made under another name and renamed, so that processes which start at once do not meet:
    all of them get the one that was renamed first.
    """
    with suppress(ValueError):
        return Corpus.open(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(path.parent)
    fresh = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    # The ids are public already: a fixed salt makes them the same for everybody.
    ingest_builtin("chitchat", fresh, salt=derived("chitchat salt")[:32])
    try:
        fresh.rename(path)
    except OSError:  # another process was faster, or what lies there is damaged
        with suppress(ValueError):
            corpus = Corpus.open(path)
            shutil.rmtree(fresh)
            return corpus
        shutil.rmtree(path)
        fresh.rename(path)
    return Corpus.open(path)


def is_cached(corpus: Corpus) -> bool:
    """Whether a corpus lies in the user's cache, from where it is never moved."""
    return corpus.path.resolve().is_relative_to(_cache_folder().resolve())


def _cache_folder() -> Path:
    """`$TACIT_CACHE/corpora`, or else `tacit/corpora` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("TACIT_CACHE"):
        return Path(own) / "corpora"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit" / "corpora"
