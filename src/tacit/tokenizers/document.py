"""tokenizer.json: all that decides about ids, and where the tokenizer comes from, in one file.

HuggingFace `tokenizers` refuses fields it does not know, so the provenance and the fingerprint
are entries of the template's table of special tokens that no template uses.  The plain library
reads, copies and writes them like any other entry, and they never become tokens.

The fingerprint is the SHA-256 of the provenance and of everything else in the file, written in one
canonical way.  A file whose fingerprint is not its own was changed and is refused.  A file
without both entries is of unknown provenance, which voids the guarantee like an oracle's: so
taking the mark off an oracle does not make it public.  (A fingerprint is no signature: whoever
forges one on purpose lies in their own name, as with a claim.)

BOS, EOS and UNK are entries of the vocabulary but not "added tokens", because those are searched
for in the text: a user who writes one would end the sequence.  Their brackets are symbols, hence
words of their own, so that no text becomes one of them.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tacit.tokenizers import provenance as origins

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
