"""The secret that canary clients' coins and directions are drawn from.

An audit means something only if nobody could know the coins beforehand: whoever writes the training
could otherwise treat those canary clients differently, and a second run with the same coins would
be no second piece of evidence.  So the secret follows from the run's own key.  The run key is
destroyed when the run ends, and the audit comes later: what was derived from it is kept in the
run's private folder.  It gives nothing of the run key away, being an HMAC under it.

A simulation's run key is made from its seed, and so are its coins: they can be repeated.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tacit.privacy import durable
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import RunKey

COINS_FILE = "canary-coins"  # in the private folder of a run
COMMITTED = "coins"  # the kind of the ledger's entry whose plan_hash is the commitment
SIZE = 32
_LABEL = b"tacit canary coins 1\n"


def derived(key: RunKey) -> bytes:
    """The coins' secret of the run that has this key."""
    return key.hmac(b"canary coins")


def simulated(seed: int) -> bytes:
    """The coins' secret of a simulation."""
    return derived(RunKey.from_seed(seed))


def unrelated() -> bytes:
    """A secret of nobody's, for whoever wants to know how many canary clients there are to be."""
    return derived(RunKey.generate())


def coins_key(folder: Path, key: RunKey | None = None) -> bytes:
    """The coins' secret of a run, from its private file; a run that has none yet gets one by `key`.

    A file that says something else than the key is refused: it would be another run's.
    """
    there = read(folder)
    if there is None:
        if key is None:
            raise ValueError(
                f"{folder / 'private' / COINS_FILE} is missing, so it is not known which canary"
                f" clients took part in {folder}, and nothing can be concluded from them"
            )
        durable.create_whole(folder / "private" / COINS_FILE, _LABEL + derived(key), mode=0o600)
        return derived(key)
    if key is not None and there != derived(key):
        raise ValueError(
            f"{folder / 'private' / COINS_FILE} does not belong to the key of {folder}"
        )
    return there


def read(folder: Path) -> bytes | None:
    """The coins' secret that a run keeps; None if it keeps none."""
    path = folder / "private" / COINS_FILE
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(len(_LABEL) + SIZE + 1)
    except FileNotFoundError:
        return None
    if mode & 0o077:
        raise ValueError(f"{path} must be readable by its owner alone (mode 0600), got {mode:04o}")
    if not data.startswith(_LABEL) or len(data) != len(_LABEL) + SIZE:
        raise ValueError(f"{path} is damaged: it holds no coins of canary clients")
    return data[len(_LABEL) :]


def commitment(key: bytes) -> str:
    """What a ledger may say of the coins before training: it binds them and tells nothing."""
    return hashlib.sha256(_LABEL + key).hexdigest()


def of_run(folder: Path, ledger: Ledger) -> bytes:
    """The coins that a run was trained with, held against its ledger.

    Other coins than those of the training would show nothing, and so pass every gate.  A branch has
    coins of its own, and what its parent committed to is not about them.
    """
    own = [entry for entry in ledger.entries if entry.branch == ledger.header.branch]
    promised = [entry.plan_hash for entry in own if entry.kind == COMMITTED]
    found = coins_key(folder)
    if promised != [commitment(found)]:
        raise ValueError(
            f"{folder / 'private' / COINS_FILE} does not hold coins that the ledger of"
            f" {folder} committed to before the training"
        )
    return found
