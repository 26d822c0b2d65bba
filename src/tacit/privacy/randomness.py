"""Keyed randomness: one secret per run, and a stream for each purpose in each round.

Everything that a guarantee rests on (who is sampled, which noise is added) is a function of
(run key, branch, round, attempt, purpose, index).  A resumed round can therefore repeat the very
same release, and a round that must differ gets a new attempt and with it fresh randomness.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Self

from tacit.privacy import checks, durable
from tacit.privacy.stream import Stream, normal_from_words

__all__ = ["RunKey", "Stream", "normal_from_words"]

_KEY_SIZE = 32
_FILE_LABEL = b"tacit run key 1\n"


class RunKey:
    """The 256-bit secret of a run.

    Whoever holds it can subtract the noise, so it is never printed, and a key made from a seed
    marks its run "simulation, not for release".
    """

    __slots__ = ("_secret", "is_simulation")

    def __init__(self, secret: bytes, *, is_simulation: bool) -> None:
        if len(secret) != _KEY_SIZE:
            raise ValueError(f"a run key must have {_KEY_SIZE} bytes, got {len(secret)}")
        self._secret = secret
        self.is_simulation = is_simulation

    @classmethod
    def generate(cls) -> Self:
        """A fresh key from the operating system."""
        return cls(secrets.token_bytes(_KEY_SIZE), is_simulation=False)

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The key of a repeatable simulation: anyone who guesses the seed knows the noise."""
        encoded = _encode("tacit run key from a seed, 1", checks.whole("seed", seed))
        return cls(hashlib.sha256(encoded).digest(), is_simulation=True)

    def __repr__(self) -> str:
        return f"RunKey(is_simulation={self.is_simulation})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunKey):
            return NotImplemented
        same = hmac.compare_digest(self._secret, other._secret)
        return same and self.is_simulation == other.is_simulation

    __hash__ = None  # type: ignore[assignment]  # a key has no business in a set

    def hmac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 over the parts as a list, so ("ab", "c") and ("a", "bc") differ."""
        return hmac.digest(self._secret, _encode("tacit hmac, 1", *parts), "sha256")

    def stream(
        self, *, branch: str, round: int, attempt: int, purpose: str, index: int = 0
    ) -> Stream:
        """The stream of one purpose; asking again with the same parts starts it anew.

        Guarantee: the parts are encoded injectively and keyed by HMAC-SHA256, so streams of which
        any part differs are independent, up to what tells HMAC-SHA256 and AES-256 from random
        functions.
        """
        checks.whole("round", round)
        checks.whole("attempt", attempt)
        checks.whole("index", index)
        encoded = _encode("tacit stream, 1", branch, round, attempt, purpose, index)
        return Stream(hmac.digest(self._secret, encoded, "sha256"))

    def save(self, path: Path | str) -> None:
        """Write the key to a new file that only its owner can read; a key is never replaced."""
        mark = b"\x01" if self.is_simulation else b"\x00"
        try:
            durable.create(Path(path), _FILE_LABEL + mark + self._secret, mode=0o600)
        except FileExistsError as error:
            raise ValueError(f"{path} exists already, and a run key is never replaced") from error

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote; anything else, or a file that others can read, is refused."""
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(len(_FILE_LABEL) + 1 + _KEY_SIZE + 1)
        if mode & 0o077:
            raise ValueError(
                f"the run key {path} must be readable by its owner alone (mode 0600),"
                f" got mode {mode:04o}"
            )
        label, mark = data[: len(_FILE_LABEL)], data[len(_FILE_LABEL) : len(_FILE_LABEL) + 1]
        secret = data[len(_FILE_LABEL) + 1 :]
        if label != _FILE_LABEL or mark not in (b"\x00", b"\x01") or len(secret) != _KEY_SIZE:
            raise ValueError(f"{path} is not a run key, or it was cut off or changed")
        return cls(secret, is_simulation=mark == b"\x01")

    @staticmethod
    def destroy(path: Path | str) -> None:
        """Overwrite and remove a key file, and what a crash in `save` may have left beside it.

        Overwriting is best effort: a file system that copies on write, or a disk that levels its
        wear, may keep the old blocks.  Without a file there is nothing to do.
        """
        for file in (durable.partial_of(Path(path)), Path(path)):
            if file.exists():
                with open(file, "r+b", buffering=0) as opened:
                    opened.write(bytes(file.stat().st_size))
                    os.fsync(opened.fileno())
                file.unlink()
                durable.sync_directory(file.parent)


def _encode(label: str, *parts: str | int | bytes) -> bytes:
    """An injective encoding of a labelled list: for each part its type, its length and itself."""
    encoded = []
    for part in (label, *parts):
        if isinstance(part, bytes):
            kind, content = b"b", part
        elif isinstance(part, str):
            kind, content = b"s", part.encode()
        else:
            kind, content = b"i", b"%d" % part
        encoded.append(kind + len(content).to_bytes(8, "big") + content)
    return b"".join(encoded)
