"""A random stream: the AES-256-CTR keystream of one key, read as numbers.

Words are consumed in order, so the sequence of calls on a stream determines every value.
How the work is cut into chunks, and on how many threads it runs, does not.  Words, and all that is
computed from them in integers (`integers`, `subset`, `permutation`, `binomial`), are the same on
every machine.  So are normal values, but for one in 1,024, which SciPy's `ndtri` rounds.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.privacy import checks
from tacit.privacy.quantile import MAGNITUDE, to_normal_

_ZEROS = memoryview(bytes(1 << 20))  # plaintext; slices of a memoryview are not copied
_CHUNK = 1 << 16  # values per task: 512 KiB, so that the passes over one stay in the cache
_MAX_THREADS = 4

# What no normal value exceeds: u is 2^-129 or more.
LARGEST_NORMAL = 13.2


def normal_from_words(
    words: NDArray[np.uint64], fraction: float | NDArray[np.float64] = 0.5
) -> NDArray[np.float64]:
    """Standard normal values by inversion: the top bit is the sign, the rest the tail probability.

    With m the lower 63 bits, u = (m + fraction) * 2^-64 is in (0, 1/2] and the value is
    -+Phi^-1(u).  Inverting the *small* tail on both sides keeps full precision there, where
    1 - u would have none.  With the default fraction the values reach 9.15.
    """
    u = (words & MAGNITUDE).astype(np.float64)
    u += fraction
    u *= 2.0**-64
    values: NDArray[np.float64] = ndtri(u, out=u)
    bits = values.view(np.uint64)
    bits ^= words & ~MAGNITUDE
    return values


class Stream:
    """Numbers from the keystream of one 32-byte key; `RunKey.stream` makes it."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"a stream's key must have 32 bytes, got {len(key)}")
        algorithm = algorithms.AES(key)
        # The counter starts at 0, and a key belongs to one stream only, so no nonce is needed.
        self._keystream = Cipher(algorithm, modes.CTR(bytes(16))).encryptor()
        self._block_cipher = Cipher(algorithm, modes.ECB())
        self._position = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next n words of 64 uniform bits."""
        size = 8 * checks.whole("n", n)
        # Older versions of `cryptography` ask for a block less one byte of room after the output.
        buffer = np.empty(size + 15, np.uint8)
        view = buffer.data
        for start in range(0, size, len(_ZEROS)):
            self._keystream.update_into(_ZEROS[: size - start], view[start:])
        self._position += n
        return buffer[:size].view("<u8").astype(np.uint64, copy=False)

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Multiples of 2^-53 in [0, 1), one word each."""
        return (self.words(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, n: int) -> NDArray[np.float64]:
        """Standard normal values, one word each; two calls for a and b values equal one for a + b.

        A magnitude m below 2^53 (one value in 1,024) is too coarse for the tail by itself, so its
        fraction is not 1/2 but 64 more random bits, a function of the key and the word's position.

        Guarantee: for each t <= 0, P(value <= t) = (1 + r) Phi(t) + a, with |a| <= 2^-128 and
        |r| <= (1 + t^2) 2^-50, and the same above 0 by symmetry.  (u is within 2.5 * 2^-53,
        relative, of a real-valued uniform U under the coupling that refines m; inverting it, by the
        table or by ndtri, adds at most (1 + t^2) 2^-51, as tests against 60 digits show.)  So the
        law is right in every cell of a grid that the value is later rounded to, as long as a cell
        is much wider than 2^-50.  Values end at 13.1; the ideal goes further with probability
        2^-128.
        The values themselves are floats and unequally spaced: never release them unrounded.
        """
        first = self._position
        words = self.words(n)

        def fill(start: int) -> None:
            chunk = words[start : start + _CHUNK]
            deep = to_normal_(chunk)
            normals = normal_from_words(chunk[deep], self._fractions(first + start + deep))
            chunk[deep] = normals.view(np.uint64)

        starts = range(0, n, _CHUNK)
        # What is called releases the lock, and the pool lives for one call, so that a fork is safe.
        threads = min(_MAX_THREADS, os.cpu_count() or 1, len(starts))
        if threads <= 1:
            for start in starts:
                fill(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(fill, starts))
        return words.view(np.float64)

    def _fractions(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Further random bits for the words at these positions, in (0, 1].

        They come from counter blocks 2^128 - 2^64 + position, which the keystream never reaches.
        """
        blocks = np.empty((len(positions), 2), ">u8")
        blocks[:, 0] = 2**64 - 1
        blocks[:, 1] = positions
        drawn = np.frombuffer(self._block_cipher.encryptor().update(blocks.tobytes()), "<u8")[::2]
        fractions: NDArray[np.float64] = (drawn.astype(np.float64) + 0.5) * 2.0**-64
        return fractions

    def integers(self, bound: int, n: int) -> NDArray[np.int64]:
        """Uniform on 0..bound-1, exactly: words above the last multiple of `bound` are passed over.

        These are the first n words accepted, so no word after the last of them is consumed.
        """
        if checks.whole("bound", bound, at_least=1) > 2**63:
            raise ValueError(f"bound must be at most 2^63, got {bound}")
        last = np.uint64(2**64 - 2**64 % bound - 1)
        accepted = self.words(n)
        accepted = accepted[accepted <= last]
        while len(accepted) < n:
            more = self.words(n - len(accepted))
            accepted = np.concatenate([accepted, more[more <= last]])
        return (accepted % np.uint64(bound)).astype(np.int64)

    def subset(self, population: int, size: int) -> NDArray[np.int64]:
        """`size` distinct indices below `population`, sorted; each subset is equally likely.

        Draws until `size` distinct indices have come, and stops at that one: a rule that treats all
        indices alike, so the subset is exactly uniform.  Takes O(size) draws and memory, since for
        more than half of the population the complement is drawn instead.
        """
        checks.whole("population", population, at_least=1)
        if checks.whole("size", size) > population:
            raise ValueError(f"size must be at most the population of {population}, got {size}")
        if 2 * size > population:
            chosen = np.ones(population, np.bool_)
            chosen[self.subset(population, population - size)] = False
            return np.flatnonzero(chosen)
        drawn = np.empty(0, np.int64)
        while len(drawn) < size:
            drawn = np.union1d(drawn, self.integers(population, size - len(drawn)))
        return drawn

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniform order of 0..n-1: the order of n words, drawn again if two are equal."""
        while True:
            words = self.words(n)
            order = np.argsort(words)
            ranked = words[order]
            if not np.any(ranked[1:] == ranked[:-1]):
                return order.astype(np.int64, copy=False)

    def binomial(self, n: int, p: float) -> int:
        """How many of n independent events of probability p happen.

        Each event is U < p for a uniform U, decided bit by bit: of the events whose U has agreed
        with p so far, about half agree in the next bit too, and counting them takes one random bit
        each.  That is 2n bits on average: 0.3 s for n = 10^9.

        Guarantee: exact.  The float p is a finite binary fraction, and the arithmetic is in
        integers, so the total-variation distance from Binomial(n, p) is 0 given uniform words.
        """
        undecided = checks.whole("n", n)
        if checks.closed_unit("p", p) == 1:
            return n
        numerator, denominator = p.as_integer_ratio()
        happened = 0
        while undecided and numerator:  # what is left of p is numerator / denominator, below 1
            numerator *= 2
            ones = self._count_ones(undecided)
            if numerator >= denominator:  # p's bit is 1: a 0 in U decides for U < p
                numerator -= denominator
                happened += undecided - ones
                undecided = ones
            else:
                undecided -= ones
        return happened

    def _count_ones(self, bits: int) -> int:
        """How many of the next `bits` bits are 1; the rest of the last word is left unused."""
        ones, last = 0, math.ceil(bits / 64)
        for start in range(0, last, _CHUNK):
            words = self.words(min(_CHUNK, last - start))
            if start + len(words) == last and bits % 64:
                words[-1] >>= np.uint64(64 - bits % 64)
            ones += int(np.bitwise_count(words).sum(dtype=np.int64))
        return ones
