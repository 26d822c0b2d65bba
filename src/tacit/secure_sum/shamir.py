"""Secret sharing (Shamir 1979): any t of n shares give a secret back, and fewer say nothing.

A secret of 32 bytes is the value at 0 of a polynomial of degree t - 1 whose other coefficients are
uniform, over the integers modulo the smallest prime above 2^256.  A share is its value at the
holder's id, in 33 bytes.

Guarantee: any t - 1 shares at distinct ids other than 0 are uniform and independent of the secret,
because for each secret exactly one polynomial goes through them and it.

Python's integers do not take constant time: whoever can time a client's arithmetic to the cycle is
not among those that it protects from.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence

from tacit.secure_sum.messages import SHARE_SIZE

PRIME = 2**256 + 297
SECRET_SIZE = 32


def split(secret: bytes, threshold: int, ids: Sequence[int]) -> dict[int, bytes]:
    """A share for each id."""
    if len(secret) != SECRET_SIZE:
        raise ValueError(f"a secret must have {SECRET_SIZE} bytes, got {len(secret)}")
    if len(set(ids)) != len(ids) or any(not 0 < one < PRIME for one in ids):
        raise ValueError("ids must be distinct and above 0, the place of the secret")
    if not 1 <= threshold <= len(ids):
        raise ValueError(f"threshold must be from 1 to {len(ids)}, got {threshold}")
    free = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial = [int.from_bytes(secret, "big"), *free]
    return {one: _value(polynomial, one, PRIME).to_bytes(SHARE_SIZE, "big") for one in ids}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret that these shares, all of them, are of; `ValueError` if they are of none."""
    ids = tuple(shares)
    values = [_field_element(share) for share in shares.values()]
    secret = _at_zero(ids, values, PRIME)
    if secret >> (8 * SECRET_SIZE):
        raise ValueError("the shares are of no secret of 32 bytes")
    return secret.to_bytes(SECRET_SIZE, "big")


def recover(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> bytes:
    """The secret that `is_right` knows, from any `threshold` shares that give it.

    Where more were revealed, neighbouring ids are left out in turn, so that one wrong share does
    no harm.
    """
    ids = sorted(shares)
    if len(ids) < threshold:
        raise ValueError(f"{threshold} shares are needed, got {len(ids)}")
    for start in range(len(ids) if len(ids) > threshold else 1):
        some = (ids[start:] + ids[:start])[:threshold]
        try:
            secret = join({one: shares[one] for one in some})
        except ValueError:
            continue
        if is_right(secret):
            return secret
    raise ValueError("the shares do not give the secret that was committed to")


def _field_element(share: bytes) -> int:
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_SIZE or value >= PRIME:
        raise ValueError(f"a share must be {SHARE_SIZE} bytes below the prime")
    return value


def _value(polynomial: Sequence[int], x: int, prime: int) -> int:
    """Horner's rule; the constant coefficient comes first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % prime
    return value


def _at_zero(ids: tuple[int, ...], values: Sequence[int], prime: int) -> int:
    """The value at 0 of the polynomial of least degree through these points (Lagrange)."""
    weights = _weights(ids, prime)
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) % prime


@functools.lru_cache(maxsize=1024)  # one group's secrets are all recovered from the same ids
def _weights(ids: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """For each id i the product over all other ids j of j / (j - i)."""
    weights = []
    for one in ids:
        above, below = 1, 1
        for other in ids:
            if other != one:
                above = above * other % prime
                below = below * (other - one) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return tuple(weights)
