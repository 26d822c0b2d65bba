"""A model's vectors for another tokenizer: Bagdasaryan et al. 2022, section 4.3 and REMAP.

A new token begins with the mean of the vectors of the old tokens that spell it:

    map[t, u] = (how often u is among the old tokens that spell t) / (how many those are)
    embedding <- map . embedding

Algorithm 1 makes `map` new x old, as the product needs it, but then writes map[old, new]: the
order here is that of the product.  It also assigns 1/len rather than adds it, so that an old token
that occurs twice in a new one would count once; here it counts twice, and every row sums to 1.

Tokens are compared as bytes (see `spelling`), never as strings.  A token of the same bytes maps one
to one, and BOS, EOS and UNK go by what they are for, whatever they are called.  From a dictionary,
a word that it lacks begins as a copy of UNK.

Guarantee: a token with one source keeps every bit, so a tokenizer onto itself changes nothing.  The
map is a function of two public vocabularies, and applying it to a release is post-processing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol, get_args

import numpy as np
import scipy.sparse
import tokenizers
from numpy.typing import NDArray

from tacit.tokenizers import normalisation as normalisations
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Remapping:
    """Row i for the new vocabulary is the mean of the old rows `sources[i]`."""

    old_size: int
    sources: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not all(self.sources):
            raise ValueError(
                f"each new token needs a source, and token {self.sources.index(())} has none"
            )
        if self.sources and not 0 <= self._flat.min() <= self._flat.max() < self.old_size:
            raise ValueError(
                f"sources must be from 0 to {self.old_size - 1}, got {self._flat.min()} to"
                f" {self._flat.max()}"
            )

    @classmethod
    def between(cls, old: Tokenizer, new: Tokenizer) -> Remapping:
        """The old tokens that spell each new one; `ValueError` if the two do not fit together."""
        by_role = _roles(old, new)
        before, after = Spelling.of(old), Spelling.of(new)
        _check_same_text(before, after)
        sources = (
            (by_role[id],) if text is None else tuple(before.spell(text))
            for id, text in enumerate(after.tokens)
        )
        return cls(old.vocab_size, tuple(sources))

    @property
    def new_size(self) -> int:
        """How many tokens the new vocabulary has."""
        return len(self.sources)

    @property
    def is_identity(self) -> bool:
        """Is every token its own and only source?"""
        same = self.new_size == self.old_size and bool(self.copied.all())
        return same and bool((self._flat == np.arange(self.old_size)).all())

    @cached_property
    def copied(self) -> NDArray[np.bool_]:
        """Which new rows have one source, and are copies of it."""
        return _fixed(self._lengths == 1)

    def apply(self, values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
        """The values for the new vocabulary; `axis` is the one that counts tokens.

        Means are computed in float64 and rounded to the type of the values, whole numbers too.
        """
        if not (-values.ndim <= axis < values.ndim and values.shape[axis] == self.old_size):
            raise ValueError(
                f"axis {axis} of the values must count the {self.old_size} old tokens, got shape"
                f" {list(values.shape)}"
            )
        rows = np.moveaxis(values, axis, 0)
        result = rows[self._flat[self._starts]]  # bit for bit
        averaged = np.flatnonzero(~self.copied)
        if averaged.size:
            flat = rows.reshape(self.old_size, math.prod(rows.shape[1:])).astype(np.float64)
            means = (self._occurrences[averaged] @ flat) / self._lengths[averaged, np.newaxis]
            if not np.issubdtype(values.dtype, np.inexact):
                np.rint(means, out=means)
            result[averaged] = means.reshape(len(averaged), *rows.shape[1:]).astype(values.dtype)
        return np.ascontiguousarray(np.moveaxis(result, 0, axis))

    def matrix(self) -> scipy.sparse.csr_array:
        """Algorithm 1's `map`: new x old, and every row sums to 1."""
        return (scipy.sparse.diags_array(1 / self._lengths) @ self._occurrences).tocsr()

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return _fixed(np.fromiter(map(len, self.sources), np.int64, len(self.sources)))

    @cached_property
    def _flat(self) -> NDArray[np.int64]:
        """All sources, one new token after the other."""
        return _fixed(np.fromiter(chain.from_iterable(self.sources), np.int64))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each new token's sources begin."""
        return _fixed(np.cumsum(self._lengths) - self._lengths)

    @cached_property
    def _occurrences(self) -> scipy.sparse.csr_array:
        """How often each old token is among the sources of each new one."""
        ends = np.append(self._starts, len(self._flat))
        counts = scipy.sparse.csr_array(
            (np.ones(len(self._flat)), self._flat.copy(), ends),
            shape=(self.new_size, self.old_size),
        )
        counts.sum_duplicates()
        return counts


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _roles(old: Tokenizer, new: Tokenizer) -> dict[int, int]:
    """The old token for each new one that is no text."""
    roles = {new.bos: old.bos, new.eos: old.eos}
    if new.unk is not None:
        if old.unk is None:
            raise ValueError(
                f"the new {new.kind} tokenizer has a token for unknown words and the old"
                f" {old.kind} tokenizer has none, so there is no vector for it to begin with: take"
                " kind bpe, which needs none"
            )
        roles[new.unk] = old.unk
    return roles


def _check_same_text(old: Spelling, new: Spelling) -> None:
    """Tokens are of normalised text, so their bytes compare under one normalisation only."""
    if old.normaliser != new.normaliser:
        raise ValueError(
            f"the old tokenizer has the normalisation {_name(old.normaliser)} and the new one"
            f" {_name(new.normaliser)}: their tokens are of different texts, so train the new one"
            " with that of the old"
        )


def _name(normaliser: dict[str, Any] | None) -> str:
    for name in get_args(normalisations.Normalisation):
        rule = normalisations.normalizer(name)
        if normaliser == (None if rule is None else json.loads(rule.__getstate__())):
            return repr(name)
    return "of another library"


# Tokens as bytes, and bytes as tokens: what tokenizers of different kinds have in common.
#
# A token stands for the bytes of normalised text that it takes up, in UTF-8.  Where each kind has
# its spaces is the one thing to settle:
#
#     word        "cat" is b" cat": a word owns the space before it
#     wordpiece   "cat" is b" cat", and "##s", which continues a word, is b"s"
#     bpe         byte-level: " cat" and "cat" are two tokens, b" cat" and b"cat"; a token may be
#                 half of a character
#     char        "c" is b"c", and the space is a token of its own
#
# In the other direction, the token of exactly these bytes spells them, if there is one.  Otherwise:
#
#     bpe         the tokenizer's own merges, applied to the bytes
#     char        each character
#     word        each word; without a space before it, as at the start of a text, it is the same
# word
#     wordpiece   each word, the longest piece first; bytes that begin without a space are a whole
#                 word if there is one, else they continue a word, else they begin one
#
# What nothing spells is UNK: with dictionaries and pieces the whole word, for half a character too.
# BOS, EOS and UNK themselves are no text and have no bytes.

Ids = Mapping[bytes, int]


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """The bytes of each token by id; None for BOS, EOS and UNK."""
    return list(Spelling.of(tokenizer).tokens)


def spelled(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """The ids that spell these bytes, UNK where nothing does.  For many, keep a `Spelling`."""
    return Spelling.of(tokenizer).spell(text)


@dataclass(frozen=True)
class Spelling:
    """Both directions for one tokenizer: `tokens` are the bytes by id.

    They are of text that went through `normaliser`, which is an entry of tokenizer.json.
    """

    tokens: tuple[bytes | None, ...]
    ids: Ids
    unk: int | None
    kind: _Kind
    normaliser: dict[str, Any] | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Spelling:
        document = json.loads(tokenizer.to_json())
        kind = _kind(tokenizer, document)
        without = {tokenizer.bos, tokenizer.eos, tokenizer.unk}
        tokens: list[bytes | None] = [None] * tokenizer.vocab_size
        for token, id in document["model"]["vocab"].items():
            if id not in without:
                tokens[id] = kind.bytes_of(token)
        ids = {text: id for id, text in enumerate(tokens) if text is not None}
        return cls(tuple(tokens), ids, tokenizer.unk, kind, document["normalizer"])

    def spell(self, text: bytes) -> list[int]:
        """The ids that spell these bytes, UNK where nothing does."""
        if (id := self.ids.get(text)) is not None:
            return [id]
        found = (self.unk if id is None else id for id in self.kind.spell(text, self.ids))
        return [id for id in found if id is not None]


@dataclass(frozen=True)
class _Library:
    """The plain library's tokenizer, read when it is first needed: to spell, not to be spelt."""

    json: str

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.json)

    def words(self, text: bytes) -> list[bytes]:
        """The words, without the space between; none if there is half a character in the text."""
        try:
            whole = text.decode()
        except UnicodeDecodeError:
            return []
        splitter = self.backend.pre_tokenizer
        if splitter is None:
            return [text] if text else []
        return [word.encode() for word, _ in splitter.pre_tokenize_str(whole)]

    def merged(self, written: str) -> list[int]:
        """What the model makes of characters of its own alphabet."""
        return [token.id for token in self.backend.model.tokenize(written)]


class _Kind(Protocol):
    """How tokens of a kind are written, and how bytes that are no token are cut into tokens."""

    def bytes_of(self, token: str) -> bytes: ...

    def spell(self, text: bytes, ids: Ids) -> list[int | None]:
        """None stands for UNK."""


@dataclass(frozen=True)
class _Words:
    library: _Library

    def bytes_of(self, token: str) -> bytes:
        return b" " + token.encode()

    def spell(self, text: bytes, ids: Ids) -> list[int | None]:
        return [ids.get(b" " + word) for word in self.library.words(text)] or _unknown(text)


@dataclass(frozen=True)
class _Pieces:
    library: _Library
    prefix: str

    def bytes_of(self, token: str) -> bytes:
        continues = token.startswith(self.prefix) and token != self.prefix
        return token.removeprefix(self.prefix).encode() if continues else b" " + token.encode()

    def spell(self, text: bytes, ids: Ids) -> list[int | None]:
        found: list[int | None] = []
        for number, word in enumerate(self.library.words(text)):
            spaced = b" " + word
            may_continue = number == 0 and text.startswith(word) and spaced not in ids
            readings = (word, spaced) if may_continue else (spaced,)
            found += next(filter(None, (_longest_first(each, ids) for each in readings)), [None])
        return found or _unknown(text)


@dataclass(frozen=True)
class _Characters:
    def bytes_of(self, token: str) -> bytes:
        return token.encode()

    def spell(self, text: bytes, ids: Ids) -> list[int | None]:
        characters = text.decode(errors="surrogateescape")  # half characters: byte by byte
        return [ids.get(each.encode(errors="surrogateescape")) for each in characters]


@dataclass(frozen=True)
class _Bytes:
    library: _Library

    def bytes_of(self, token: str) -> bytes:
        try:
            return token.translate(_BYTE_OF).encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError(
                f"the token {token!r} is not written in the alphabet of byte-level BPE"
            ) from None

    def spell(self, text: bytes, ids: Ids) -> list[int | None]:
        return [*self.library.merged(text.decode("latin-1").translate(_CHARACTER_OF))]


def _kind(tokenizer: Tokenizer, document: dict[str, Any]) -> _Kind:
    library, model = _Library(tokenizer.to_json()), document["model"]
    if model["type"] == "WordLevel":
        return _Words(library)
    if model["type"] == "WordPiece":
        return _Pieces(library, model["continuing_subword_prefix"])
    marked = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if _is_byte_level(document["pre_tokenizer"]) and not marked:
        _check_bytes(model["vocab"])
        return _Bytes(library)
    if tokenizer.kind == "char":
        return _Characters()
    raise ValueError(
        f"the {tokenizer.kind} tokenizer of {tokenizer.vocab_size:,} tokens is not byte-level, so"
        " that nobody knows which bytes its tokens stand for: take a byte-level one"
    )


def _is_byte_level(pre_tokenizer: dict[str, Any] | None) -> bool:
    parts = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    return any(part is not None and part["type"] == "ByteLevel" for part in parts)


def _check_bytes(vocabulary: Mapping[str, int]) -> None:
    # The library drops a byte that it has no token for, without a word.
    if missing := sum(character not in vocabulary for character in _CHARACTER_OF.values()):
        raise ValueError(
            f"byte-level BPE must have a token for each of the 256 bytes, and {missing} of them"
            " are missing"
        )


def _unknown(text: bytes) -> list[int | None]:
    return [None] if text else []


def _longest_first(text: bytes, ids: Ids) -> list[int | None] | None:
    """WordPiece's way; None where it gets stuck."""
    found: list[int | None] = []
    start = 0
    while start < len(text):
        ends = range(len(text), start, -1)
        end = next((end for end in ends if text[start:end] in ids), None)
        if end is None:
            return None
        found.append(ids[text[start:end]])
        start = end
    return found


def _alphabet() -> list[str]:
    """Byte-level BPE's character for each byte.

    Latin-1's visible characters stand for themselves, and the other 68 bytes, in order, for the
    code points from 256.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 256 + 68))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


_CHARACTER_OF = dict(enumerate(_alphabet()))
# Latin-1's other characters are not in the alphabet, and must not pass for bytes.
_BYTE_OF = dict.fromkeys(range(256), "\uffff") | {
    ord(character): chr(byte) for byte, character in _CHARACTER_OF.items()
}
