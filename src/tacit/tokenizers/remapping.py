"""A model's vectors for another tokenizer: Bagdasaryan et al. 2022, section 4.3 and REMAP.

A new token begins with the mean of the vectors of the old tokens that spell it:

    map[t, u] = (how often u is among the old tokens that spell t) / (how many those are)
    embedding <- map . embedding

Algorithm 1 makes `map` new x old, as the product needs it, but then writes map[old, new]: the
order here is that of the product.  It also assigns 1/len rather than adds it, so that an old token
that occurs twice in a new one would count once; here it counts twice, and every row sums to 1.

Tokens are compared as bytes, never as strings.  A token of the same bytes maps one to one, and
BOS, EOS and UNK go by what they are for, whatever they are called.  From a dictionary, a word that
it lacks begins as a copy of UNK.

A token stands for the bytes of normalised text that it takes up, in UTF-8.  What has to be settled
is where each kind has its spaces:

    word        "cat" is b" cat": a word owns the space before it
    wordpiece   "cat" is b" cat", and "##s", which continues a word, is b"s"
    bpe         byte-level: " cat" and "cat" are two tokens, b" cat" and b"cat"; a token may be
                half of a character
    char        "c" is b"c", and the space is a token of its own

In the other direction, the token of exactly these bytes spells them, if there is one.  Otherwise:

    bpe         the tokenizer's own merges, applied to the bytes
    char        each character
    word        each word; without a space before it, as at the start of a text, it is the same word
    wordpiece   each word, the longest piece first; bytes that begin without a space are a whole
                word if there is one, else they continue a word, else they begin one

What nothing spells is UNK: with dictionaries and pieces the whole word, for half a character too.

Guarantee: a token with one source keeps every bit, so a tokenizer onto itself changes nothing.  The
map is a function of two public vocabularies, and applying it to a release is post-processing.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse
import tokenizers
from numpy.typing import NDArray

from tacit.tokenizers.normalisation import name_of
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
        before, after = _Spelling.of(old), _Spelling.of(new)
        # Tokens are of normalised text, so their bytes compare under one normalisation only.
        if before.document["normalizer"] != after.document["normalizer"]:
            known = [name_of(spelling.document) for spelling in (before, after)]
            names = [repr(name) if name else "of another library" for name in known]
            raise ValueError(
                f"the old tokenizer has the normalisation {names[0]} and the new one {names[1]}:"
                " their tokens are of different texts, so train the new one with that of the old"
            )
        sources = (
            (by_role[id],) if text is None else tuple(before.spell(text))
            for id, text in enumerate(after.tokens)
        )
        return cls(old.vocab_size, tuple(sources))

    @property
    def new_size(self) -> int:
        """The number of tokens of the new vocabulary."""
        return len(self.sources)

    @cached_property
    def copied(self) -> NDArray[np.bool_]:
        """Which new rows have one source, and are copies of it."""
        return np.equal(self._lengths, 1)

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
        first_sources = self._flat[np.cumsum(self._lengths) - self._lengths]
        result = rows[first_sources]  # bit for bit
        averaged = np.flatnonzero(~self.copied)
        if averaged.size:
            flat = rows.reshape(self.old_size, math.prod(rows.shape[1:])).astype(np.float64)
            means = (self._occurrences[averaged] @ flat) / self._lengths[averaged, np.newaxis]
            if not np.issubdtype(values.dtype, np.inexact):
                np.rint(means, out=means)
            result[averaged] = means.reshape(len(averaged), *rows.shape[1:]).astype(values.dtype)
        return np.ascontiguousarray(np.moveaxis(result, 0, axis))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.fromiter(map(len, self.sources), np.int64, len(self.sources))

    @cached_property
    def _flat(self) -> NDArray[np.int64]:
        """All sources, one new token after the other."""
        return np.fromiter(chain.from_iterable(self.sources), np.int64)

    @cached_property
    def _occurrences(self) -> scipy.sparse.csr_array:
        """How often each old token is among the sources of each new one."""
        ends = np.append(0, np.cumsum(self._lengths))
        counts = scipy.sparse.csr_array(
            (np.ones(len(self._flat)), self._flat.copy(), ends),
            shape=(self.new_size, self.old_size),
        )
        counts.sum_duplicates()
        return counts


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


class _Spelling(ABC):
    """Tokens as bytes, and bytes as tokens, for one tokenizer.

    `tokens` has the bytes of each token by id, and None for BOS, EOS and UNK, which are no text.
    """

    def __init__(self, tokenizer: Tokenizer, document: dict[str, Any]) -> None:
        self.document = document
        self.unk = tokenizer.unk
        self.tokens: list[bytes | None] = [None] * tokenizer.vocab_size
        for token, id in document["model"]["vocab"].items():
            if id not in (tokenizer.bos, tokenizer.eos, tokenizer.unk):
                self.tokens[id] = self._bytes_of(token)
        self.ids = {text: id for id, text in enumerate(self.tokens) if text is not None}

    @staticmethod
    def of(tokenizer: Tokenizer) -> _Spelling:
        """The spelling of a tokenizer; `ValueError` if its tokens do not stand for bytes."""
        document = json.loads(tokenizer.to_json())
        model = document["model"]
        if model["type"] in ("WordLevel", "WordPiece"):
            return _Words(tokenizer, document)
        marked = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        if _is_byte_level(document["pre_tokenizer"]) and not marked:
            return _Bytes(tokenizer, document)
        if tokenizer.kind == "char":
            return _Characters(tokenizer, document)
        raise ValueError(
            f"the {tokenizer.kind} tokenizer of {tokenizer.vocab_size:,} tokens is not byte-level,"
            " so that its tokens do not tell which bytes they stand for: take a byte-level one"
        )

    def spell(self, text: bytes) -> list[int]:
        """The ids that spell these bytes, UNK where nothing does."""
        if (id := self.ids.get(text)) is not None:
            return [id]
        ids = (self.unk if id is None else id for id in self._cut(text))
        return [id for id in ids if id is not None]

    @abstractmethod
    def _bytes_of(self, token: str) -> bytes:
        """The bytes that an entry of the vocabulary stands for."""

    @abstractmethod
    def _cut(self, text: bytes) -> list[int | None]:
        """The ids that spell bytes for which there is no single token; None stands for UNK."""

    @cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        """The plain library's tokenizer, read when it is first needed."""
        return tokenizers.Tokenizer.from_str(json.dumps(self.document))

    def _split(self, text: bytes) -> list[bytes]:
        """The words, without the space between; none if there is half a character in the text."""
        try:
            whole = text.decode()
        except UnicodeDecodeError:
            return []
        splitter = self._backend.pre_tokenizer
        if splitter is None:
            return [text] if text else []
        return [word.encode() for word, _ in splitter.pre_tokenize_str(whole)]


class _Words(_Spelling):
    """Whole words, and with WordPiece the pieces that continue a word."""

    def _bytes_of(self, token: str) -> bytes:
        prefix = self.document["model"].get("continuing_subword_prefix")
        continues = prefix is not None and token.startswith(prefix) and token != prefix
        return token.removeprefix(prefix).encode() if continues else b" " + token.encode()

    def _cut(self, text: bytes) -> list[int | None]:
        ids: list[int | None] = []
        for number, word in enumerate(self._split(text)):
            spaced = b" " + word
            may_continue = number == 0 and text.startswith(word) and spaced not in self.ids
            readings = (word, spaced) if may_continue else (spaced,)
            ids += next(filter(None, map(self._longest_first, readings)), [None])
        return ids or ([None] if text else [])

    def _longest_first(self, text: bytes) -> list[int] | None:
        """WordPiece's way of cutting a word; None where it gets stuck, as any unknown word does."""
        ids = []
        start = 0
        while start < len(text):
            ends = range(len(text), start, -1)
            end = next((end for end in ends if text[start:end] in self.ids), None)
            if end is None:
                return None
            ids.append(self.ids[text[start:end]])
            start = end
        return ids


class _Characters(_Spelling):
    def _bytes_of(self, token: str) -> bytes:
        return token.encode()

    def _cut(self, text: bytes) -> list[int | None]:
        characters = text.decode(errors="surrogateescape")  # half characters: byte by byte
        return [self.ids.get(each.encode(errors="surrogateescape")) for each in characters]


class _Bytes(_Spelling):
    def __init__(self, tokenizer: Tokenizer, document: dict[str, Any]) -> None:
        # The library silently drops a byte that it has no token for.
        vocabulary = document["model"]["vocab"]
        if missing := sum(character not in vocabulary for character in _CHARACTER_OF.values()):
            raise ValueError(
                f"byte-level BPE must have a token for each of the 256 bytes, and {missing} of them"
                " are missing"
            )
        super().__init__(tokenizer, document)

    def _bytes_of(self, token: str) -> bytes:
        try:
            return token.translate(_BYTE_OF).encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError(
                f"the token {token!r} is not written in the alphabet of byte-level BPE"
            ) from None

    def _cut(self, text: bytes) -> list[int | None]:
        written = text.decode("latin-1").translate(_CHARACTER_OF)
        return [token.id for token in self._backend.model.tokenize(written)]


def _is_byte_level(pre_tokenizer: dict[str, Any] | None) -> bool:
    parts = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    return any(part is not None and part["type"] == "ByteLevel" for part in parts)


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
