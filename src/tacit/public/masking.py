"""What a masked language model is shown, and what it has to find (Devlin et al. 2019, 3.1).

Of the pieces of a text 15% are chosen.  Of these, 80% are shown as [MASK], 10% as a random piece
and 10% as they are; the model has to say what every chosen one was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.tokenizers.piece_vocabulary import CLS, MASK, PAD, SEP, SPECIAL, PieceVocabulary

_POOL = 50  # batches among which sequences of similar length are looked for


@dataclass(frozen=True)
class MaskedBatch:
    """Sequences side by side, some of their pieces hidden."""

    inputs: Tensor  # [B, P] int64: what is shown
    mask: Tensor  # [B, P] bool: where there is a piece
    chosen: Tensor  # [B, P] bool: which have to be found; at least one
    targets: Tensor  # [chosen] int64: what they were


@dataclass(frozen=True)
class Masking:
    """Chooses pieces by torch's generator."""

    vocabulary: PieceVocabulary
    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"masked_share must be above 0 and below 1, got {self.share}")

    def masked(self, pieces: Tensor) -> MaskedBatch:
        """Of sequences [CLS] ... [SEP] with [PAD] after them, each with a piece of text in it."""
        padding, *ends = (self.vocabulary.id(name) for name in (PAD, CLS, SEP))
        is_frame = torch.isin(pieces, torch.tensor([padding, *ends]))
        draws = torch.rand(pieces.shape).masked_fill(is_frame, 2.0)
        chosen = draws <= max(self.share, draws.min().item())  # so there is one at the least
        targets = pieces[chosen]
        others = self._plain[torch.randint(len(self._plain), targets.shape)]
        fate = torch.rand(targets.shape)
        shown = torch.where(fate < 0.9, others, targets)
        inputs = pieces.clone()
        inputs[chosen] = torch.where(fate < 0.8, self.vocabulary.id(MASK), shown)
        return MaskedBatch(inputs, pieces != padding, chosen, targets)

    @cached_property
    def _plain(self) -> Tensor:
        """The pieces that are not special."""
        return torch.tensor(
            [id for id, piece in enumerate(self.vocabulary.pieces) if piece not in SPECIAL]
        )


@dataclass(frozen=True)
class Sequences:
    """Texts cut into sequences of [CLS], at most `length - 2` pieces, and [SEP]."""

    ids: npt.NDArray[np.int32]  # [N, length], with [PAD] after the end
    lengths: npt.NDArray[np.int64]  # [N], [CLS] and [SEP] among them

    @classmethod
    def of(
        cls, texts: Sequence[Sequence[int]], length: int, vocabulary: PieceVocabulary
    ) -> Sequences:
        """No sequence has pieces of two texts."""
        if not length >= 3:
            raise ValueError(
                f"length must be at least 3, for one piece and its frame, got {length}"
            )
        room = length - 2
        cut = [text[at : at + room] for text in texts for at in range(0, len(text), room)]
        ids = np.full((len(cut), length), vocabulary.id(PAD), dtype=np.int32)
        ids[:, 0] = vocabulary.id(CLS)
        for row, part in enumerate(cut):
            ids[row, 1 : len(part) + 1] = part
            ids[row, len(part) + 1] = vocabulary.id(SEP)
        return cls(ids, np.array([len(part) + 2 for part in cut], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def pieces(self) -> int:
        """Of text: [CLS] and [SEP] are not counted."""
        return int(self.lengths.sum()) - 2 * len(self)

    def counts(self, vocabulary: PieceVocabulary) -> npt.NDArray[np.int64]:
        """How often each piece is in the texts."""
        found = np.bincount(self.ids.ravel(), minlength=len(vocabulary))
        found[[vocabulary.id(name) for name in (PAD, CLS, SEP)]] = 0
        return found

    def some(self, pieces: int, seed: int) -> Sequences:
        """As many at random as have this many pieces of text together, or all."""
        order = np.random.default_rng(seed).permutation(len(self))
        enough = int(np.searchsorted(np.cumsum(self.lengths[order] - 2), pieces)) + 1
        return Sequences(self.ids[order[:enough]], self.lengths[order[:enough]])

    def epoch(self, batch: int, seed: int, epoch: int) -> Iterator[Tensor]:
        """All in a random order, `batch` at a time, those of similar length together."""
        generator = np.random.default_rng((seed, epoch))
        order = generator.permutation(len(self))
        for start in range(0, len(order), _POOL * batch):
            pool = order[start : start + _POOL * batch]
            by_length = pool[np.argsort(self.lengths[pool], kind="stable")]
            for place in generator.permutation(-(-len(pool) // batch)):
                yield self.batch(by_length[place * batch : (place + 1) * batch])

    def in_order(self, batch: int) -> Iterator[Tensor]:
        """All, the shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        for start in range(0, len(order), batch):
            yield self.batch(order[start : start + batch])

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Those rows, no wider than the longest of them needs."""
        return torch.from_numpy(self.ids[rows, : self.lengths[rows].max()].astype(np.int64))
