"""Words to suggest after a typed text, whatever the tokenizer: the most probable whole words.

What is asked for depends on how the text ends:

- It is empty or ends in white space: the next word.
- It ends in a word that is complete: the next word, too.  With a dictionary a word is complete if
  it is in there.  With pieces of words it is if the model finds it at least as probable as every
  longer word that begins like it.
- It ends in anything else: words that begin with what was typed of the last one.  Where there are
  none, the next word.

The probability of a word is that of its tokens after the text before it, times that of whatever
ends a word (a space, a symbol, EOS) after them; several ways to write a word add up.  It is not
made relative to the words that begin with what was typed.  Words of several tokens are found by a
beam over tokens, so that a word can be missed, but what is found has its true probability or, if
one of its spellings fell out of the beam, a little less.  BOS, EOS and UNK are never suggested.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tacit.evaluation.decoder import Decoder, decoder_for
from tacit.evaluation.scoring import evaluating
from tacit.models.base import LanguageModel
from tacit.tokenizers.normalisation import WHITE_SPACE
from tacit.tokenizers.tokenizer import Tokenizer

_BEAM = 64
_LONGEST_WORD = 24  # tokens
_PIECE_MARK = "##"  # WordPiece: goes on with the word before it
_ASCII_SPACE = b"\t\n\x0b\x0c\r "
_HALF = "\ufffd"  # what decoding makes of half a character
_INSIDE = f"_'’{_HALF}"


@dataclass(frozen=True)
class Suggestion:
    """A word and the model's probability of it."""

    word: str
    probability: float


class Suggester:
    """A model and its tokenizer, ready for one text after the other.

    `beam` is how many beginnings of words the search keeps; words of one token need no search.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, beam: int = _BEAM) -> None:
        if model.config.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"the model has a vocabulary of {model.config.vocab_size} tokens and the tokenizer"
                f" one of {tokenizer.vocab_size}: use the tokenizer that it was trained with"
            )
        self._model, self._tokenizer, self._beam = model, tokenizer, beam
        special = {tokenizer.bos, tokenizer.eos, tokenizer.unk}
        self._pieces = [
            b"" if id in special else _piece(tokenizer, id) for id in range(tokenizer.vocab_size)
        ]
        words = [id not in special for id in range(tokenizer.vocab_size)]
        begins = [_begins_a_word(piece, tokenizer.kind) for piece in self._pieces]
        self._begins = torch.tensor([w and b for w, b in zip(words, begins, strict=True)])
        self._continues = torch.tensor([w and not b for w, b in zip(words, begins, strict=True)])
        self._ends = self._begins.clone()
        self._ends[tokenizer.eos] = True
        if tokenizer.kind == "wordpiece" and tokenizer.unk is not None:
            self._ends[tokenizer.unk] = True  # stands for a whole word
        spaced = [_stripped(piece) != piece for piece in self._pieces]
        self._after_space = (self._begins | self._continues) & ~torch.tensor(spaced)

    def suggest(self, text: str, top: int = 3) -> list[Suggestion]:
        """The `top` most probable words; see the module for which."""
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        typed = text.rstrip(WHITE_SPACE)
        ids, owners = self._tokenizer.word_ids(typed)
        ids, owners = ids[:-1], owners[:-1]  # EOS is not typed
        words = self._tokenizer.words(typed)
        with evaluating(self._model), torch.no_grad():
            if words and typed == text:
                last = len(words) - 1
                before = [id for id, owner in zip(ids, owners, strict=True) if owner != last]
                if completions := self._completions(before, words[last], top):
                    return completions
            return _best(self._words(ids, b"", top), top)

    def _completions(self, before: list[int], typed: str, top: int) -> list[Suggestion]:
        """Words that begin with what was typed; none if that is complete itself."""
        is_dictionary = self._tokenizer.kind == "word"
        if is_dictionary and self._tokenizer.token_id(typed) is not None:
            return []
        words = self._words(before, typed.encode(), top + 1)
        own = words.pop(typed, 0.0)
        return [] if own >= max(words.values(), default=0.0) else _best(words, top)

    def _words(self, before: list[int], prefix: bytes, top: int) -> dict[str, float]:
        """Probabilities of whole words after some tokens; those that begin with the prefix.

        A beam search over tokens, in which every word that is reached adds to the result.
        """
        width = max(self._beam, 2 * top)
        decoder = decoder_for(self._model, longest=len(before) + _LONGEST_WORD)
        for token in before:
            decoder.advance(torch.tensor([token]))
        beam = _Beam([b""], torch.zeros(1, dtype=torch.float64), decoder)
        allowed = (self._begins | self._continues if len(before) == 1 else self._begins)[None]
        words: dict[str, float] = defaultdict(float)
        for _ in range(_LONGEST_WORD):
            allowed = allowed & self._fitting(beam.spelled, prefix)
            beam = self._extended(beam, allowed, width)
            if not beam.spelled:
                break
            ends = beam.next_log_probs.masked_fill(~self._ends, -torch.inf)
            ended = beam.log_prob + torch.logsumexp(ends, dim=1)
            for row, spelled in enumerate(beam.spelled):
                word = spelled.decode(errors="replace")
                if spelled.startswith(prefix) and self._is_word(word):
                    score = ended[row] if self._can_go_on(spelled) else beam.log_prob[row]
                    words[word] += math.exp(float(score))
            allowed = torch.stack([self._going_on(spelled) for spelled in beam.spelled])
            best = sorted(words.values(), reverse=True)[:top]
            # Nothing that is still to come can be more probable than its beginning.
            if len(best) == top and math.exp(float(beam.log_prob.max())) < best[-1]:
                break
        return {word: probability for word, probability in words.items() if probability > 0}

    def _is_word(self, word: str) -> bool:
        """One word that can be shown: no control characters, no half of a character."""
        shown = word.isprintable() and _HALF not in word
        return shown and self._tokenizer.words(word) == [word]

    def _going_on(self, word: bytes) -> Tensor:
        """The tokens that go on with a word that is not over."""
        if not word:  # a lone space so far
            return self._after_space
        return self._continues if self._can_go_on(word) else torch.zeros_like(self._continues)

    def _can_go_on(self, word: bytes) -> bool:
        """Whether a word may become longer: a symbol is always whole, and so is a dictionary's."""
        return self._tokenizer.kind != "word" and _is_inside(word.decode(errors="replace")[0])

    def _fitting(self, spelled: list[bytes], prefix: bytes) -> Tensor:
        """For each beginning, the tokens after which it still agrees with the prefix."""
        masks: dict[bytes, Tensor] = {}  # many beginnings lack the same end
        for begun in set(spelled):
            rest = prefix[len(begun) :]
            if rest not in masks:
                ends = [piece if begun else _stripped(piece) for piece in self._pieces]
                masks[rest] = torch.tensor(
                    [end.startswith(rest) or rest.startswith(end) for end in ends]
                )
        return torch.stack([masks[prefix[len(begun) :]] for begun in spelled])

    def _extended(self, beam: _Beam, allowed: Tensor, width: int) -> _Beam:
        """The most probable beginnings that are one token longer."""
        scores = beam.log_prob.unsqueeze(1) + beam.next_log_probs
        scores = scores.masked_fill(~allowed, -torch.inf)
        values, chosen = torch.topk(scores.flatten(), min(width, scores.numel()))
        possible = values > -torch.inf
        values, chosen = values[possible], chosen[possible]
        rows, tokens = chosen // scores.shape[1], chosen % scores.shape[1]
        spelled = [
            _stripped(beam.spelled[row] + self._pieces[token])
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        ]
        decoder = beam.decoder.take(rows)
        if spelled:
            decoder.advance(tokens)
        return _Beam(spelled, values, decoder)


@dataclass(frozen=True)
class _Beam:
    """Beginnings of words: how each is spelled, how probable it is, and the model after it."""

    spelled: list[bytes]  # without the space before
    log_prob: Tensor
    decoder: Decoder

    @cached_property
    def next_log_probs(self) -> Tensor:
        """[rows, vocabulary]: log p(. | text) in float64."""
        return torch.log_softmax(self.decoder.output.logits().to(torch.float64), dim=1)


def _piece(tokenizer: Tokenizer, id: int) -> bytes:
    """What a token adds to a text, with the space before it if it brings one.

    In bytes, because a token of byte-level BPE may be half a character.
    """
    token = tokenizer.token(id)
    match tokenizer.kind:
        case "bpe":
            return bytes(_BYTES[character] for character in token)
        case "char":
            return token.encode()
        case "wordpiece" if token.startswith(_PIECE_MARK) and token != _PIECE_MARK:
            return token.removeprefix(_PIECE_MARK).encode()
    return f" {token}".encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes a byte that shows as itself, and the n-th of the others as 256 + n."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(256 + number): byte for number, byte in enumerate(unseen)
    }


_BYTES = _byte_alphabet()


def _stripped(piece: bytes) -> bytes:
    """A piece without the space before it; bytes that are half a character are left alone."""
    return piece.lstrip(_ASCII_SPACE)


def _begins_a_word(piece: bytes, kind: str) -> bool:
    """Whether a token cannot be the inside of a word: it has a space first, or is a symbol."""
    if kind == "wordpiece":
        return piece.startswith(b" ")
    text = piece.decode(errors="replace")
    return not text or text[0] in WHITE_SPACE or not _is_inside(text[0])


def _is_inside(character: str) -> bool:
    """Whether it may stand within a word: a letter, digit, mark, underscore or apostrophe.

    Half of a character's bytes may be any of these.
    """
    return unicodedata.category(character)[0] in "LNM" or character in _INSIDE


def _best(words: dict[str, float], top: int) -> list[Suggestion]:
    """The most probable words; equal ones in the order of the alphabet."""
    ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:top]
    return [Suggestion(word, probability) for word, probability in ranked]
