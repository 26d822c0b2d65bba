"""What the private methods do alike with a step's vectors: split the units, add noise, round."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tacit.mechanisms.fixed_point import Grid
from tacit.mechanisms.method import Indices, Vector
from tacit.privacy.randomness import Stream

# In clip norms; the grid is not made finer for less noise than this.
FINEST_NOISE = 1e-6

# Noise values: so few that the passes over them stay in the cache, and a stream uses one thread,
# since there is a worker for every core; or so many that the only worker uses all of them.
_AT_ONCE = 1 << 16
_ALONE_AT_ONCE = 1 << 20


def split_among(workers: int, cohort: Indices, stream: Stream) -> list[Indices]:
    """Each worker's part of a cohort; every unit picks its worker by itself."""
    chosen = stream.integers(workers, len(cohort))
    return [cohort[chosen == worker] for worker in range(workers)]


def noise_pieces(size: int, workers: int) -> list[slice]:
    """Each worker's piece of a vector of noise, all of about the same size.

    Noise is drawn once all shares are known, so all workers begin with it at the same time.
    """
    ends = [size * worker // workers for worker in range(workers + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def add_own_noise_(
    share: Vector, stddev: float, worker: int, workers: int, stream: Stream
) -> Vector:
    """A worker's part of the noise on the sum of all shares, added to its share in place.

    `stddev` is in the unit of the share; to one of integers round(noise) is added.
    Each coordinate has its noise from one worker, the one whose piece of the vector it is in.  So
    the sum has independent noise of `stddev` everywhere, for one draw per coordinate instead of one
    per coordinate and worker: drawing is most of what a private step costs more than another.
    """
    if not stddev > 0:
        return share  # nothing is drawn
    piece = share[noise_pieces(share.size, workers)[worker]]
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
