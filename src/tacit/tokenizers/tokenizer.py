"""One tokenizer of any kind: text to ids and back, its words, its provenance, its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tacit.privacy import durable
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.normalisation import WHITE_SPACE, is_unicode

Kind = Literal["word", "bpe", "wordpiece", "char"]

FILE_NAME = "tokenizer.json"


class Tokenizer:
    """A HuggingFace tokenizer that knows where it comes from and cannot be changed.

    BOS is 0, EOS is 1, and UNK is 2 except for byte-level BPE, which needs none (`unk` is None).
    There is no padding token: batches are padded with EOS and masked.  All that decides about ids
    is in tokenizer.json, so the plain library gives the same ids for that file.
    """

    __slots__ = (
        "_backend",
        "_bos",
        "_eos",
        "_fingerprint",
        "_json",
        "_kind",
        "_normalizer",
        "_provenance",
        "_splitter",
        "_unk",
    )

    def __init__(self, document: Document) -> None:
        check_usable(document)
        self._provenance = provenance_of(document)
        document = sealed(document, self._provenance)
        self._json = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
        try:
            self._backend = tokenizers.Tokenizer.from_str(self._json)
        except Exception as error:  # the library has no type of its own for this
            raise ValueError(f"HuggingFace tokenizers cannot read it: {error}") from error
        self._normalizer = self._backend.normalizer
        self._splitter = self._backend.pre_tokenizer
        frame = self._backend.encode("").ids
        if len(frame) != 2 or frame[0] == frame[1]:
            raise ValueError(f"it does not put a text between BOS and EOS: '' becomes {frame}")
        unk = document["model"].get("unk_token")
        self._unk = None if unk is None else self._backend.token_to_id(unk)
        self._bos, self._eos = frame
        self._kind = cast(Kind, kind_of(document))
        self._fingerprint = fingerprint(document, self._provenance)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """A tokenizer from the contents of tokenizer.json."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("it is cut off or not valid JSON") from error
        try:
            return cls(document)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"a part of it is missing or malformed: {error!r}") from error

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """A tokenizer from its file, or from tokenizer.json in a folder."""
        path = _file_at(Path(path))
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
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
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.create_whole(path, data)
        return path

    def to_json(self) -> str:
        """The contents of tokenizer.json, with provenance and fingerprint."""
        return self._json

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def provenance(self) -> str:
        """Where the vocabulary comes from: see `tacit.tokenizers.provenance`."""
        return self._provenance

    @property
    def why_void(self) -> str | None:
        """Why no guarantee holds for a model with this tokenizer, or None if one may."""
        return origins.why_void(self._provenance)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that decides about ids, and of the provenance."""
        return self._fingerprint

    @property
    def vocab_size(self) -> int:
        """How many ids there are, BOS, EOS and UNK among them."""
        return self._backend.get_vocab_size()

    @property
    def bos(self) -> int:
        return self._bos

    @property
    def eos(self) -> int:
        return self._eos

    @property
    def unk(self) -> int | None:
        """The id of what is not in the vocabulary; None where there is no such text."""
        return self._unk

    def encode(self, text: str) -> list[int]:
        """BOS, the text's ids, EOS."""
        return self._backend.encode(_checked(text)).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, which no other text influences; in parallel."""
        encodings = self._backend.encode_batch_fast([_checked(text) for text in texts])
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without BOS and EOS; the normalised text if they came from `encode`.

        Of word-level ids the spacing is lost too: there is one space between any two words.
        """
        ends = (self.bos, self.eos)
        inner = [int(id) for id in ids if id not in ends]
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
        text = _checked(text)
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._splitter is None:
            return [text] if text else []
        pieces = self._splitter.pre_tokenize_str(text)
        # The offsets, because byte-level pieces are written in another alphabet.
        return [text[start:end].strip(WHITE_SPACE) for _, (start, end) in pieces]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<{self.kind} tokenizer of {self.vocab_size:,} tokens, {self.provenance}>"

    def __copy__(self) -> Tokenizer:
        return self

    def __deepcopy__(self, memo: object) -> Tokenizer:
        return self

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Tokenizer.from_json, (self.to_json(),)


def _file_at(path: Path) -> Path:
    is_file = path.is_file() or (path.suffix == ".json" and not path.is_dir())
    return path if is_file else path / FILE_NAME


def _checked(text: str) -> str:
    if not is_unicode(text):  # the message must not quote what may be a user's text
        raise ValueError("half of a surrogate pair is not Unicode")
    return text


# tokenizer.json: all that decides about ids, and where the tokenizer comes from, in one file.
#
# HuggingFace `tokenizers` refuses fields it does not know, so the provenance and the fingerprint
# are entries of the template's table of special tokens that no template uses.  The plain library
# reads, copies and writes them like any other entry, and they never become tokens.
#
# The fingerprint is the SHA-256 of the provenance and of everything else in the file, written in
# one
# canonical way.  A file whose fingerprint is not its own was changed and is refused.  A file
# without both entries is of unknown provenance, which voids the guarantee like an oracle's: so
# taking the mark off an oracle does not make it public.  (A fingerprint is no signature: whoever
# forges one on purpose lies in their own name, as with a claim.)
#
# BOS, EOS and UNK are entries of the vocabulary but not "added tokens", because those are searched
# for in the text: a user who writes one would end the sequence.  Their brackets are symbols, hence
# words of their own, so that no text becomes one of them.

BOS, EOS, UNK = "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"

Document = dict[str, Any]

_PROVENANCE, _FINGERPRINT = "tacit.provenance", "tacit.fingerprint"


def assemble(
    model: models.Model,
    *,
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    decoder: decoders.Decoder,
    provenance: str,
) -> Document:
    """The file of a tokenizer whose model has BOS and EOS as 0 and 1."""
    backend = tokenizers.Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoder
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", pair=None, special_tokens=[(BOS, 0), (EOS, 1)]
    )
    return sealed(json.loads(backend.to_str()), provenance)


def sealed(document: Document, provenance: str) -> Document:
    """The document with its provenance and its fingerprint in it; given once, for good."""
    bare, present = _without_marks(document)
    if present and provenance_of(document) != provenance:
        raise ValueError("the provenance of a tokenizer cannot be changed")
    marks = {
        _PROVENANCE: origins.check(provenance),
        _FINGERPRINT: fingerprint(document, provenance),
    }
    for name, value in marks.items():
        bare["post_processor"]["special_tokens"][name] = {
            "id": name,
            "ids": [0],
            "tokens": [value],
        }
    return bare


def provenance_of(document: Document) -> str:
    """What the document says of itself, "unknown" if nothing; `ValueError` if it was changed."""
    _, marks = _without_marks(document)
    if not marks:
        return origins.UNKNOWN
    stated = marks.get(_PROVENANCE)
    if not isinstance(stated, str) or marks.get(_FINGERPRINT) != fingerprint(document, stated):
        raise ValueError(
            "it was changed after tacit wrote it: its fingerprint is not the one of its contents"
        )
    return origins.check(stated)


def fingerprint(document: Document, provenance: str) -> str:
    """SHA-256, in hexadecimal, of all that decides about ids, and of the provenance."""
    bare, _ = _without_marks(document)
    canonical = json.dumps([provenance, bare], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def kind_of(document: Document) -> str:
    """word, bpe, wordpiece or char, from the model itself."""
    model = document["model"]
    if model["type"] == "BPE":
        return "char" if model["unk_token"] and not model["merges"] else "bpe"
    return {"WordLevel": "word", "WordPiece": "wordpiece"}[model["type"]]


def check_usable(document: object) -> Document:
    """The document, or a `ValueError` saying what in it cannot be trained with."""
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
    return document


def _without_marks(document: Document) -> tuple[Document, dict[str, Any]]:
    """A copy without the provenance and the fingerprint, and those that were there."""
    processor = dict(document["post_processor"])
    table = dict(processor["special_tokens"])
    marks = {name: table.pop(name) for name in (_PROVENANCE, _FINGERPRINT) if name in table}
    values = {name: mark["tokens"][0] if mark["tokens"] else None for name, mark in marks.items()}
    return document | {"post_processor": processor | {"special_tokens": table}}, values
