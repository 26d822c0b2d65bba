"""Learn WordPiece's pieces with a result that depends on the words' counts alone.

HuggingFace's WordPiece trainer numbers the symbols "x" (at a word's start) and "##x" (inside) in
the order of a randomly seeded hash map and breaks ties by these numbers, so that two runs on the
same text differ.  Its BPE trainer numbers its symbols by code point.  So each symbol gets a private
code point here, BPE is trained on words written in those, and the result is written back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

PREFIX = "##"
LONGEST_WORD = 100  # characters; WordPiece takes time quadratic in them

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
    return [_written_back([plain[character] for character in piece]) for piece in learnt]


def _symbols(word: str) -> list[str]:
    return [word[0], *(PREFIX + character for character in word[1:])]


def _written_back(symbols: list[str]) -> str:
    return symbols[0] + "".join(symbol.removeprefix(PREFIX) for symbol in symbols[1:])


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
