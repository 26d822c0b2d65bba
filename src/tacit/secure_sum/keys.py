"""Keys that two clients have in common, and what is encrypted with them.

X25519 gives two clients a secret; HKDF-SHA256 makes keys of it, each for one use, bound to the
session, the rules, both ids and both public keys.  A key encrypts or masks once, so nonces are
zero.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.secure_sum.messages import KEY_SIZE, RefusedError, digest, encode

_NONCE = bytes(12)


def public_key(private: bytes) -> bytes:
    """The public half of a key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive(secret: bytes, use: str, context: bytes, *facts: bytes) -> bytes:
    """A key of 32 bytes for one use in one session (RFC 5869, with the context as salt)."""
    info = encode(use, context, *facts)
    return HKDF(SHA256(), KEY_SIZE, salt=context, info=info).derive(secret)


def mask_key(private: bytes, own: int, peer: int, peer_public: bytes, context: bytes) -> bytes:
    """The key of the mask between two clients: both derive the same one."""
    low, high = sorted([(own, public_key(private)), (peer, peer_public)])
    facts = (_id(low[0]), low[1], _id(high[0]), high[1])
    return derive(_agree(private, peer, peer_public), "mask of a pair", context, *facts)


def self_mask_key(seed: bytes, own: int, context: bytes) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, "self mask", context, _id(own))


def commitment(seed: bytes, own: int, context: bytes) -> bytes:
    """A hash that a seed of full entropy is known by, and that says nothing about it."""
    return digest("seed of a self mask", context, _id(own), seed)


class Sealing:
    """Encrypts from one client to another, in one session, in one direction, once."""

    def __init__(self, own_private: bytes, own: int, peer: int, peer_public: bytes) -> None:
        self._secret = _agree(own_private, peer, peer_public)
        self._own = (own, public_key(own_private))
        self._peer = (peer, peer_public)

    def seal(self, text: bytes, context: bytes) -> bytes:
        """Encrypt for the peer."""
        cipher, facts = self._cipher(self._own, self._peer, context)
        return cipher.encrypt(_NONCE, text, facts)

    def open(self, sealed: bytes, context: bytes) -> bytes | None:
        """What the peer encrypted, or None if it is not from the peer, or not for this session."""
        cipher, facts = self._cipher(self._peer, self._own, context)
        try:
            return cipher.decrypt(_NONCE, sealed, facts)
        except InvalidTag:
            return None

    def _cipher(
        self, sender: tuple[int, bytes], receiver: tuple[int, bytes], context: bytes
    ) -> tuple[ChaCha20Poly1305, bytes]:
        facts = (_id(sender[0]), sender[1], _id(receiver[0]), receiver[1])
        key = derive(self._secret, "shares", context, *facts)
        return ChaCha20Poly1305(key), encode("shares", context, *facts)


def is_signed(signature: bytes, message: bytes, key: bytes) -> bool:
    """Whether the holder of this Ed25519 key signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def check_public_key(client: int, public: bytes) -> None:
    """Refuse a key with which no secret can be made."""
    _agree(bytes(range(KEY_SIZE)), client, public)


def _agree(private: bytes, peer: int, peer_public: bytes) -> bytes:
    """The secret of two clients; a public key of small order, which would give zero, is refused."""
    own = X25519PrivateKey.from_private_bytes(private)
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError as error:
        raise RefusedError(f"client {peer} has no valid X25519 key") from error


def _id(one: int) -> bytes:
    return one.to_bytes(8, "big")
