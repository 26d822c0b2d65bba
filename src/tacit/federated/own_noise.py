"""The noise that a user adds where users share it, in a training whose one key draws all of it.

It is keyed by what it hides (design rule 12): an HMAC over the plan, the released model, the clip
norms, branch, round and attempt, the user, and the user's clipped update on its grid.  So a
repeated round has the same noise on the same updates, and independent noise on any other.

This is a simulation of people who each have a secret of their own: whoever has the run key knows
every share.  On their own machines people draw their noise from keys of their own
(`tacit.federation.own_noise`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import Integers
from tacit.mechanisms.plan import RoundPlan
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.privacy.stream import Stream


def simulated_stream(
    key: RunKey,
    plan: RoundPlan,
    weights: NDArray[np.float32],
    clip: ClipState,
    where: tuple[str, int, int],
    user_key: str,
    update: Integers,
) -> Stream:
    """One user's; `where` is branch, round and attempt."""
    public = [plan.hash(), list(clip.norms), clip.round, *where, user_key]
    hidden = key.hmac(
        canonical_json(public).encode(),
        key.digest(np.ascontiguousarray(weights).data),
        key.digest(np.ascontiguousarray(update).data),
    )
    return key.hiding_stream(hidden, "share of the noise")
