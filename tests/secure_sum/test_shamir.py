"""Any t shares give the secret back; fewer fit every secret equally well."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secure_sum import shamir

SECRET = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize("prime", [5, 7])
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_lagrange_agrees_with_trying_all_polynomials_of_a_small_field(prime, threshold):
    every = list(itertools.product(range(prime), repeat=threshold))
    for ids in itertools.combinations(range(1, prime), threshold):
        through = {
            tuple(shamir._value(polynomial, one, prime) for one in ids): polynomial[0]
            for polynomial in every
        }
        assert len(through) == len(every)  # each set of values is of one polynomial alone
        for values, secret in through.items():
            assert shamir._at_zero(ids, values, prime) == secret


@pytest.mark.parametrize("prime", [5, 7])
def test_one_share_too_few_fits_every_secret_once(prime):
    threshold = 3
    every = itertools.product(range(prime), repeat=threshold)
    seen = Counter(
        (polynomial[0], *(shamir._value(polynomial, one, prime) for one in (1, 2)))
        for polynomial in every
    )
    assert len(seen) == prime**threshold
    assert set(seen.values()) == {1}


def test_the_prime_is_the_first_above_every_secret():
    def is_prime(n: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 42):  # wrong for a composite with a probability below 4^-40
            x = pow(base, odd, n)
            if x not in (1, n - 1) and n - 1 not in {pow(x, 2**k, n) for k in range(1, twos)}:
                return False
        return True

    primes = [n for n in range(2**256, shamir.PRIME + 1) if n % 3 and n % 5 and is_prime(n)]
    assert primes == [shamir.PRIME]


@given(SECRET, st.integers(1, 6), st.integers(0, 3), st.randoms())
def test_any_threshold_of_shares_gives_the_secret_to_the_last_bit(secret, threshold, more, random):
    ids = random.sample(range(1, 2**63), threshold + more)
    shares = shamir.split(secret, threshold, ids)
    some = random.sample(ids, threshold)
    assert shamir.join({one: shares[one] for one in some}) == secret
    assert shamir.join(shares) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_the_largest_secret_come_back(secret):
    shares = shamir.split(secret, 3, [1, 2, 3, 4])
    assert shamir.join({one: shares[one] for one in (4, 2, 1)}) == secret


def test_too_few_shares_give_something_else():
    secret = secrets.token_bytes(32)
    shares = shamir.split(secret, 3, [1, 2, 3])
    two = {one: shares[one] for one in (1, 2)}
    with contextlib.suppress(ValueError):  # of no secret of 32 bytes: once in 2^247
        assert shamir.join(two) != secret  # by chance once in 2^256


def test_coefficients_are_drawn_anew_for_each_secret():
    secret = bytes(32)
    first, second = (shamir.split(secret, 2, [1, 2]) for _ in range(2))
    assert first != second


def test_recovering_leaves_wrong_shares_out():
    secret = secrets.token_bytes(32)
    shares = shamir.split(secret, 3, [1, 2, 3, 4])
    shares[2] = shares[1]
    assert shamir.recover(shares, 3, lambda found: found == secret) == secret
    shares[4] = shares[1]
    with pytest.raises(ValueError, match="the shares do not give the secret"):
        shamir.recover(shares, 3, lambda found: found == secret)
    with pytest.raises(ValueError, match="3 shares are needed, got 2"):
        shamir.recover({1: shares[1], 3: shares[3]}, 3, lambda found: True)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: shamir.split(bytes(31), 1, [1]), "32 bytes, got 31"),
        (lambda: shamir.split(bytes(32), 1, [0, 1]), "ids must be distinct and above 0"),
        (lambda: shamir.split(bytes(32), 1, [1, 1]), "ids must be distinct"),
        (lambda: shamir.split(bytes(32), 3, [1, 2]), "threshold must be from 1 to 2, got 3"),
        (lambda: shamir.split(bytes(32), 0, [1, 2]), "threshold must be from 1 to 2, got 0"),
        (lambda: shamir.join({1: bytes(32)}), "a share must be 33 bytes"),
        (lambda: shamir.join({1: b"\xff" * 33}), "below the prime"),
        (lambda: shamir.join({1: b"\x01" + bytes(32)}), "of no secret of 32 bytes"),
    ],
)
def test_what_is_no_secret_or_share_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()
