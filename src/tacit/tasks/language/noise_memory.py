"""What a run must remember of its noise: where in its horizon it is, and the noise's state.

Rounds in which users take turns, or whose noise is correlated, are charged together, as a horizon
(`privacy.events.Horizon`).  A horizon goes on as long as every round of it is released once.  What
is attempted again, branched off, or comes after another plan begins a new one, with noise that
knows nothing of rounds before: two horizons are two releases, whatever happened between them.

The state of the noise is never written down.  It follows from the run's key and the proofs of the
rounds so far, which are in `private/` in any case, so a run that goes on draws its noise again.
Whoever had the state could subtract the noise; it is destroyed with the key.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.noise import CorrelatedNoise, NoiseState
from tacit.mechanisms.plan import UPDATE_NOISE, RoundPlan
from tacit.mechanisms.turns import Position
from tacit.privacy.events import Horizon
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Entry
from tacit.privacy.randomness import RunKey

Recorded = Callable[[int, int], bytes | None]  # the proof of an attempt at a round
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class NoiseMemory:
    """The horizon that a run is in after its last round; of one that has not begun, nothing."""

    horizon: str = ""
    rounds: int = 0
    proof: bytes = b""  # of all rounds so far: what the state follows from
    state: NoiseState = ()

    def next(self, ledger: Ledger, leg: int, attempt: int) -> NoiseMemory:
        """The memory that an attempt at a round goes on from: this one, or that of a new horizon.

        It is a new one if the next round of this horizon was charged for anything else: its price
        is paid once.
        """
        goes_on = Position(self.horizon, self.rounds + 1)
        if self.horizon and ledger.rounds_of(self.horizon) > self.rounds:
            holder = _entries(ledger, self.horizon)[goes_on.rounds]
            if (holder.round, holder.attempt) != (leg, attempt):
                return NoiseMemory(f"{ledger.header.branch} {leg}.{attempt}")
        if not self.horizon:
            return NoiseMemory(f"{ledger.header.branch} {leg}.{attempt}")
        return self

    @property
    def position(self) -> Position:
        """Of the next round."""
        return Position(self.horizon, self.rounds + 1)

    def after(self, proof: bytes, state: NoiseState) -> NoiseMemory:
        """The memory after the next round."""
        return NoiseMemory(self.horizon, self.rounds + 1, _chained(self.proof, proof), state)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it: public, and enough to find the rounds in the ledger."""
        if not self.horizon:
            return {}
        return {"horizon": self.horizon, "horizon_rounds": self.rounds}

    @classmethod
    def recalled(
        cls,
        facts: Mapping[str, Any],
        plan: RoundPlan,
        clip_state: ClipState,
        size: int,
        ledger: Ledger,
        key: RunKey,
        recorded: Recorded,
        tell: Tell | None = None,
    ) -> NoiseMemory:
        """The memory at a checkpoint with these facts, its noise drawn again.

        If a round of the horizon is not on record, or is another run's, the next horizon begins:
        that costs more, and is sound.
        """
        horizon, rounds = facts.get("horizon", ""), facts.get("horizon_rounds", 0)
        if not horizon or not plan.has_horizon:
            return cls()
        entries = _entries(ledger, horizon)
        proofs = [
            recorded(entries[number].round, entries[number].attempt)
            for number in range(1, rounds + 1)
            if number in entries
        ]
        known = [proof for proof in proofs if proof]
        if len(known) < rounds:
            return cls()
        state: NoiseState = ()
        if isinstance(plan.noise, CorrelatedNoise):
            stddev = plan.noise_steps(clip_state)
            for done, proof in enumerate(known):
                if tell is not None:
                    tell("noise of earlier rounds", done, rounds)
                stream = key.hiding_stream(proof, UPDATE_NOISE)
                _, state = plan.noise.next(size, stddev, state, stream)
        return cls(horizon, rounds, functools.reduce(_chained, known, b""), state)


def _chained(before: bytes, proof: bytes) -> bytes:
    """A proof of all rounds from that of all but the last, and that of the last.

    The next round's noise takes back noise of any of them.  If one of their proofs is not what it
    was, the state is not either, and the next round must not go on with the fresh noise that it
    had.
    """
    return hashlib.sha256(before + proof).digest()


def _entries(ledger: Ledger, horizon: str) -> dict[int, Entry]:
    """This branch's charges of a horizon, by which of its rounds they are."""
    return {
        entry.event.rounds: entry
        for entry in ledger.entries
        if isinstance(entry.event, Horizon)
        and entry.event.horizon == horizon
        and entry.branch == ledger.header.branch
    }
