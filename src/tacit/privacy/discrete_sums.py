"""How far a sum of discrete Gaussians is from a discrete Gaussian, and what that costs.

N(v) is the discrete Gaussian, P[X = x] proportional to exp(-x^2 / (2v)) on the integers, and Z_n
the sum of n independent ones with v = sigma^2.  As Kairouz, Liu and Steinke 2021 (Proposition 13),
with constants derived here instead of rounded:

**Lemma.** P[Z_n = x] / N(n sigma^2)(x) varies over x by a factor of at most e^tau, with

    tau = sum_{k=1}^{n-1} log((1 + a_k) / (1 - a_k)),    a_k = 2 q_k / (1 - q_k),
    q_k = exp(-2 pi^2 sigma^2 k / (k + 1)).

Proof.  Convolve N(k sigma^2) with N(sigma^2).  Completing the square, the result at x is, up to a
constant, exp(-x^2 / (2 (k+1) sigma^2)) times the sum over integers y of exp(-(y - c)^2 / (2s)), for
a c that depends on x, and s = sigma^2 k / (k + 1).  By Poisson's summation formula that sum is
sqrt(2 pi s) (1 + 2 sum_{j>=1} exp(-2 pi^2 s j^2) cos(2 pi j c)), within sqrt(2 pi s) (1 -+ a_k) as
j^2 >= j.  So one convolution varies by (1 + a_k) / (1 - a_k) at most.  Z_{k+1} is Z_k convolved
with N(sigma^2), and a factor of Z_k within bounds stays within them under convolution; the factors
multiply.

**Theorem.** For every vector D of integers in d dimensions and every order alpha >= 1, the Renyi
divergence of Z_n in d dimensions from Z_n + D is at most

    alpha |D|^2 / (2 n sigma^2) + tau d.

Proof.  In one dimension let f be the law of Z_n and v = n sigma^2.  By the lemma
f(x) / f(x - D) <= e^tau exp((D^2 - 2xD) / (2v)).  So the mean under f of its power alpha - 1 is at
most e^{(alpha-1) tau} e^{(alpha-1) D^2 / (2v)} E[exp(-(alpha-1) D Z_n / v)].  The last factor is at
most e^{(alpha-1)^2 D^2 / (2v)}: a discrete Gaussian Z is subgaussian with its own sigma, and so is
their sum.  (Completing the square, E[e^{lZ}] is e^{l^2 sigma^2 / 2} times the sum over integers of
exp(-(x - l sigma^2)^2 / (2 sigma^2)) over the same sum without the shift, and by Poisson's formula,
where all coefficients are positive, no shift makes it larger.)  Collect the exponents and divide by
alpha - 1.  Coordinates are independent, and divergences add.

It gives no bound on the distribution of the privacy loss, so the Renyi and zCDP accountants may
read such events, and the one by privacy loss distributions may not.
"""

from __future__ import annotations

import math

from tacit.privacy import checks

# Below it a_k is no longer small, and above so many shares summing the series takes long.
LEAST_STDDEV = 1.0
MOST_SHARES = 10**6


def check(share_stddev: float, shares: int) -> None:
    """Refuse shares for which the series is not worth its name."""
    if not share_stddev >= LEAST_STDDEV:
        raise ValueError(
            f"share_stddev must be at least {LEAST_STDDEV:g} steps of the grid, below which a sum"
            f" of shares is no Gaussian, got {share_stddev}"
        )
    if not shares <= MOST_SHARES:
        raise ValueError(f"shares must be at most {MOST_SHARES:,}, got {shares:,}")


def excess(share_stddev: float, shares: int) -> float:
    """tau: what a coordinate adds to every Renyi divergence; rounded up."""
    import numpy as np  # events are known to all commands, and few of them compute

    checks.whole("shares", shares, at_least=1)
    check(share_stddev, shares)
    k = np.arange(1, shares, dtype=np.float64)
    q = np.exp(-2 * math.pi**2 * share_stddev**2 * (k / (k + 1)))
    a = 2 * q / (1 - q)
    tau = float(np.sum(np.log1p(a) - np.log1p(-a)))
    # The sum's own rounding, and terms that underflowed.
    return tau * (1 + 1e-9) + shares * 1e-300 if shares > 1 else 0.0
