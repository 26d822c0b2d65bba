"""Tokenizers from words or from texts.

Texts are any iterator of strings: public text, or what a private model says.  The result depends
on how often things occur in them and not on their order; ties go by the text itself.  `size` counts
all ids, BOS, EOS and UNK among them, and is an upper bound: a short text has fewer words.  Where
the texts come from is the caller's to say; unsaid, it is "unknown", which voids the guarantee.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, get_args

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from tacit.privacy import checks
from tacit.tokenizers import normalisation as normalisations
from tacit.tokenizers import tokenizer as documents
from tacit.tokenizers import wordpiece
from tacit.tokenizers.normalisation import Normalisation
from tacit.tokenizers.provenance import ORACLE, UNKNOWN
from tacit.tokenizers.tokenizer import BOS, EOS, UNK, Kind, Tokenizer

if TYPE_CHECKING:
    from tacit.corpus.source import UserSource

SPECIAL = (BOS, EOS, UNK)
BYTES = 256


def word_level(
    words: Iterable[str],
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """A dictionary: the words get the ids 3, 4, ... in the order given, everything else is UNK.

    A word that the normalisation would change or split could never be found, and is refused.
    """
    vocabulary = {token: id for id, token in enumerate(SPECIAL)}
    words = list(normalisations.strings(words))
    for word, found in zip(words, normalisations.split_words(words, normalisation), strict=True):
        if found != [word]:
            raise ValueError(
                f"{word!r} can be no word of a dictionary with the normalisation {normalisation!r},"
                f" which makes {found} of it"
            )
        if word in vocabulary:
            raise ValueError(f"the word {word!r} is in the dictionary twice")
        vocabulary[word] = len(vocabulary)
    return Tokenizer(
        documents.assemble(
            models.WordLevel(vocabulary, unk_token=UNK),
            normalizer=normalisations.normalizer(normalisation),
            pre_tokenizer=normalisations.word_split(),
            # No word has the brackets of BOS in it, so this prefix only ever means "none".
            decoder=_joined_by_spaces(continuing=BOS),
            provenance=provenance,
        )
    )


def train_word_level(
    texts: Iterable[str],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """The dictionary of the most frequent words of the texts."""
    _check_size("word", size, len(SPECIAL) + 1)
    counts = normalisations.count_words(texts, normalisation)
    words = most_frequent(counts, size - len(SPECIAL))
    return word_level(words, normalisation=normalisation, provenance=provenance)


def train_bpe(
    texts: Iterable[str],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """Byte-level BPE (Sennrich 2016): any text at all, without UNK.

    `decode(encode(text))` is the normalised text, so with the normalisation `none` the text itself.
    """
    _check_size("bpe", size, BYTES + 2, f" (BOS, EOS and the {BYTES} bytes)")
    normalizer = normalisations.normalizer(normalisation)
    splitter = pre_tokenizers.Sequence(
        [
            normalisations.spaced_word_split(),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer
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
    return Tokenizer(
        documents.assemble(
            models.BPE(trained["vocab"], [(left, right) for left, right in trained["merges"]]),
            normalizer=normalizer,
            pre_tokenizer=splitter,
            decoder=decoders.Sequence([_without_ends(""), decoders.ByteLevel()]),
            provenance=provenance,
        )
    )


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """WordPiece (Schuster 2012): a word is UNK only if one of its characters is too rare."""
    _check_size("wordpiece", size, len(SPECIAL) + 2)
    counts = normalisations.count_words(texts, normalisation)
    pieces = wordpiece.learn_pieces(counts, size - len(SPECIAL))
    vocabulary = {token: id for id, token in enumerate([*SPECIAL, *pieces])}
    return Tokenizer(
        documents.assemble(
            models.WordPiece(
                vocabulary,
                unk_token=UNK,
                continuing_subword_prefix=wordpiece.PREFIX,
                max_input_chars_per_word=wordpiece.LONGEST_WORD,
            ),
            normalizer=normalisations.normalizer(normalisation),
            pre_tokenizer=normalisations.word_split(),
            decoder=_joined_by_spaces(continuing=wordpiece.PREFIX),
            provenance=provenance,
        )
    )


def char_level(
    texts: Iterable[str],
    size: int | None = None,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """One token per character: those of the texts (or of an alphabet), the most frequent first.

    The space is always one of them; a character that is not in the vocabulary is UNK.
    """
    if size is not None:
        _check_size("char", size, len(SPECIAL) + 1)
    texts = list(texts) if isinstance(texts, str) else texts
    counts: Counter[str] = Counter()
    for text in normalisations.normalised(texts, normalisation):
        counts.update(text)
    del counts[" "]
    room = None if size is None else size - len(SPECIAL) - 1
    tokens = [*SPECIAL, " ", *most_frequent(counts, room)]
    return Tokenizer(
        documents.assemble(
            models.BPE({token: id for id, token in enumerate(tokens)}, [], unk_token=UNK),
            normalizer=normalisations.normalizer(normalisation),
            pre_tokenizer=normalisations.spaced_word_split(),
            decoder=decoders.Sequence([_without_ends(""), decoders.Fuse()]),
            provenance=provenance,
        )
    )


def learn(
    kind: Kind,
    texts: Iterable[str],
    size: int,
    *,
    normalisation: Normalisation = "papers",
    provenance: str = UNKNOWN,
) -> Tokenizer:
    """A tokenizer of a kind by its name."""
    trainers_by_kind = {
        "word": train_word_level,
        "bpe": train_bpe,
        "wordpiece": train_wordpiece,
        "char": char_level,
    }
    if kind not in trainers_by_kind:
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    train = trainers_by_kind[kind]
    return train(texts, size, normalisation=normalisation, provenance=provenance)


def oracle(
    source: UserSource, kind: Kind, size: int, *, normalisation: Normalisation = "papers"
) -> Tokenizer:
    """A tokenizer learnt from the users' own text, for comparison only: it voids the guarantee."""

    def texts() -> Iterator[str]:
        for index in range(len(source)):
            yield from source.texts(index)

    return learn(kind, texts(), size, normalisation=normalisation, provenance=ORACLE)


def most_frequent(counts: Mapping[str, float], limit: int | None = None) -> list[str]:
    """The keys with the largest counts, largest first; ties go by code points."""
    return sorted(counts, key=lambda key: (-counts[key], key))[:limit]


def _check_size(kind: str, size: int, least: int, because: str = "") -> None:
    checks.whole("size", size)
    if size < least:
        raise ValueError(f"size must be at least {least} for kind {kind!r}{because}, got {size}")


def _joined_by_spaces(continuing: str) -> decoders.Decoder:
    """Tokens with spaces between, except before those that start with `continuing`."""
    return decoders.Sequence(
        [
            decoders.WordPiece(prefix=continuing, cleanup=False),
            decoders.Fuse(),
            _without_ends(" ?"),
        ]
    )


def _without_ends(space: str) -> decoders.Decoder:
    """Drops BOS and EOS, so that the plain library too decodes to nothing but the text."""
    return decoders.Replace(Regex(f"{BOS}{space}|{space}{EOS}"), "")
