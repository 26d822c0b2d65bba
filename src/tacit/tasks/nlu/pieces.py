"""Tokens cut into pieces of words: how a BERT model reads.

An utterance becomes [CLS], the pieces of its tokens, [SEP]; `first` says where each token begins,
since a token is tagged by its first piece.  A token of which nothing is left (a control character,
say) is [UNK], so that every token has a piece.

An utterance that has more pieces than the model has places is refused: what is cut off could not
be tagged.  Of one token, though, no more than `longest_token` pieces are read, so that an address
or a number of many digits does not take the places of everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.models.bert import pretrained_sizes
from tacit.privacy import checks
from tacit.public.masked import load_vocabulary
from tacit.tasks.nlu.encoding import Integers, Ragged
from tacit.tokenizers.wordpiece import CLS, PAD, SEP, UNK, PieceVocabulary


@dataclass(frozen=True)
class PieceEncoder:
    """A vocabulary of pieces; of an utterance the model reads at most `longest`, frame included."""

    vocabulary: PieceVocabulary
    longest: int = 128
    longest_token: int = 12

    kind: ClassVar[str] = "pieces"

    def __post_init__(self) -> None:
        checks.whole("longest", self.longest, at_least=3)
        checks.whole("longest_token", self.longest_token, at_least=1)

    @classmethod
    def from_folder(cls, folder: str | Path, provenance: str | None = None) -> PieceEncoder:
        """That of a pre-trained BERT in a local folder.

        To name a provenance declares where a folder that does not say so is from.
        """
        return cls(load_vocabulary(folder, provenance), pretrained_sizes(folder).positions)

    @property
    def provenance(self) -> str:
        """Where its vocabulary comes from: see `tacit.tokenizers.provenance`."""
        return self.vocabulary.provenance

    @property
    def in_words(self) -> str:
        return f"a vocabulary of {len(self.vocabulary):,} pieces of words"

    def prepare(self, utterances: Sequence[Sequence[str]]) -> PreparedPieces:
        """Each different token is cut once."""
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
        return PreparedPieces(Ragged.of(rows), Ragged.of(firsts), self.vocabulary.id(PAD))

    def to_json(self) -> dict[str, Any]:
        return {
            "pieces": list(self.vocabulary.pieces),
            "lower_case": self.vocabulary.lower_case,
            "provenance": self.provenance,
            "longest": self.longest,
            "longest_token": self.longest_token,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PieceEncoder:
        vocabulary = PieceVocabulary(
            tuple(content["pieces"]), content["lower_case"], content["provenance"]
        )
        return cls(vocabulary, content["longest"], content["longest_token"])


@dataclass(frozen=True)
class PreparedPieces:
    """Utterances as rows of pieces, and of the places where their tokens begin."""

    pieces: Ragged
    first: Ragged
    padding: int

    @property
    def lengths(self) -> Integers:
        """How many tokens each utterance has."""
        return self.first.lengths

    def batch(self, indices: Integers) -> tuple[dict[str, Tensor], Tensor]:
        """Padded to the longest of these utterances, in tokens and in pieces."""
        pieces, is_piece = self.pieces.padded(indices)
        first, mask = self.first.padded(indices)
        inputs = {
            "pieces": torch.from_numpy(np.where(is_piece, pieces, self.padding)),
            "piece_mask": torch.from_numpy(is_piece),
            "first": torch.from_numpy(first),
        }
        return inputs, torch.from_numpy(mask)
