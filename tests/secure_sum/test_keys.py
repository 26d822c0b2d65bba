"""Keys and masks are those of the standards, and bound to all that they are for."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from tacit.secure_sum import RefusedError, keys
from tacit.secure_sum.masks import (
    add_masks_,
    from_bytes,
    to_bytes,
    to_integers,
    to_words,
    words_type,
)
from tacit.secure_sum.messages import encode

# RFC 7748, section 6.1
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
CONTEXT = bytes(range(32))


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869 from HMAC alone."""
    key = hmac.digest(salt, secret, "sha256")
    made, block = b"", b""
    for count in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([count]), "sha256")
        made += block
    return made[:size]


def test_the_oracle_gives_the_first_vector_of_rfc_5869():
    made = hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert made.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_public_keys_are_those_of_rfc_7748():
    assert keys.public_key(ALICE) == ALICE_PUBLIC
    assert keys.public_key(BOB) == BOB_PUBLIC


@pytest.mark.parametrize("alice_is_first", [True, False])
def test_a_mask_key_is_hkdf_of_the_secret_of_rfc_7748_with_ids_and_keys_in_order(alice_is_first):
    alice, bob = (3, 9) if alice_is_first else (9, 3)
    one, other = (alice).to_bytes(8, "big"), (bob).to_bytes(8, "big")
    facts = sorted([(one, ALICE_PUBLIC), (other, BOB_PUBLIC)])
    info = encode("mask of a pair", CONTEXT, *facts[0], *facts[1])
    expected = hkdf(SHARED, CONTEXT, info, 32)
    assert keys.mask_key(ALICE, alice, bob, BOB_PUBLIC, CONTEXT) == expected
    assert keys.mask_key(BOB, bob, alice, ALICE_PUBLIC, CONTEXT) == expected


def test_a_mask_key_stays_what_it_is():
    """All clients of a sum have to agree, whatever version of tacit they run."""
    assert keys.mask_key(ALICE, 1, 2, BOB_PUBLIC, CONTEXT).hex() == FROZEN_MASK_KEY
    assert keys.self_mask_key(ALICE, 1, CONTEXT).hex() == FROZEN_SELF_MASK_KEY


FROZEN_MASK_KEY = "89e1950bfda3ad8d85801a019333bd41ae143a715f21d4e52d012a48090547ba"
FROZEN_SELF_MASK_KEY = "81e02c072794dcfd7a0af40df9a470d2a25ec759458735db846af7485ffbae69"


def test_keys_differ_with_everything_they_are_bound_to():
    made = {
        keys.mask_key(ALICE, 1, 2, BOB_PUBLIC, CONTEXT),
        keys.mask_key(ALICE, 2, 1, BOB_PUBLIC, CONTEXT),
        keys.mask_key(ALICE, 1, 3, BOB_PUBLIC, CONTEXT),
        keys.mask_key(ALICE, 1, 2, BOB_PUBLIC, bytes(32)),
        keys.mask_key(ALICE, 1, 2, ALICE_PUBLIC, CONTEXT),
        keys.self_mask_key(ALICE, 1, CONTEXT),
        keys.self_mask_key(ALICE, 2, CONTEXT),
        keys.self_mask_key(ALICE, 1, bytes(32)),
        keys.self_mask_key(BOB, 1, CONTEXT),
    }
    assert len(made) == 9


def test_no_two_lists_are_encoded_alike():
    lists = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc")]
    assert len({encode("label", *parts) for parts in lists}) == len(lists)
    assert encode("a") != encode("b")


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_of_small_order_is_refused(public):
    with pytest.raises(RefusedError, match="client 2 has no valid X25519 key"):
        keys.mask_key(ALICE, 1, 2, public, CONTEXT)


def test_sealed_shares_open_for_their_receiver_in_their_session_and_direction_alone():
    alice = keys.Sealing(ALICE, 1, 2, BOB_PUBLIC)
    bob = keys.Sealing(BOB, 2, 1, ALICE_PUBLIC)
    sealed = alice.seal(b"shares", CONTEXT)
    assert bob.open(sealed, CONTEXT) == b"shares"
    assert bob.open(sealed, bytes(32)) is None
    assert alice.open(sealed, CONTEXT) is None  # reflected
    assert keys.Sealing(BOB, 3, 1, ALICE_PUBLIC).open(sealed, CONTEXT) is None
    assert keys.Sealing(BOB, 2, 4, ALICE_PUBLIC).open(sealed, CONTEXT) is None
    assert bob.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), CONTEXT) is None
    assert bob.seal(b"shares", CONTEXT) != sealed


@pytest.mark.parametrize("width", [16, 32, 64])
def test_a_mask_is_the_keystream_of_rfc_8439(width):
    words = np.zeros(8 * 64 // width, words_type(width))
    add_masks_(words, [(bytes(32), True)])
    assert words.tobytes().hex() == (  # appendix A.1, test vector 1
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


@pytest.mark.parametrize("width", [16, 24, 32, 40, 64])
@pytest.mark.parametrize("size", [1, 1000, 2**17 + 3])
def test_masks_that_are_added_and_taken_away_leave_the_vector(width, size):
    random = np.random.default_rng(size)
    vector = random.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1, size, endpoint=True)
    words = to_words(vector, width)
    first, second = (hashlib.sha256(name).digest() for name in (b"first", b"second"))
    add_masks_(words, [(first, True), (second, False)])
    assert not np.array_equal(to_integers(words, width), vector)
    sent = to_bytes(words, width)
    assert len(sent) == size * width // 8
    words = from_bytes(memoryview(sent), width)
    add_masks_(words, [(second, True)])
    add_masks_(words, [(first, False)])
    assert np.array_equal(to_integers(words, width), vector)
