"""Exposure: by how many bits a model's training narrowed down the guess of a canary.

Carlini et al. 2019, "The Secret Sharer", definition 4:

    exposure = log2(number of possible canaries) - log2(rank of the canary)

where rank 1 is the canary that the model finds likeliest.  A model that never saw the canary gives
rank R with the same chance for every R, so an exposure above b bits has a chance of about 2^-b.
From a sample of n references the number of possible ones is n, so it never exceeds log2(n).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def exposure(rank: float, possible: float) -> float:
    """log2(possible) - log2(rank), in bits."""
    if not (possible >= 1 and math.isfinite(possible)):
        raise ValueError(f"possible must be a finite number of at least 1, got {possible}")
    if not (rank >= 1 and math.isfinite(rank)):
        raise ValueError(f"rank must be a finite number of at least 1, got {rank}")
    if rank > possible:
        raise ValueError(f"rank must be at most the {possible:g} possible, got {rank:g}")
    return math.log2(possible) - math.log2(rank)


def sampled_rank(log_perplexity: float, references: ArrayLike) -> int:
    """One more than the references that are at least as likely: a tie counts against the canary."""
    values = np.asarray(references, np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError("references must be a list of at least one log-perplexity")
    if not np.isfinite(values).all():
        raise ValueError("references must be finite log-perplexities")
    if not math.isfinite(log_perplexity):
        raise ValueError(f"log_perplexity must be a finite number, got {log_perplexity}")
    return 1 + int(np.count_nonzero(values <= log_perplexity))


def sampled_exposure(log_perplexity: float, references: ArrayLike) -> float:
    """Exposure among references that the model was not trained on."""
    possible = len(np.asarray(references))
    # The last rank of all is one more than the references: no less than 0 bits.
    return exposure(min(sampled_rank(log_perplexity, references), possible), possible)
