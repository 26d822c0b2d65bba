"""Where corpora lie, so that a corpus that was moved is found by its identity.

Runs keep a corpus's path as it was typed.  When nothing is there any more, whoever has opened the
corpus elsewhere since has left a note of where, in the state folder with what is known of its
people.  What a note leads to counts only if it is that very corpus, text by text.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from tacit.corpus import people
from tacit.corpus.store import Corpus
from tacit.privacy import durable
from tacit.privacy.documents import read_json

FILE = "places.json"
_MOST = 20


def remember(corpus: Corpus, place: Path | None = None) -> None:
    """Note where a corpus lies, if its people are known here; a note that fails costs nothing.

    `place` is where one that is being made will lie.
    """
    if not corpus.about_people:
        return
    with suppress(OSError, ValueError):
        file, path = _file(corpus.identity), str((place or corpus.path).absolute())
        known = _paths(file)
        if file.parent.is_dir() and known[:1] != [path]:
            others = [other for other in known if other != path]
            durable.write_whole(file, json.dumps([path, *others][:_MOST]).encode())


def find(identity: str, commitment: str) -> Path | None:
    """Where a corpus of these people with this commitment lies now, or None."""
    with suppress(OSError, ValueError):
        for path in _paths(_file(identity)):
            with suppress(OSError, ValueError):
                if Corpus.open(path).commitment == commitment:
                    return Path(path)
    return None


def _file(identity: str) -> Path:
    return people.folder(identity, create=False) / FILE


def _paths(file: Path) -> list[str]:
    """The paths in a note, the last one first."""
    try:
        return read_json(file, list[str])
    except FileNotFoundError:
        return []
