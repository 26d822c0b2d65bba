"""One tokenizer of any kind: text to ids and back, its words, its provenance, its fingerprint.

A tokenizer is its tokenizer.json: all that decides about ids, and where the vocabulary comes from,
stand in that one file, and the plain HuggingFace library gives the same ids for it.

The library refuses fields it does not know, so the provenance and the fingerprint are entries of
the template's table of special tokens that no template uses.  The plain library reads, copies and
writes them like any other entry, and they never become tokens.

The fingerprint is the SHA-256 of the provenance and of everything else in the file, written in one
canonical way.  A file whose fingerprint is not its own was changed and is refused.  A file without
both entries is of unknown provenance, which voids the guarantee like an oracle's, so taking the
mark off an oracle does not make it public.  (A fingerprint is no signature: a forged one is a false
statement by the person who forged it, as a false claim is.)

BOS, EOS and UNK are entries of the vocabulary but not "added tokens", because those are searched
for in the text: a user who writes one would end the sequence.  Their brackets are symbols, hence
words of their own, so that no text becomes one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers

from tacit.privacy import durable, trusted
from tacit.privacy.documents import parse_json
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.normalisation import (
    WHITE_SPACE,
    Normalisation,
    check_unicode,
    is_word_split,
    name_of,
    plain_words,
)

Kind = Literal["word", "bpe", "wordpiece", "char"]

FILE_NAME = "tokenizer.json"
BOS, EOS, UNK = "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"

_Document = dict[str, Any]  # tokenizer.json as it is parsed

_PROVENANCE, _FINGERPRINT = _MARKS = ("tacit.provenance", "tacit.fingerprint")


@dataclass(frozen=True, eq=False, repr=False)
class Tokenizer:
    """A HuggingFace tokenizer that knows where it comes from and cannot be changed.

    BOS is 0, EOS is 1, and UNK is 2 except for byte-level BPE, which needs none (`unk` is None).
    There is no padding token: batches are padded with EOS and masked.  `provenance` is one of the
    kinds that `tacit.tokenizers.provenance` lists, and `fingerprint` is the SHA-256, in
    hexadecimal, of all that decides about ids and of the provenance.  Two tokenizers are equal if
    their fingerprints are.
    """

    kind: Kind
    provenance: str
    fingerprint: str
    bos: int
    eos: int
    unk: int | None
    _json: str
    _backend: tokenizers.Tokenizer

    @classmethod
    def of(cls, document: _Document, provenance: str | None = None) -> Tokenizer:
        """A tokenizer from the parsed contents of tokenizer.json.

        `provenance` marks a document that has no marks yet; unsaid, it is "unknown".  A document
        that has its marks keeps them: another provenance is refused.
        """
        _check_usable(document)
        origin = _stated_provenance(document)
        if origin is None:
            origin = origins.UNKNOWN if provenance is None else provenance
        elif provenance not in (None, origin):
            raise ValueError("the provenance of a tokenizer cannot be changed")
        origins.check(origin)
        fingerprint = _fingerprint(document, origin)
        marked = _with_marks(document, {_PROVENANCE: origin, _FINGERPRINT: fingerprint})
        text = json.dumps(marked, ensure_ascii=False, indent=1)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library has no type of its own for this
            raise ValueError(f"HuggingFace tokenizers cannot read it: {error}") from error
        frame = backend.encode("").ids
        if len(frame) != 2 or frame[0] == frame[1]:
            raise ValueError(f"it does not put a text between BOS and EOS: '' becomes {frame}")
        unk = document["model"].get("unk_token")
        unk_id = None if unk is None else backend.token_to_id(unk)
        bos, eos = frame
        return cls(_kind(document), origin, fingerprint, bos, eos, unk_id, text + "\n", backend)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """A tokenizer from the contents of tokenizer.json; `ValueError` says why it is refused."""
        try:
            document = parse_json(text, "it")
        except ValueError as error:
            raise ValueError("it is cut off or not valid JSON") from error
        try:
            return cls.of(document)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"a part of it is missing or malformed: {error!r}") from error

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """A tokenizer from its file, or from tokenizer.json in a folder."""
        path = _file_at(Path(path))
        try:
            return cls.from_json(trusted.read_text(path))
        except FileNotFoundError:
            raise ValueError(f"there is no tokenizer at {path}") from None
        except ValueError as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise ValueError(f"the tokenizer {path} cannot be used: {why}") from error

    def save(self, path: str | Path) -> Path:
        """Write the file (or tokenizer.json in a folder), atomically; never over another one."""
        path = _file_at(Path(path))
        data = self.to_json().encode()
        if path.is_file() and path.read_bytes() == data:
            return path
        durable.make_folder(path.parent, mode=durable.SHARED_FOLDER)
        durable.write_whole(path, data, new=True)
        return path

    def to_json(self) -> str:
        """The contents of tokenizer.json, with provenance and fingerprint."""
        return self._json

    @property
    def why_void(self) -> str | None:
        """Why no guarantee holds for a model with this tokenizer, or None if one may."""
        return origins.why_void(self.provenance)

    @property
    def vocab_size(self) -> int:
        """The number of ids, BOS, EOS and UNK among them."""
        return self._backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """BOS, the text's ids, EOS."""
        return self._backend.encode(check_unicode(text)).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, in parallel; no text influences the ids of another.

        For a dictionary of ours, words of plain text are found by Python's own expressions, which
        takes a third of the library's time.
        """
        rule, index, unk = self._normalisation, self._index, self.unk
        if rule is None or index is None or unk is None:
            return self._encode_batch([check_unicode(text) for text in texts])
        split = [plain_words(text, rule) for text in texts]
        others = [check_unicode(t) for t, words in zip(texts, split, strict=True) if words is None]
        rest = iter(self._encode_batch(others))
        return [
            next(rest)
            if words is None
            else [self.bos, *[index.get(word, unk) for word in words], self.eos]
            for words in split
        ]

    def _encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As the library does it."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts)]

    @cached_property
    def _normalisation(self) -> Normalisation | None:
        """What is done to a text before it is split as we split it; None of other libraries'."""
        document = json.loads(self._json)
        return name_of(document) if is_word_split(document) else None

    @cached_property
    def _index(self) -> dict[str, int] | None:
        """The ids of a dictionary's words; None of other kinds."""
        if self.kind != "word":
            return None
        index: dict[str, int] = json.loads(self._json)["model"]["vocab"]
        return index

    @property
    def splits_at_spaces(self) -> bool:
        """Whether the tokens of a text's beginning up to a space are the first of the text's."""
        return self._normalisation is not None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without BOS and EOS; the normalised text if they came from `encode`.

        Word-level ids have lost the spacing too: one space stands between any two words.
        """
        inner = [int(id) for id in ids if id not in (self.bos, self.eos)]
        if outside := [id for id in inner if not 0 <= id < self.vocab_size]:
            raise ValueError(f"ids must be from 0 to {self.vocab_size - 1}, got {outside[0]}")
        return self._backend.decode(inner, skip_special_tokens=False)

    def words(self, text: str) -> list[str]:
        """The normalised words, the same for every kind of tokenizer with that normalisation."""
        return [word for word in self._pieces(text) if word]

    def word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """`encode(text)`, and for each id the index in `words(text)` of the word it belongs to.

        A word owns the white space before it.  BOS, EOS, and white space at the end have -1.
        """
        word_of: list[int] = []
        words = 0
        pieces = self._pieces(text)
        total = sum(map(bool, pieces))
        for piece in pieces:
            word_of.append(words if words < total else -1)
            words += bool(piece)
        encoding = self._backend.encode(text)
        owners = [-1 if piece is None else word_of[piece] for piece in encoding.word_ids]
        return encoding.ids, owners

    def token(self, id: int) -> str:
        """The vocabulary's entry for an id, as tokenizer.json spells it."""
        token = self._backend.id_to_token(id) if id >= 0 else None
        if token is None:
            raise ValueError(f"ids must be from 0 to {self.vocab_size - 1}, got {id}")
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary's entry, or None if there is no such entry."""
        return self._backend.token_to_id(token)

    def _pieces(self, text: str) -> list[str]:
        """What the text is split into before tokens are looked for; white space is empty."""
        text = check_unicode(text)
        normalizer, splitter = self._backend.normalizer, self._backend.pre_tokenizer
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        if splitter is None:
            return [text] if text else []
        pieces = splitter.pre_tokenize_str(text)
        # The offsets, because byte-level pieces are written in another alphabet.
        return [text[start:end].strip(WHITE_SPACE) for _, (start, end) in pieces]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<{self.kind} tokenizer of {self.vocab_size:,} tokens, {self.provenance}>"

    def __reduce__(self) -> tuple[object, tuple[str]]:  # for pickles and copies
        return Tokenizer.from_json, (self.to_json(),)


def _file_at(path: Path) -> Path:
    is_file = path.is_file() or (path.suffix == ".json" and not path.is_dir())
    return path if is_file else path / FILE_NAME


def _check_usable(document: object) -> None:
    """Raise a `ValueError` that says what in the document cannot be trained with, if anything."""
    if not (isinstance(document, dict) and isinstance(document.get("model"), dict)):
        raise ValueError("it is not a tokenizer of HuggingFace tokenizers")
    model = document["model"]
    if model.get("type") not in {"WordLevel", "BPE", "WordPiece"}:
        raise ValueError(f"its model is {model.get('type')!r}, not WordLevel, BPE or WordPiece")
    if document.get("truncation") or document.get("padding"):
        raise ValueError("it truncates or pads, which the caps per user and the batches do here")
    if document.get("added_tokens"):
        names = ", ".join(repr(token["content"]) for token in document["added_tokens"][:3])
        raise ValueError(f"it has added tokens ({names}), which a user could write into a text")
    if model.get("dropout"):
        raise ValueError("its model has dropout, so that the same text gets different tokens")
    if sorted(model["vocab"].values()) != list(range(len(model["vocab"]))):
        raise ValueError("the ids of its vocabulary are not 0, 1, 2 and so on, each once")
    if model["type"] != "BPE" and model["unk_token"] not in model["vocab"]:
        raise ValueError(f"its token for unknown words, {model['unk_token']!r}, has no id")
    if (document.get("post_processor") or {}).get("type") != "TemplateProcessing":
        raise ValueError("it has no template that puts a text between BOS and EOS")


def _kind(document: _Document) -> Kind:
    """The kind, from the model: characters are a BPE that has UNK and no merges."""
    model = document["model"]
    if model["type"] == "BPE":
        return "char" if model["unk_token"] and not model["merges"] else "bpe"
    return cast(Kind, {"WordLevel": "word", "WordPiece": "wordpiece"}[model["type"]])


def _stated_provenance(document: _Document) -> str | None:
    """What the document says of itself, None if nothing; `ValueError` if it was changed."""
    marks = {
        name: entry["tokens"][0] if entry["tokens"] else None
        for name, entry in document["post_processor"]["special_tokens"].items()
        if name in _MARKS
    }
    if not marks:
        return None
    stated = marks.get(_PROVENANCE)
    if not isinstance(stated, str) or marks.get(_FINGERPRINT) != _fingerprint(document, stated):
        raise ValueError(
            "it was changed after tacit wrote it: its fingerprint is not the one of its contents"
        )
    return stated


def _fingerprint(document: _Document, provenance: str) -> str:
    """SHA-256, in hexadecimal, of the document without its marks, and of the provenance."""
    bare = _with_marks(document, {})
    canonical = json.dumps([provenance, bare], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _with_marks(document: _Document, marks: Mapping[str, str]) -> _Document:
    """A copy of the document whose marks are exactly these."""
    processor = document["post_processor"]
    table = {
        name: entry for name, entry in processor["special_tokens"].items() if name not in _MARKS
    }
    table |= {name: {"id": name, "ids": [0], "tokens": [mark]} for name, mark in marks.items()}
    return document | {"post_processor": processor | {"special_tokens": table}}
