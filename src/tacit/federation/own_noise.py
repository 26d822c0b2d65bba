"""The share of the noise that a client adds, from a secret that no server has.

Guarantee: a client's noise is a pseudo-random function of its own signing key, the whole order, and
the clipped update that it hides.  The same order on the same text gets the same noise, so that a
sum which is asked for again is the same sum, and asking often averages nothing out; any other order
or update gets noise that is independent of it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from tacit.federated.own_noise import simulated_stream
from tacit.federation.keys import ClientKey
from tacit.federation.orders import Order
from tacit.mechanisms.fixed_point import Integers
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream


@dataclass(frozen=True)
class OwnNoise:
    """That of a client's key file."""

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, key: ClientKey) -> Self:
        """From the signing key, for this use alone."""
        signing = key.signing.private_bytes_raw()
        return cls(hmac.digest(signing, b"tacit share of the noise 1", "sha256"))

    def stream(self, order: Order, user_key: str, update: Integers) -> Stream:
        """The noise on this update, for this order."""
        hidden = hashlib.sha256(np.ascontiguousarray(update).data).digest()
        message = bytes.fromhex(order.digest) + hidden
        return Stream(hmac.digest(self.secret, message, "sha256"))


@dataclass(frozen=True)
class SimulatedNoise:
    """That of a simulation with the same seed, whose bits a trial is compared with.

    Whoever guesses the seed knows the noise, so that it hides nothing.
    """

    seed: int

    def stream(self, order: Order, user_key: str, update: Integers) -> Stream:
        """As a run that was never branched draws it for the user with this id."""
        return simulated_stream(
            RunKey.from_seed(self.seed),
            order.plan,
            order.weights,
            order.clip_state,
            ("main", order.round, order.attempt),
            user_key,
            update,
        )
