"""Keyed randomness: one secret per run, and a stream for each purpose in each round.

Who is sampled is a function of (run key, branch, round, attempt, purpose, index).  Which noise is
added is a function of the run key and of all that the noise hides, as SIV modes do for nonces:
noise on anything else is independent of it.  A resumed round can therefore repeat the very same
release, and nothing that happens to a run's files can bring the same noise onto another sum.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tacit.privacy import checks, durable, trusted
from tacit.privacy.stream import Stream

_KEY_SIZE = 32
_FILE_LABEL = b"tacit run key 1\n"
_CHUNK = 2**30  # bytes in one tag; the library takes up to 2^31 - 1


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

    def digest(self, *parts: bytes | memoryview) -> bytes:
        """16 bytes that stand for long data, made at the speed of memory; as a list, like `hmac`.

        Every chunk of every part is hashed by GMAC (AES-256-GCM with nothing to encrypt, the chunk
        as associated data, one fixed nonce, a key of its own).  HMAC-SHA256 under another key of
        its own is then taken of the parts' lengths and the tags, and cut to 16 bytes.  Tags never
        leave this function, so GMAC serves as a universal hash, which needs no fresh nonce.

        Guarantee: a pseudo-random function of the parts.  Two different lists of parts, chosen
        without knowledge of the key, have the same digest with a probability of at most
        (2^26 + 1) 2^-128 (a tag of 2^30 bytes) plus 2^-128 (the HMAC): under 2^-101.  Some pair of
        n digests is equal with at most n^2 / 2 times that: 2^-42 for the 10^9 steps of a long life.
        """
        gmac = AESGCM(self._derived("GMAC"))
        tags: list[bytes | int] = []
        for part in parts:
            data = memoryview(part).cast("B")
            tags.append(data.nbytes)
            for start in range(0, data.nbytes, _CHUNK):
                tags.append(gmac.encrypt(bytes(12), b"", data[start : start + _CHUNK]))
        message = _encode("tacit digest, 1", *tags)
        return hmac.digest(self._derived("tags"), message, "sha256")[:16]

    def _derived(self, use: str) -> bytes:
        """A 256-bit key for one use inside of `digest`."""
        return hmac.digest(self._secret, _encode("tacit digest key, 1", use), "sha256")

    def hiding_stream(self, hidden: bytes, purpose: str, index: int = 0) -> Stream:
        """The noise of a release, where `hidden` is a proof of all that the release is made from.

        A proof is an `hmac` or `digest` of the plan, the state before, and the sum that the noise
        is added to.

        Guarantee: the same `hidden` gets the same noise again, and any other gets noise that is
        independent of it (up to what tells HMAC-SHA256 and AES-256 from random functions), whoever
        copied, restored, edited or raced what.  Two releases that share noise are therefore one
        release, and no difference of releases shows what is below the noise.
        """
        checks.whole("index", index)
        encoded = _encode("tacit hiding stream, 1", hidden, purpose, index)
        return Stream(hmac.digest(self._secret, encoded, "sha256"))

    def stream(
        self, *, branch: str, round: int, attempt: int, purpose: str, index: int = 0
    ) -> Stream:
        """The stream of one purpose; asking again with the same parts starts it anew.

        Guarantee: the parts are encoded injectively and keyed by HMAC-SHA256, so streams of which
        any part differs are independent, up to what tells HMAC-SHA256 and AES-256 from random
        functions.
        """
        return Stream(
            self.seed(branch=branch, round=round, attempt=attempt, purpose=purpose, index=index)
        )

    def seed(self, *, branch: str, round: int, attempt: int, purpose: str, index: int = 0) -> bytes:
        """What `Stream` makes that stream from, for whoever computes with it on another machine.

        Guarantee: it tells nothing about the run key, nor about any other stream.
        """
        checks.whole("round", round)
        checks.whole("attempt", attempt)
        checks.whole("index", index)
        encoded = _encode("tacit stream, 1", branch, round, attempt, purpose, index)
        return hmac.digest(self._secret, encoded, "sha256")

    def save(self, path: Path | str) -> None:
        """Write the key to a new file that only its owner can read; a key is never replaced."""
        mark = b"\x01" if self.is_simulation else b"\x00"
        try:
            durable.write_whole(Path(path), _FILE_LABEL + mark + self._secret, new=True)
        except FileExistsError as error:
            raise ValueError(f"{path} exists already, and a run key is never replaced") from error

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote; anything else, or a file that others can read, is refused."""
        with trusted.open_regular(Path(path)) as file:
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
        for file in (durable.partial_path(Path(path)), Path(path)):
            if file.exists():
                with open(file, "r+b", buffering=0) as opened:
                    opened.write(bytes(file.stat().st_size))
                    os.fsync(opened.fileno())
                file.unlink()
                durable.sync(file.parent)


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
