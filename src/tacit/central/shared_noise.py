"""What the private methods do alike with a step's vectors: split the units, add noise, round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tacit.central.method import Indices, Vector, Work
from tacit.mechanisms.fixed_point import Grid
from tacit.privacy.randomness import Stream

# In clip norms; the grid is not made finer for less noise than this.
FINEST_NOISE = 1e-6

# The noise of a whole vector takes about as long as the gradient of so many units; measured with
# both models of `tacit.nlu`.  It decides about nothing but who waits for whom.
_A_VECTOR = 5

# Noise values: so few that the passes over them stay in the cache, and a stream uses one thread,
# since there is a worker for every core; or so many that the only worker uses all of them.
_AT_ONCE = 1 << 16
_ALONE_AT_ONCE = 1 << 20


def split_among(workers: int, cohort: Indices, stream: Stream) -> list[Indices]:
    """Each worker's part of a cohort; every unit picks its worker by itself."""
    chosen = stream.integers(workers, len(cohort))
    return [cohort[chosen == worker] for worker in range(workers)]


def noise_pieces(size: int, loads: Sequence[int]) -> list[slice]:
    """Each worker's piece of a vector of noise, by how many units it computes with.

    Whoever has less to compute draws more, so that all of them are done at about the same time.
    """
    # The level to which all are filled up, with those that are above it left as they are.
    ordered = sorted(loads)
    levels = [(_A_VECTOR + sum(ordered[:n])) / n for n in range(1, len(ordered) + 1)]
    level = min(levels)
    ends = np.cumsum([max(0.0, level - load) for load in loads]) / _A_VECTOR
    places = np.minimum(np.rint(ends * size), size).astype(int).tolist()
    places = [0, *places[:-1], size]  # whatever was rounded, no coordinate is left out
    return [slice(start, end) for start, end in pairwise(places)]


def add_own_noise_(share: Vector, stddev: float, work: Work, workers: int) -> Vector:
    """A worker's part of the noise on the sum of all shares, added to its share in place.

    `stddev` is in the unit of the share; to one of integers round(noise) is added.
    Each coordinate has its noise from one worker, the one whose piece of the vector it is in.  So
    the sum has independent noise of `stddev` everywhere, for one draw per coordinate instead of one
    per coordinate and worker: drawing is most of what a private step costs more than another.
    """
    if not stddev > 0:
        return share  # nothing is drawn
    loads = [sum(map(len, work.batches[worker::workers])) for worker in range(workers)]
    piece = share[noise_pieces(share.size, loads)[work.worker]]
    stream = work.streams("noise", work.step, work.worker)
    at_once = _AT_ONCE if workers > 1 else _ALONE_AT_ONCE
    for start in range(0, piece.size, at_once):
        part = piece[start : start + at_once]
        noise = stream.normal(part.size)
        noise *= stddev
        if part.dtype.kind == "i":
            part += np.rint(noise, out=noise).astype(part.dtype)
        else:
            part += noise
    return share


def on_grid_(total: Vector, clip_norm: float, vectors: int, z: float) -> Vector:
    """A noisy sum of at most so many clipped vectors, rounded to a public grid in its place.

    The low-order bits of a float sum could betray what was summed.
    """
    if z > 0:
        grid = Grid.for_clip(clip_norm, vectors, max(z, FINEST_NOISE)).step
        total /= grid
        np.rint(total, out=total)
        total *= grid
    return total
