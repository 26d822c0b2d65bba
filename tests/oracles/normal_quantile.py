"""The table of tacit.privacy.quantile, computed in 50 digits; run as a program, it is written anew.

Row (e, j) is the polynomial in x that equals Phi^-1(2^e (1 + (2j + 1)/64 + x)) in the Chebyshev
nodes of |x| <= 1/64.  The nearest singularity, u = 0, lies 65 half-widths away or more, so that a
degree of 7 leaves some 130^-8 of the value: 1e-17.
"""

from pathlib import Path

import mpmath
import numpy as np

DEGREE, SEGMENTS, BINADES = 7, 32, range(-11, -1)


def quantile(u):
    """Phi^-1(u)."""
    return mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1)


def row(exponent, segment):
    """Its coefficients, that of x^0 first."""
    half = mpmath.mpf(1) / (2 * SEGMENTS)
    middle = 1 + (2 * segment + 1) * half
    count = DEGREE + 1
    nodes = [half * mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    powers = mpmath.matrix([[node**k for k in range(count)] for node in nodes])
    values = mpmath.matrix(
        [quantile((middle + node) * mpmath.mpf(2) ** exponent) for node in nodes]
    )
    return [float(value) for value in mpmath.lu_solve(powers, values)]


def table():
    """All rows; the last is for u = 1/2 itself."""
    places = [(exponent, segment) for exponent in BINADES for segment in range(SEGMENTS)]
    places.append((-1, 0))
    with mpmath.workdps(50):
        return np.array([row(*place) for place in places])


if __name__ == "__main__":
    here = Path(__file__).parents[2] / "src" / "tacit" / "privacy" / "quantile.npy"
    np.save(here, table())
