"""What the noise of each step of an epoch hides: a chain of proofs, one link for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream


@dataclass(frozen=True)
class NoiseChain:
    """The proof of an epoch so far, from which the noise of its latest step is drawn.

    The first link is an HMAC of the plan, the attempt, and the weights at the epoch's beginning.
    Each further one is an HMAC of the link before it, the step's number, and a digest of every
    worker's share before any noise.  All later weights follow from what is in the chain, so they
    need not be read again.

    Guarantee: all shares of a step determine their sum, so two steps that add the same noise have
    the same plan, the same beginning, the same sums in all steps before, and the same sum now: they
    are one release.  Any other sum has independent noise, on whatever machine, with whatever
    instruction set, and after whatever was done to the run's files (`RunKey.hiding_stream`).
    """

    key: RunKey
    proof: bytes

    @classmethod
    def begin(cls, key: RunKey, plan: str, attempt: int, weights: NDArray[Any]) -> Self:
        """At the beginning of an epoch; `plan` names all that decides about its steps."""
        read = key.digest(weights.data)
        return cls(key, key.hmac(b"nlu epoch", plan.encode(), b"%d" % attempt, read))

    def then(self, step: int, shares: Sequence[bytes]) -> Self:
        """With a step of which every worker's share has this digest."""
        link = self.key.hmac(b"nlu step", self.proof, b"%d" % step, *shares)
        return type(self)(self.key, link)

    def noise(self, worker: int) -> Stream:
        """What a worker draws its part of the latest step's noise from."""
        return self.key.hiding_stream(self.proof, "noise", worker)
