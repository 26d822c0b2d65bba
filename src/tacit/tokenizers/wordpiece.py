"""WordPiece: how its pieces are learnt, and the vocabulary of pieces that a BERT model reads.

HuggingFace's WordPiece trainer numbers the symbols "x" (at a word's start) and "##x" (inside) in
the order of a randomly seeded hash map and breaks ties by these numbers, so that two runs on the
same text differ.  Its BPE trainer numbers its symbols by code point.  So each symbol gets a private
code point here, BPE is trained on words written in those, and the result is written back: it
depends on the words' counts alone.

A BERT vocabulary has [PAD], [UNK], [CLS], [SEP] and [MASK] besides.  Text is normalised and split
as HuggingFace's BERT tokenizer does it (Devlin et al. 2019), so a vocabulary from elsewhere gives
the ids that its model was trained with.  One thing differs: the five special pieces are never
looked for in a text, so that no user can write one into it.

A folder with a pre-trained BERT is in HuggingFace's layout.  origin.json says on which public text
weights and vocabulary were learnt (design rule 9), with a digest of each file that decides about
the model, so that it cannot end up beside others by accident.  A folder without it is of unknown
origin, which voids a guarantee unless somebody declares where it is from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tacit.corpus.files import sha256_of
from tacit.privacy import checks, trusted
from tacit.privacy.documents import read_json
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.normalisation import check_unicode, strings

PREFIX = "##"
LONGEST_WORD = 100  # characters; WordPiece takes time quadratic in them
PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Beside a pre-trained model: on which public text it was learnt, and digests of these files.
ORIGIN_FILE = "origin.json"
DIGESTED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")

_PRIVATE = 0xF0000  # planes 15 and 16 have 131,068 code points for private use
_CHUNK = 10_000  # words per string handed over, to bound the memory


def learn_pieces(counts: Mapping[str, int], limit: int) -> list[str]:
    """At most `limit` pieces: single symbols by code point, then merges in the order learnt.

    At most half of the pieces are single symbols, the most frequent ones: rare characters are
    left to UNK rather than crowd out whole words.
    """
    usable = {word: count for word, count in counts.items() if len(word) <= LONGEST_WORD}
    frequency: Counter[str] = Counter()
    for word, count in usable.items():
        for symbol in _symbols(word):
            frequency[symbol] += count
    by_count = sorted(frequency, key=lambda symbol: (-frequency[symbol], symbol))
    alphabet = sorted(by_count[: min((limit + 1) // 2, 0x1FFFC)])
    code = {symbol: chr(_private_point(index)) for index, symbol in enumerate(alphabet)}
    plain = {character: symbol for symbol, character in code.items()}

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=limit,
        min_frequency=2,
        initial_alphabet=list(plain),
        show_progress=False,
    )
    backend.train_from_iterator(_encoded(usable, code), trainer)
    vocabulary = json.loads(backend.to_str())["model"]["vocab"]
    learnt = sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))
    symbols = ([plain[character] for character in piece] for piece in learnt)
    return [first + "".join(s.removeprefix(PREFIX) for s in rest) for first, *rest in symbols]


def _symbols(word: str) -> list[str]:
    return [word[0], *(PREFIX + character for character in word[1:])]


def _encoded(counts: Mapping[str, int], code: Mapping[str, str]) -> Iterator[str]:
    """Every word whose symbols all have a code, in private code points, as often as it occurs."""
    for word, count in counts.items():
        symbols = _symbols(word)
        if all(symbol in code for symbol in symbols):
            encoded = "".join(code[symbol] for symbol in symbols) + " "
            for start in range(0, count, _CHUNK):
                yield encoded * min(_CHUNK, count - start)


def _private_point(index: int) -> int:
    """The code point of a symbol; the last two of each plane are not characters."""
    return _PRIVATE + index if index < 0xFFFE else _PRIVATE + index + 2


@dataclass(frozen=True)
class PieceVocabulary:
    """Pieces in the order of their ids, whether text is lower-cased, and where they come from."""

    pieces: tuple[str, ...]
    lower_case: bool = True
    provenance: str = origins.UNKNOWN

    def __post_init__(self) -> None:
        origins.check(self.provenance)
        if missing := [name for name in SPECIAL if name not in self.pieces]:
            raise ValueError(
                f"the vocabulary has no {', '.join(missing)}: a BERT vocabulary has all of"
                f" {', '.join(SPECIAL)}"
            )
        if len(set(self.pieces)) != len(self.pieces):
            twice = next(piece for piece, count in Counter(self.pieces).items() if count > 1)
            raise ValueError(f"the piece {twice!r} is in the vocabulary twice")

    @classmethod
    def learn(
        cls, texts: Iterable[str], size: int, *, provenance: str = origins.UNKNOWN
    ) -> PieceVocabulary:
        """At most `size` lower-case pieces, the special ones among them, from texts.

        They depend on how often words occur and not on their order.
        """
        checks.whole("size", size)
        least = len(SPECIAL) + 2
        if size < least:
            raise ValueError(f"size must be at least {least} for kind 'wordpiece', got {size}")
        normaliser = normalizers.BertNormalizer(lowercase=True)
        split = pre_tokenizers.BertPreTokenizer()
        counts: Counter[str] = Counter()
        for text in strings(texts):
            words = split.pre_tokenize_str(normaliser.normalize_str(text))
            counts.update(word for word, _ in words)
        learnt = learn_pieces(counts, size - len(SPECIAL))
        return cls((*SPECIAL, *learnt), provenance=provenance)

    @classmethod
    def load(cls, path: str | Path, *, provenance: str | None = None) -> PieceVocabulary:
        """A vocabulary from tokenizer.json or vocab.txt, or from the one that a folder has.

        Its provenance is what origin.json in the folder says, else the one that is named here, else
        unknown.  A vocab.txt does not say whether text is lower-cased: it is if no piece has a
        capital.  `ValueError` if a file is damaged, or if origin.json says another provenance or is
        about other files than those beside it.
        """
        stated = _stated_origin(Path(path))
        if provenance is not None and stated not in (None, provenance):
            raise ValueError(f"{path} says that it is {stated!r}, and cannot be {provenance!r}")
        path = _file_at(Path(path))
        try:
            text = trusted.read_text(path)
            if path.suffix == ".json":
                pieces, lower_case = _parse(json.loads(text))
            else:
                pieces = text.splitlines()
                lower_case = all(piece == piece.lower() for piece in pieces if piece not in SPECIAL)
            return cls(tuple(pieces), lower_case, stated or provenance or origins.UNKNOWN)
        except (KeyError, TypeError, AttributeError, RecursionError) as mistake:
            raise ValueError(f"the vocabulary {path} is malformed: {mistake!r}") from mistake
        except ValueError as mistake:
            causes = {
                UnicodeDecodeError: "it is not UTF-8",
                json.JSONDecodeError: "it is cut off or not valid JSON",
            }
            why = causes.get(type(mistake), mistake)
            raise ValueError(f"the vocabulary {path} cannot be used: {why}") from mistake

    @property
    def why_void(self) -> str | None:
        """Why no guarantee holds for a model with this vocabulary, or None if one may."""
        return origins.why_void(self.provenance)

    def __len__(self) -> int:
        return len(self.pieces)

    def id(self, piece: str) -> int:
        """The id of a piece that is in the vocabulary."""
        return self._ids[piece]

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text's pieces, in parallel; no text influences the ids of another."""
        checked = [check_unicode(text) for text in texts]
        encodings = self._backend.encode_batch_fast(checked, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: id for id, piece in enumerate(self.pieces)}

    @cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(
            models.WordPiece(self._ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD)
        )
        backend.normalizer = normalizers.BertNormalizer(lowercase=self.lower_case)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend


class _Origin(TypedDict):
    """What origin.json says of the files beside it."""

    provenance: str
    sha256: dict[str, str]


def _file_at(path: Path) -> Path:
    names = ("tokenizer.json", "vocab.txt")
    candidates = [path / name for name in names] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ValueError(f"there is no {' and no '.join(map(str, candidates))}")


def _stated_origin(folder: Path) -> str | None:
    """The provenance in a folder's origin.json, or None where there is no such file."""
    path = folder / ORIGIN_FILE
    if not path.is_file():
        return None
    try:
        content = read_json(path, _Origin)
        stated, digests = content["provenance"], content["sha256"]
    except ValueError:
        raise ValueError(f"{path} is damaged: it does not say where the model is from") from None
    for name in DIGESTED_FILES:
        if not (folder / name).is_file() or sha256_of(folder / name) != digests.get(name):
            raise ValueError(
                f"{path} is about another {name}: it was changed, or taken away, after"
                " `tacit papers pretrain-bert` wrote it; delete origin.json and declare the"
                " provenance"
            )
    return origins.check(stated)


def _parse(document: dict[str, Any]) -> tuple[list[str], bool]:
    """The pieces of a tokenizer.json in the order of their ids, and whether it lower-cases."""
    model, normaliser = document["model"], document["normalizer"] or {}
    parts = {
        "model": (model["type"], "WordPiece"),
        "normalizer": (normaliser.get("type"), "BertNormalizer"),
        "pre_tokenizer": ((document["pre_tokenizer"] or {}).get("type"), "BertPreTokenizer"),
        "continuing_subword_prefix": (model["continuing_subword_prefix"], PREFIX),
    }
    for name, (actual, expected) in parts.items():
        if actual != expected:
            raise ValueError(f"its {name} is {actual!r}, and BERT's is {expected!r}")
    if normaliser["strip_accents"] not in (None, normaliser["lowercase"]):
        raise ValueError("it strips accents but does not lower-case, or the reverse")
    vocabulary = model["vocab"]
    pieces = sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))
    if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError("the ids of its vocabulary are not 0, 1, 2 and so on, each once")
    return pieces, bool(normaliser["lowercase"])
