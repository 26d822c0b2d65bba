"""What the private methods do alike with a step's vectors: split the units, add noise, round."""

from __future__ import annotations

import numpy as np

from tacit.central.method import Indices, Vector, Work
from tacit.mechanisms.fixed_point import Grid
from tacit.privacy.randomness import Stream

# In clip norms; the grid is not made finer for less noise than this.
FINEST_NOISE = 1e-6


def split_among(workers: int, cohort: Indices, stream: Stream) -> list[Indices]:
    """Each worker's part of a cohort; every unit picks its worker by itself."""
    chosen = stream.integers(workers, len(cohort))
    return [cohort[chosen == worker] for worker in range(workers)]


def add_own_noise_(share: Vector, stddev: float, work: Work, workers: int) -> Vector:
    """A worker's part of the noise on the sum of all shares, added to its share in place.

    Each coordinate has its noise from one worker, the one whose piece of the vector it is in.  So
    the sum has independent noise of `stddev` everywhere, for one draw per coordinate instead of one
    per coordinate and worker: drawing is most of what a private step costs more than another.
    """
    if stddev > 0:  # else nothing is drawn
        start, end = (share.size * place // workers for place in (work.worker, work.worker + 1))
        noise = work.streams("noise", work.step, work.worker).normal(end - start)
        noise *= stddev
        share[start:end] += noise
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
