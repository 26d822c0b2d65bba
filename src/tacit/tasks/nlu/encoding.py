"""From utterances to the tensors that a model trains on.

An encoder is how a kind of model reads tokens: `WordEncoder` for CLC, `PieceEncoder` for BERT.  All
text is looked up once: `prepare` makes arrays of it, and after that a batch is cut out by indices
and padded to the longest of its utterances.

A vocabulary is part of what is released (design rule 9), so an encoder says where its words come
from.  Words taken from the training utterances are an oracle's, and void a guarantee.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.mechanisms.method import Indices
from tacit.models.clc import PADDING, UNKNOWN_WORD
from tacit.models.understanding import UtteranceBatch
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.build import SPECIAL, most_frequent
from tacit.tokenizers.normalisation import normalised
from tacit.tokenizers.public import DEFAULT, PublicSource
from tacit.tokenizers.wordpiece import CLS, PAD, SEP, UNK, PieceVocabulary

# What the model reads by name, and the mask [B, T] of tokens.
_ModelInput = tuple[dict[str, Tensor], Tensor]

_ALPHABET = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_UNKNOWN_CHARACTER = PADDING + 1
_CHARACTER_IDS = {letter: id for id, letter in enumerate(_ALPHABET, _UNKNOWN_CHARACTER + 1)}


@dataclass(frozen=True)
class Labels:
    """The intents and tags that a model knows, in the order of its outputs: a public schema."""

    intents: tuple[str, ...]
    tags: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("intents", "tags"):
            object.__setattr__(self, name, _distinct(name, getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"{name} must have at least one name, got none")

    def ids(self, utterance: Utterance) -> tuple[int, list[int]]:
        """The indices of an utterance's intent and tags; `ValueError` if one is not a label."""
        intents, tags = self._ids
        intent = _id_of("intent", utterance.intent, intents)
        return intent, [_id_of("tag", tag, tags) for tag in utterance.tags]

    @cached_property
    def _ids(self) -> tuple[dict[str, int], dict[str, int]]:
        """The index of each intent, and of each tag."""
        intents, tags = (
            {name: id for id, name in enumerate(names)} for names in (self.intents, self.tags)
        )
        return intents, tags


@dataclass(frozen=True)
class Ragged:
    """Rows of whole numbers of different lengths, one after the other in one array."""

    values: NDArray[Any]
    starts: Indices
    lengths: Indices

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """These rows, in one array."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        values = np.fromiter((value for row in rows for value in row), np.int64, lengths.sum())
        return cls(values, np.cumsum(lengths) - lengths, lengths)

    def padded(self, indices: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Some rows as [B, T] with T the longest of them, 0 behind each, and the mask of values."""
        lengths = self.lengths[indices][:, None]
        columns = np.arange(lengths.max(initial=1))
        mask = columns < lengths
        positions = np.where(mask, self.starts[indices][:, None] + columns, 0)
        return np.where(mask, self.values[positions], 0), mask


@dataclass(frozen=True)
class WordEncoder:
    """How CLC reads: words and their characters as ids.

    A word is looked up as `tacit.tokenizers.normalisation` writes it (in lower case), and is the
    unknown word if the vocabulary does not have it.  Characters are those of the token as it
    stands, capitals included, from an alphabet that is fixed: printable ASCII, and one id for all
    others.  Only the first `longest_word` characters of a word are read.
    """

    words: tuple[str, ...]
    provenance: str
    longest_word: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _distinct("words", self.words))
        origins.check(self.provenance)
        checks.whole("longest_word", self.longest_word, at_least=1)

    @property
    def in_words(self) -> str:
        """What it is and how large."""
        return f"a vocabulary of {len(self.words):,} words"

    @classmethod
    def from_public(cls, source: str | Path = DEFAULT, size: int = 10_000) -> WordEncoder:
        """The `size` most frequent words of a public text or list; to name it declares it so.

        Special tokens are left out: the model has an id for unknown words itself.
        """
        tokenizer = PublicSource(source).tokenizer("word", size + len(SPECIAL))
        words = (tokenizer.token(id) for id in range(tokenizer.vocab_size))
        return cls(tuple(word for word in words if word not in SPECIAL), tokenizer.provenance)

    @classmethod
    def oracle(cls, utterances: Sequence[Utterance], size: int | None = None) -> WordEncoder:
        """The words of the training utterances themselves: for comparison, without a guarantee."""
        counts = Counter(token for utterance in utterances for token in utterance.tokens)
        written = Counter[str]()
        for word, count in zip(normalised(counts, "papers"), counts.values(), strict=True):
            written[word] += count
        return cls(tuple(most_frequent(written, size)), origins.ORACLE)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a model that it decides: the numbers of word ids and character ids."""
        characters = _UNKNOWN_CHARACTER + 1 + len(_ALPHABET)
        return {"words": len(self.words) + 1, "characters": characters}

    def prepare(self, utterances: Sequence[Sequence[str]]) -> _PreparedWords:
        """The tokens of utterances, looked up; each different token once."""
        tokens: dict[str, int] = {}
        rows = [[tokens.setdefault(token, len(tokens)) for token in each] for each in utterances]
        ids = [self.id(word) for word in normalised(tokens, "papers")]
        characters = np.full((len(tokens), self.longest_word), PADDING, np.uint8)
        for row, token in enumerate(tokens):
            spelt = [_CHARACTER_IDS.get(letter, _UNKNOWN_CHARACTER) for letter in token]
            characters[row, : len(spelt)] = spelt[: self.longest_word]
        return _PreparedWords(Ragged.of(rows), np.array(ids, np.int64), characters)

    def id(self, word: str) -> int:
        """The id of a word as it is written in the vocabulary; that of the unknown word if not."""
        return self._ids.get(word, UNKNOWN_WORD)

    def to_json(self) -> dict[str, Any]:
        """What a model file keeps of it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> WordEncoder:
        """The encoder of a model file."""
        return cls(tuple(content["words"]), content["provenance"], content["longest_word"])

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self.words, UNKNOWN_WORD + 1)}


@dataclass(frozen=True)
class _PreparedWords:
    """Utterances as rows of a table of their different tokens.

    A token's word and characters are kept once, however often it is said.
    """

    rows: Ragged
    word_ids: Indices
    characters: NDArray[np.uint8]  # [different tokens, longest word]

    @property
    def lengths(self) -> Indices:
        """The number of tokens of each utterance."""
        return self.rows.lengths

    def batch(self, indices: Indices) -> _ModelInput:
        """These utterances, padded to the longest and, in characters, to the longest word."""
        rows, mask = self.rows.padded(indices)
        words = np.where(mask, self.word_ids[rows], UNKNOWN_WORD)
        characters = np.where(mask[..., None], self.characters[rows], PADDING)
        longest = (characters != PADDING).any(axis=(0, 1)).sum()
        inputs = {
            "words": torch.from_numpy(words),
            "characters": torch.from_numpy(characters[..., :longest].astype(np.int64)),
        }
        return inputs, torch.from_numpy(mask)


@dataclass(frozen=True)
class PieceEncoder:
    """How BERT reads: [CLS], the pieces of an utterance's tokens, [SEP].

    A token is tagged by its first piece; `first` says where that is.  A token of which nothing is
    left (a control character, say) is [UNK], so that every token has a piece.

    An utterance of more than `longest` pieces, [CLS] and [SEP] included, is refused: what is cut
    off could not be tagged.  Of one token, though, no more than `longest_token` pieces are read, so
    that an address or a number of many digits does not crowd out everything else.
    """

    vocabulary: PieceVocabulary
    longest: int = 128
    longest_token: int = 12

    def __post_init__(self) -> None:
        checks.whole("longest", self.longest, at_least=3)
        checks.whole("longest_token", self.longest_token, at_least=1)

    @classmethod
    def from_folder(cls, folder: str | Path, provenance: str | None = None) -> PieceEncoder:
        """The encoder of a pre-trained BERT in a local folder.

        `provenance` declares where the vocabulary is from, for a folder that does not say so.
        """
        from tacit.models.bert import pretrained_sizes

        vocabulary = PieceVocabulary.load(folder, provenance=provenance)
        return cls(vocabulary, pretrained_sizes(folder).positions)

    @property
    def provenance(self) -> str:
        """Where its vocabulary comes from: see `tacit.tokenizers.provenance`."""
        return self.vocabulary.provenance

    @property
    def in_words(self) -> str:
        """What it is and how large."""
        return f"a vocabulary of {len(self.vocabulary):,} pieces of words"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a model that it decides: the pieces, and those of the longest text."""
        return {"pieces": len(self.vocabulary), "positions": self.longest}

    def prepare(self, utterances: Sequence[Sequence[str]]) -> _PreparedPieces:
        """The tokens of utterances in pieces; each different token is cut once."""
        tokens = list(dict.fromkeys(token for each in utterances for token in each))
        unknown = [self.vocabulary.id(UNK)]
        cut = [ids[: self.longest_token] or unknown for ids in self.vocabulary.cut(tokens)]
        pieces_of = dict(zip(tokens, cut, strict=True))
        begin, end = self.vocabulary.id(CLS), self.vocabulary.id(SEP)
        rows, firsts = [], []
        for number, utterance in enumerate(utterances, 1):
            row, first = [begin], []
            for token in utterance:
                first.append(len(row))
                row += pieces_of[token]
            row.append(end)
            if len(row) > self.longest:  # the message must not quote what somebody said
                raise ValueError(
                    f"utterance {number} has {len(first)} tokens in {len(row)} pieces, with [CLS]"
                    f" and [SEP], and the model has places for {self.longest}: split it, or leave"
                    " it out"
                )
            rows.append(row)
            firsts.append(first)
        return _PreparedPieces(Ragged.of(rows), Ragged.of(firsts), self.vocabulary.id(PAD))

    def to_json(self) -> dict[str, Any]:
        """What a model file keeps of it."""
        return {
            "pieces": list(self.vocabulary.pieces),
            "lower_case": self.vocabulary.lower_case,
            "provenance": self.provenance,
            "longest": self.longest,
            "longest_token": self.longest_token,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PieceEncoder:
        """The encoder of a model file."""
        vocabulary = PieceVocabulary(
            tuple(content["pieces"]), content["lower_case"], content["provenance"]
        )
        return cls(vocabulary, content["longest"], content["longest_token"])


@dataclass(frozen=True)
class _PreparedPieces:
    """Utterances as rows of pieces, and of the indices at which their tokens begin."""

    pieces: Ragged
    first: Ragged
    padding: int

    @property
    def lengths(self) -> Indices:
        """The number of tokens of each utterance."""
        return self.first.lengths

    def batch(self, indices: Indices) -> _ModelInput:
        """These utterances, padded to the longest in tokens and in pieces."""
        pieces, is_piece = self.pieces.padded(indices)
        first, mask = self.first.padded(indices)
        inputs = {
            "pieces": torch.from_numpy(np.where(is_piece, pieces, self.padding)),
            "piece_mask": torch.from_numpy(is_piece),
            "first": torch.from_numpy(first),
        }
        return inputs, torch.from_numpy(mask)


Encoder = WordEncoder | PieceEncoder


@dataclass(frozen=True)
class EncodedUtterances:
    """Utterances with their labels, ready to be cut into batches.

    `inputs` has what the model reads, `tags` a row of tag indices for each utterance, and
    `intents` one intent index for each.
    """

    inputs: _PreparedWords | _PreparedPieces
    tags: Ragged
    intents: Indices

    def __len__(self) -> int:
        return len(self.intents)

    @property
    def lengths(self) -> Indices:
        """The number of tokens of each utterance."""
        return self.inputs.lengths

    def batch(self, indices: Sequence[int] | Indices) -> UtteranceBatch:
        """These utterances in this order, padded to the longest of them."""
        chosen = np.asarray(indices, dtype=np.int64)
        inputs, mask = self.inputs.batch(chosen)
        tags, _ = self.tags.padded(chosen)
        return UtteranceBatch(
            inputs, mask, torch.from_numpy(tags), torch.from_numpy(self.intents[chosen])
        )


def encode(encoder: Encoder, labels: Labels, utterances: Sequence[Utterance]) -> EncodedUtterances:
    """All utterances at once, with their labels as indices.

    Raises:
        ValueError: naming the utterance, if its intent or a tag is none of the labels.
    """
    tags, intents = [], []
    for number, utterance in enumerate(utterances, 1):
        try:
            intent, tag_ids = labels.ids(utterance)
        except ValueError as problem:
            raise ValueError(f"utterance {number}: {problem}") from None
        intents.append(intent)
        tags.append(tag_ids)
    return EncodedUtterances(
        encoder.prepare([utterance.tokens for utterance in utterances]),
        Ragged.of(tags),
        np.array(intents, dtype=np.int64),
    )


def _distinct(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names, if they are strings that are not empty and differ from each other."""
    listed = tuple(names)
    for name, count in Counter(listed).items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what} must be strings that are not empty, got {name!r}")
        if count > 1:
            raise ValueError(f"{what} must differ from each other, got {name!r} twice")
    return listed


def _id_of(what: str, name: str, ids: dict[str, int]) -> int:
    if name not in ids:
        listed = ", ".join(list(ids)[:5]) + (", ..." if len(ids) > 5 else "")
        raise ValueError(f"the {what} {name!r} is none of the model's {len(ids)}: {listed}")
    return ids[name]
