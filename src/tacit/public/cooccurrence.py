"""Word vectors from how often pieces stand near each other, for a BERT to begin with.

With a window of w places, c_ij counts how often piece j is within w of piece i, each time by
1 / distance.  The vectors are the left singular vectors of the positive pointwise mutual
information max(0, log p_ij / (p_i p_j^0.75)), times the roots of the singular values (Levy,
Goldberg and Dagan 2015, with their smoothing of contexts by 0.75).

They take seconds.  A model that is pre-trained for minutes only is ahead with them: its words have
neighbours that mean something from the first step.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tacit.public.masking import Sequences
from tacit.public.steps import own_randomness
from tacit.tokenizers.piece_vocabulary import CLS, PAD, SEP, PieceVocabulary

_SMOOTHING = 0.75
_SPARE = 16  # more dimensions than are kept, which the random projection needs to be accurate


def starting_vectors(
    sequences: Sequences,
    vocabulary: PieceVocabulary,
    width: int,
    *,
    stddev: float = 0.05,
    window: int = 4,
    seed: int = 0,
) -> Tensor:
    """[pieces, width], of about this standard deviation; zeros for pieces that are never seen."""
    counts = _counts(sequences, vocabulary, window)
    information = _information(counts)
    rows, columns = information.nonzero()
    found = torch.zeros(len(vocabulary), width)
    if not len(rows):
        return found
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, columns])),
        torch.from_numpy(information.data.astype(np.float32)),
        information.shape,
        check_invariants=True,
    )
    kept = min(width, len(vocabulary) - 1)
    with own_randomness(seed, 0):
        left, values, _ = torch.svd_lowrank(matrix, min(kept + _SPARE, len(vocabulary)), niter=3)
    found[:, :kept] = left[:, :kept] * values[:kept].sqrt()
    seen = torch.from_numpy(np.asarray(counts.sum(axis=1)).ravel() > 0)
    found[~seen] = 0  # and not the rounding error that is left of it
    norm = float(torch.linalg.vector_norm(found[seen], dim=1).mean())
    return found * (stddev * math.sqrt(width) / norm)


def _counts(sequences: Sequences, vocabulary: PieceVocabulary, window: int) -> sparse.csr_matrix:
    """c_ij, symmetric; [CLS], [SEP] and [PAD] are near nothing."""
    if not window >= 1:
        raise ValueError(f"window must be at least 1, got {window}")
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
    found = sparse.csr_matrix((np.maximum(np.log(ratio), 0), (near.row, near.col)), near.shape)
    found.eliminate_zeros()
    return found
