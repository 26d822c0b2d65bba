"""Whatever a run is given that is not people's text was declared public by naming it.

It is listed in the ledger's header with its digest, and refused if it is people's text after all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tacit.corpus.files import sha256_of
from tacit.corpus.public_inputs import refuse_private, refuse_private_origin
from tacit.corpus.source import UserCorpus
from tacit.privacy.ledger_lines import PublicInput
from tacit.public.text import read_public_text
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import FILE_NAME

# Of a folder that is declared public, the one file that is used.
USED_OF_A_FOLDER = {"dictionary": FILE_NAME, "starting weights": "model.safetensors"}


def declare(what: str, source: str, corpus: UserCorpus | None) -> PublicInput:
    """A public input by its name and digest; refused if it is the corpus's own text."""
    name = source.removeprefix("public:").strip()
    named = PublicSource(source)
    if named.parts:
        return PublicInput(what, name, named.digest)
    path = Path(name)
    if not path.exists():
        raise ValueError(f"there is no {what} at {name}: name a public text or a file")
    called = path.resolve().name
    if path.is_dir() and (used := USED_OF_A_FOLDER.get(what)):
        path = path / used  # a run or a bundle holds more, and some of that is private
    if corpus is not None and path.is_file():
        refuse_private(f"the {what} {name}", path, _lines(what, path), corpus)
        if path.name == FILE_NAME:
            origin = LearntTokenizer.load(path).tokenizer.provenance
            refuse_private_origin(f"the {what} {name}", origin, corpus)
    return PublicInput(what, called, digest_of(path))


def digest_of(path: Path) -> str:
    """SHA-256 of a file; of a folder that of its files' names and digests."""
    if path.is_file():
        return sha256_of(path)
    digest = hashlib.sha256()
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def public_lines(source: str) -> Iterable[str]:
    """The lines of a public text by its name or file."""
    return PublicSource(source).lines


def _lines(what: str, path: Path) -> Iterable[str]:
    """The lines of text in a file; weights and tokenizers have none."""
    if what == "starting weights" or path.name == FILE_NAME:
        return ()
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        text = read_public_text([str(path)])
        return (*text.train, *text.held_out)
    return PublicSource(path).lines
