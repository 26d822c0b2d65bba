"""What a masked language model is shown, and what it has to find (Devlin et al. 2019, 3.1).

Of the pieces of a text 15% are chosen.  Of these, 80% are shown as [MASK], 10% as a random piece
and 10% as they are; the model has to say what every chosen one was.

The model begins with word vectors from how often pieces stand near each other.  With a window of w
positions, c_ij counts how often piece j is within w of piece i, each time by 1 / distance.  The
vectors are the left singular vectors of the positive pointwise mutual information

    max(0, log p_ij / (p_i p_j^0.75))

times the roots of the singular values (Levy, Goldberg and Dagan 2015, with their smoothing of
contexts by 0.75).  They take seconds, and a model that is pre-trained for minutes only is ahead
with them: its words have neighbours that mean something from the first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from tacit.privacy import checks
from tacit.public.pretrain import batches_by_length, own_randomness
from tacit.tokenizers.wordpiece import CLS, MASK, PAD, SEP, SPECIAL, PieceVocabulary

_SMOOTHING = 0.75
_SPARE = 16  # more dimensions than are kept, which the random projection needs to be accurate


@dataclass(frozen=True)
class MaskedBatch:
    """Sequences side by side, some of their pieces hidden."""

    inputs: Tensor  # [B, P] int64: what is shown
    mask: Tensor  # [B, P] bool: where there is a piece
    chosen: Tensor  # [B, P] bool: which have to be found; at least one
    targets: Tensor  # [chosen] int64: what they were


@dataclass(frozen=True)
class Masking:
    """Chooses a share of the pieces by torch's generator, and hides them."""

    vocabulary: PieceVocabulary
    share: float = 0.15

    def __post_init__(self) -> None:
        checks.open_unit("masked_share", self.share)

    def hide(self, pieces: Tensor) -> MaskedBatch:
        """Hide some of sequences [CLS] ... [SEP] [PAD], each with a piece of text in it.

        Every piece of text is chosen with probability `share`, independently of the others; if
        none is, the one with the smallest draw is, so that there is a loss to compute.
        """
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

    def hide_all(
        self, sequences: Sequences, *, batch: int = 64, seed: int = 0
    ) -> list[MaskedBatch]:
        """Hide the same pieces in the same way every time, so that figures compare."""
        batches = []
        for number, pieces in enumerate(sequences.in_order(batch)):
            with own_randomness(seed, number):
                batches.append(self.hide(pieces))
        if not batches:
            raise ValueError("there is no text to measure on: give at least one sequence")
        return batches

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
        """The sequences of texts; no sequence has pieces of two texts."""
        room = checks.whole("length", length, at_least=3) - 2  # but for [CLS] and [SEP]
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
        """The number of pieces of text: [CLS] and [SEP] are not counted."""
        return int(self.lengths.sum()) - 2 * len(self)

    def counts(self, vocabulary: PieceVocabulary) -> npt.NDArray[np.int64]:
        """How often each piece is in the texts."""
        counts = np.bincount(self.ids.ravel(), minlength=len(vocabulary))
        counts[[vocabulary.id(name) for name in (PAD, CLS, SEP)]] = 0
        return counts

    def some(self, pieces: int, seed: int) -> Sequences:
        """As many at random as have this many pieces of text together, or all.

        The seed decides which, so that measurements during a training are of the same text.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        enough = int(np.searchsorted(np.cumsum(self.lengths[order] - 2), pieces)) + 1
        return Sequences(self.ids[order[:enough]], self.lengths[order[:enough]])

    def epoch(self, batch: int, seed: int, epoch: int) -> Iterator[Tensor]:
        """All in a random order, `batch` at a time, those of similar length together."""
        generator = np.random.default_rng((seed, epoch))
        return map(self._rows, batches_by_length(self.lengths, batch, generator))

    def in_order(self, batch: int) -> Iterator[Tensor]:
        """All, the shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        return (self._rows(order[at : at + batch]) for at in range(0, len(order), batch))

    def _rows(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Those rows, no wider than the longest of them needs."""
        return torch.from_numpy(self.ids[rows, : self.lengths[rows].max()].astype(np.int64))

    def starting_vectors(
        self,
        vocabulary: PieceVocabulary,
        width: int,
        *,
        stddev: float = 0.05,
        window: int = 4,
        seed: int = 0,
    ) -> Tensor:
        """Vectors [pieces, width] of about this standard deviation; zeros for pieces never seen.

        The singular vectors come from a random projection, which the seed decides about.
        """
        counts = _nearness(self, vocabulary, window)
        information = _information(counts)
        rows, columns = information.nonzero()
        vectors = torch.zeros(len(vocabulary), width)
        if not len(rows):
            return vectors
        matrix = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([rows, columns])),
            torch.from_numpy(information.data.astype(np.float32)),
            information.shape,
            check_invariants=True,
        )
        kept = min(width, len(vocabulary) - 1)
        with own_randomness(seed, 0):
            left, values, _ = torch.svd_lowrank(
                matrix, min(kept + _SPARE, len(vocabulary)), niter=3
            )
        vectors[:, :kept] = left[:, :kept] * values[:kept].sqrt()
        seen = torch.from_numpy(np.asarray(counts.sum(axis=1)).ravel() > 0)
        vectors[~seen] = 0  # and not the rounding error that is left of it
        norm = float(torch.linalg.vector_norm(vectors[seen], dim=1).mean())
        return vectors * (stddev * math.sqrt(width) / norm)


def _nearness(sequences: Sequences, vocabulary: PieceVocabulary, window: int) -> sparse.csr_matrix:
    """c_ij, symmetric; [CLS], [SEP] and [PAD] are near nothing."""
    size = len(vocabulary)
    is_text = ~np.isin(sequences.ids, [vocabulary.id(name) for name in (CLS, SEP, PAD)])
    total = sparse.csr_matrix((size, size))
    for distance in range(1, min(window, sequences.ids.shape[1] - 1) + 1):
        both = is_text[:, :-distance] & is_text[:, distance:]
        pairs = (sequences.ids[:, :-distance][both], sequences.ids[:, distance:][both])
        weights = np.full(len(pairs[0]), 1 / distance)
        total = total + sparse.csr_matrix((weights, pairs), shape=(size, size))
    return total + total.T


def _information(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """max(0, log p_ij / (p_i p_j^0.75)), the powers scaled so that they sum to 1."""
    near = counts.tocoo()
    of_piece = np.asarray(counts.sum(axis=1)).ravel()
    of_context = of_piece**_SMOOTHING
    ratio = near.data * of_context.sum() / (of_piece[near.row] * of_context[near.col])
    positive = sparse.csr_matrix((np.maximum(np.log(ratio), 0), (near.row, near.col)), near.shape)
    positive.eliminate_zeros()
    return positive
