"""Tokenizers from words or from texts.

Texts are any iterator of strings: public text, or what a private model says.  The result depends
on how often things occur in them and not on their order; ties go by the text itself.  `size` counts
all ids, BOS, EOS and UNK among them, and is an upper bound: a short text has fewer words.  Where
the texts come from is the caller's to say; unsaid, it is "unknown", which voids the guarantee.
"""

from __future__ import annotations

import json
import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, get_args

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from tacit.privacy import checks
from tacit.tokenizers import normalisation as normalisations
from tacit.tokenizers import wordpiece
from tacit.tokenizers.normalisation import Normalisation
from tacit.tokenizers.provenance import ORACLE, UNKNOWN
from tacit.tokenizers.tokenizer import BOS, EOS, UNK, Kind, Tokenizer

if TYPE_CHECKING:
    from tacit.corpus.source import UserSource

SPECIAL = (BOS, EOS, UNK)

_OCCURRENCES = 1_000_000  # words in the texts that are made of a list of words

_Parts = tuple[models.Model, pre_tokenizers.PreTokenizer, decoders.Decoder]

# The least size of each kind, and what has to find room in it.
_LEAST = {
    "word": (len(SPECIAL) + 1, ""),
    "bpe": (2 + 256, " (BOS, EOS and the 256 bytes)"),
    "wordpiece": (len(SPECIAL) + 2, ""),
    "char": (len(SPECIAL) + 1, ""),
}


def word_level(
    words: Iterable[str],
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """A dictionary: the words get the ids 3, 4, ... in the order given, everything else is UNK.

    A word that the normalisation would change or split could never be matched, and is refused.
    """
    index = normalisations.index_words(words, normalisation)
    return _assemble(_word_parts(index), normalisation, provenance)


def dictionary(
    weights: Mapping[str, float],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """The dictionary of the heaviest words, and last the ASCII punctuation that lists leave out."""
    checks.whole("size", size)
    marks = [mark for mark in string.punctuation if mark not in weights]
    least = len(SPECIAL) + len(marks) + 1
    if size < least:
        raise ValueError(f"size must be at least {least} for a list of words, got {size}")
    words = most_frequent(weights, size - least + 1) + marks
    return word_level(words, normalisation=normalisation, provenance=provenance)


def texts_of(weights: Mapping[str, float], words_per_text: int) -> Iterator[str]:
    """Texts in which each word is as often as its share of a million words, and at least once.

    Words stand with a space before them, as inside a text, except for the first word of a text.
    """
    scale = _OCCURRENCES / math.fsum(weights.values())
    repeated = (
        word for word in most_frequent(weights) for _ in range(max(round(weights[word] * scale), 1))
    )
    while text := " ".join(islice(repeated, words_per_text)):
        yield text


def learn(
    kind: Kind,
    texts: Iterable[str],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """A tokenizer of at most `size` tokens, learnt from texts.

    word       the dictionary of the most frequent words
    bpe        byte-level BPE (Sennrich 2016): any text at all, without UNK.  `decode(encode(text))`
               is the normalised text, so with the normalisation `none` the text itself
    wordpiece  WordPiece (Schuster 2012): a word is UNK only if one of its characters is too rare
    char       one token per character, the most frequent ones; the space is always among them
    """
    if kind not in _LEAST:
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    checks.whole("size", size)
    least, because = _LEAST[kind]
    if size < least:
        raise ValueError(f"size must be at least {least} for kind {kind!r}{because}, got {size}")
    room = size - len(SPECIAL)
    if kind == "bpe":
        parts = _byte_parts(texts, size, normalisation)
    elif kind == "char":
        counts = Counter[str]()
        for text in normalisations.normalised(texts, normalisation):
            counts.update(text)
        del counts[" "]
        parts = _character_parts([" ", *most_frequent(counts, room - 1)])
    else:
        counts = normalisations.count_words(texts, normalisation)
        if kind == "word":
            parts = _word_parts(most_frequent(counts, room))
        else:
            parts = _piece_parts(wordpiece.learn_pieces(counts, room))
    return _assemble(parts, normalisation, provenance)


def oracle(
    source: UserSource, kind: Kind, size: int, normalisation: Normalisation = "papers"
) -> Tokenizer:
    """A tokenizer learnt from the users' own text, for comparison only: it voids the guarantee."""
    texts = (text for user in range(len(source)) for text in source.texts(user))
    return learn(kind, texts, size, normalisation=normalisation, provenance=ORACLE)


def most_frequent(counts: Mapping[str, float], limit: int | None = None) -> list[str]:
    """The keys with the largest counts, largest first; ties go by code points."""
    return sorted(counts, key=lambda key: (-counts[key], key))[:limit]


# The parts of a tokenizer of each kind: its model, what splits a text, and its decoder.


def _assemble(parts: _Parts, normalisation: Normalisation, provenance: str) -> Tokenizer:
    """A tokenizer from the library's parts; its model has BOS and EOS as 0 and 1."""
    model, splitter, decoder = parts
    backend = tokenizers.Tokenizer(model)
    if (rule := normalisations.normalizer(normalisation)) is not None:
        backend.normalizer = rule
    backend.pre_tokenizer = splitter
    backend.decoder = decoder
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", pair=None, special_tokens=[(BOS, 0), (EOS, 1)]
    )
    return Tokenizer.of(json.loads(backend.to_str()), provenance)


def _word_parts(words: Iterable[str]) -> _Parts:
    model = models.WordLevel(_ids([*SPECIAL, *words]), unk_token=UNK)
    # No word has the brackets of BOS in it, so this prefix only ever means "none".
    return model, normalisations.word_split(), _joined_by_spaces(continuing=BOS)


def _piece_parts(pieces: Iterable[str]) -> _Parts:
    model = models.WordPiece(
        _ids([*SPECIAL, *pieces]),
        unk_token=UNK,
        continuing_subword_prefix=wordpiece.PREFIX,
        max_input_chars_per_word=wordpiece.LONGEST_WORD,
    )
    return model, normalisations.word_split(), _joined_by_spaces(continuing=wordpiece.PREFIX)


def _character_parts(characters: Iterable[str]) -> _Parts:
    model = models.BPE(_ids([*SPECIAL, *characters]), [], unk_token=UNK)
    decoder = decoders.Sequence([_without_ends(""), decoders.Fuse()])
    return model, normalisations.word_split(spaced=True), decoder


def _byte_parts(texts: Iterable[str], size: int, normalisation: Normalisation) -> _Parts:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([normalisations.word_split(spaced=True), byte_level])
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalisations.normalizer(normalisation)
    backend.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(normalisations.strings(texts), trainer)
    trained = json.loads(backend.to_str())["model"]
    model = models.BPE(trained["vocab"], [(left, right) for left, right in trained["merges"]])
    return model, splitter, decoders.Sequence([_without_ends(""), decoders.ByteLevel()])


def _ids(tokens: Iterable[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate(tokens)}


def _joined_by_spaces(continuing: str) -> decoders.Decoder:
    """Tokens with spaces between, except before those that start with `continuing`."""
    parts = [decoders.WordPiece(prefix=continuing, cleanup=False), decoders.Fuse()]
    return decoders.Sequence([*parts, _without_ends(" ?")])


def _without_ends(space: str) -> decoders.Decoder:
    """Drops BOS and EOS, so that the plain library too decodes to nothing but the text."""
    return decoders.Replace(Regex(f"{BOS}{space}|{space}{EOS}"), "")
